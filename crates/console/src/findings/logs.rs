//! What replicated logs contribute.

use capstan_control::findings::Finding;
use capstan_meta::Store;
use capstan_steward::Policy;
use capstan_steward::check;
use capstan_steward::facts::{Facts, Records};

pub(super) async fn findings(store: &Store, now: u64) -> Result<Vec<Finding>, String> {
    let records = Records::read(store).await.map_err(|error| error.to_string())?;
    Ok(check::findings(&Facts::new(records, now), &Policy::default()))
}
