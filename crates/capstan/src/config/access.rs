//! What requests without a credential may do.

use std::net::SocketAddr;

use capstan_access::{Anonymous, Secret};

use super::Reader;

/// Section `access`.
#[derive(Clone, Debug)]
pub(crate) struct Access {
    /// As it was set; nothing: by what the process is.
    anonymous: Option<Anonymous>,
    /// What commands show brokers.
    pub(crate) key: Option<Secret>,
}

impl Access {
    /// For `capstan up`: its user is at the keyboard, and the store beside it is as open. See ADR access-0001.
    pub(crate) fn of_up(&self, listen: SocketAddr) -> Anonymous {
        let usual = if listen.ip().is_loopback() { Anonymous::Admin } else { Anonymous::Refused };
        self.anonymous.unwrap_or(usual)
    }

    /// For a host or a controller of a cluster.
    pub(crate) fn of_cluster(&self) -> Anonymous {
        self.anonymous.unwrap_or(Anonymous::Refused)
    }
}

impl Reader<'_> {
    pub(super) fn access(&mut self) -> Access {
        let anonymous = match self.text("access.anonymous").as_str() {
            "none" => Some(Anonymous::Refused),
            "viewer" => Some(Anonymous::Viewer),
            "admin" => Some(Anonymous::Admin),
            // The table of settings allows no other word than `auto`.
            _ => None,
        };
        let key = Some(self.text("access.key")).filter(|text| !text.is_empty()).map(Secret::new);
        Access { anonymous, key }
    }
}
