//! What Redis contributes.

use capstan_control::findings::Finding;
use capstan_control::keys::LiveReportKey;
use capstan_meta::Store;
use capstan_meta::record::Listing;
use capstan_redis::facts::Tree;
use capstan_redis::health;

pub(super) async fn findings(
    store: &Store,
    reports: &Listing<LiveReportKey>,
    now_ms: u64,
) -> Result<Vec<Finding>, String> {
    let tree = Tree::read(store).await.map_err(|error| error.to_string())?;
    let about = |key: &LiveReportKey| key.service.as_str() == health::SERVICE;
    let reports = reports.iter().filter(|(key, _)| about(key)).map(|(_, stored)| &stored.record);
    Ok(health::findings(&tree, reports, now_ms))
}
