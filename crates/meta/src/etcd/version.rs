//! How old the server is, where that decides what its answers mean.

use std::sync::atomic::{AtomicBool, Ordering};

/// What is known about the servers behind the endpoints: the worst of what was met.
#[derive(Debug, Default)]
pub(super) struct ServerVersion {
    unordered_progress: AtomicBool,
}

impl ServerVersion {
    /// Notes the version that a server reported.
    pub(super) fn met(&self, version: &str) {
        if !orders_progress(version) {
            self.unordered_progress.store(true, Ordering::Relaxed);
        }
    }

    /// Whether the answer to a progress request proves that all events before it have been sent.
    pub(super) fn orders_progress(&self) -> bool {
        !self.unordered_progress.load(Ordering::Relaxed)
    }
}

/// Before 3.4.25 and 3.5.8 the answer to a progress request could overtake events. What does not look like a version
/// of etcd is not one of those.
fn orders_progress(version: &str) -> bool {
    let core = version.split(['-', '+']).next().unwrap_or_default();
    let mut numbers = core.split('.').map_while(|part| part.parse::<u32>().ok());
    let (Some(major), Some(minor), Some(patch)) = (numbers.next(), numbers.next(), numbers.next()) else {
        return true;
    };
    match (major, minor) {
        (3, 4) => patch >= 25,
        (3, 5) => patch >= 8,
        (3, 0..4) => false,
        _ => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_ordered_since_3_4_25_and_3_5_8() {
        for old in ["3.3.27", "3.4.0", "3.4.23", "3.5.0", "3.5.7", "3.5.0-rc.1"] {
            assert!(!orders_progress(old), "{old}");
        }
        for new in ["3.4.25", "3.4.45", "3.5.8", "3.6.0", "3.7.2-alpha", "4.0.0", "capstan", ""] {
            assert!(orders_progress(new), "{new}");
        }
    }

    #[test]
    fn one_old_member_is_enough_to_doubt() {
        let version = ServerVersion::default();
        assert!(version.orders_progress());
        version.met("3.4.23");
        version.met("3.6.14");
        assert!(!version.orders_progress());
    }
}
