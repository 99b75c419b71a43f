//! How is a host of the fleet called? By its logical rack number: a plain number, and sorted as one.

use std::collections::BTreeSet;
use std::fmt;
use std::str::FromStr;

use capstan_meta::record::Segment;
use serde::{Deserialize, Serialize};

/// The logical rack number of a host. In keys it is plain decimal without padding, so 10 follows 9 only as a number:
/// whoever lists hosts sorts them as numbers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Lrn(pub u32);

impl Segment for Lrn {}

impl fmt::Display for Lrn {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// What should be the number of a host is none.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a host of the fleet is a number from 0 to {}", u32::MAX)]
pub struct InvalidLrn;

impl FromStr for Lrn {
    type Err = InvalidLrn;

    fn from_str(text: &str) -> Result<Lrn, InvalidLrn> {
        text.parse().map(Lrn).map_err(|_| InvalidLrn)
    }
}

/// Hosts, each once, in the order of their numbers.
pub type Lrns = BTreeSet<Lrn>;

/// Hosts as Go prints a list, `[0 1 2]`: what the notifications show. Long lists are cut after `MOST_SHOWN`.
#[must_use]
pub fn go_list(servers: &[Lrn]) -> String {
    /// A message for people: ten thousand numbers say less than their count.
    const MOST_SHOWN: usize = 100;
    let shown: Vec<String> = servers.iter().take(MOST_SHOWN).map(Lrn::to_string).collect();
    match servers.len().saturating_sub(MOST_SHOWN) {
        0 => format!("[{}]", shown.join(" ")),
        more => format!("[{} and {more} more]", shown.join(" ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_sort_as_numbers() {
        let hosts: Lrns = ["0", "1", "10", "11", "2", "9"].iter().map(|text| text.parse().unwrap()).collect();
        assert_eq!(hosts.iter().map(|lrn| lrn.0).collect::<Vec<_>>(), [0, 1, 2, 9, 10, 11]);
        assert_eq!(go_list(&[Lrn(0), Lrn(1), Lrn(2)]), "[0 1 2]");
        assert!(go_list(&(0..150).map(Lrn).collect::<Vec<_>>()).ends_with("99 and 50 more]"));
    }
}
