//! The refusal of an outdated message, as proxies write it and coordinators parse it.

use std::fmt;

use capstan_control::epoch::Epoch;

/// The code and the word before the number.
const PREFIX: &str = "OLD_EPOCH known ";

/// A message was refused because the proxy has a newer one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OldEpoch {
    /// The epoch that the proxy has.
    pub known: Epoch,
}

impl OldEpoch {
    /// Parses an error text; `None` if it is another error.
    #[must_use]
    pub fn parse(error: &str) -> Option<OldEpoch> {
        let known = error.strip_prefix(PREFIX)?.trim().parse().ok()?;
        Some(OldEpoch { known: Epoch(known) })
    }
}

impl fmt::Display for OldEpoch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{PREFIX}{}", self.known)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let old = OldEpoch { known: Epoch(7) };
        assert_eq!(old.to_string(), "OLD_EPOCH known 7");
        assert_eq!(OldEpoch::parse(&old.to_string()), Some(old));
        assert_eq!(OldEpoch::parse("OLD_EPOCH known x"), None);
        assert_eq!(OldEpoch::parse("ERR OLD_EPOCH known 7"), None);
    }
}
