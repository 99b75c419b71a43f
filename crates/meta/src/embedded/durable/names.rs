//! Which files does a data directory have? The only place with their names.

use std::path::{Path, PathBuf};

use capstan_disk::DRAFT;

/// Held while a process has the directory open.
pub(super) const LOCK: &str = "lock";

/// Present while a snapshot is being restored into the directory.
pub(super) const RESTORING: &str = "restoring";

const BASE: &str = "base-";
const LOG: &str = "log-";

/// What lived at one revision.
pub(super) fn base(number: u64) -> String {
    format!("{BASE}{number:012}")
}

/// What happened, in order.
pub(super) fn log(number: u64) -> String {
    format!("{LOG}{number:012}")
}

/// The path of a log file, for messages.
pub(super) fn log_path(dir: &Path, number: u64) -> PathBuf {
    dir.join(log(number))
}

/// What a directory holds, by kind.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Listing {
    pub(super) bases: Vec<u64>,
    pub(super) logs: Vec<u64>,
    /// What a crash left of a file that was being prepared.
    pub(super) drafts: Vec<String>,
    pub(super) restoring: bool,
    /// What no store made.
    pub(super) foreign: Vec<String>,
}

impl Listing {
    /// Sorts names.
    pub(super) fn of(names: &[String]) -> Listing {
        let mut listing = Listing::default();
        let number = |name: &str, prefix: &str| name.strip_prefix(prefix)?.parse::<u64>().ok();
        for name in names {
            if let Some(number) = number(name, BASE) {
                listing.bases.push(number);
            } else if let Some(number) = number(name, LOG) {
                listing.logs.push(number);
            } else if name.strip_suffix(DRAFT).is_some_and(is_ours) {
                listing.drafts.push(name.clone());
            } else if name == RESTORING {
                listing.restoring = true;
            } else if name != LOCK {
                listing.foreign.push(name.clone());
            }
        }
        listing.bases.sort_unstable();
        listing.logs.sort_unstable();
        listing
    }
}

fn is_ours(name: &str) -> bool {
    name.starts_with(BASE) || name.starts_with(LOG)
}
