//! What the document store contributes.

use capstan_control::findings::Finding;
use capstan_docs::check::{self, Facts};
use capstan_meta::{Store, clock};

pub(super) async fn findings(store: &Store) -> Result<Vec<Finding>, String> {
    let facts = Facts::read(store).await.map_err(|error| error.to_string())?;
    Ok(check::findings(&facts, clock::since_epoch().as_secs()))
}
