//! What the fleet contributes.

use capstan_control::findings::Finding;
use capstan_fleet::{Fleet, Tree, check};
use capstan_meta::Store;

pub(super) async fn findings(store: &Store, tree: &Tree) -> Result<Vec<Finding>, String> {
    let fleet = Fleet::new(store.clone(), tree.clone());
    let facts = fleet.facts().await.map_err(|error| error.to_string())?;
    let updaters = store.list(&tree.candidates()).await.map_err(|error| error.to_string())?;
    Ok(check::findings(&facts, updaters.entries.len()))
}
