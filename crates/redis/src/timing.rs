//! How often, for how long, and after how long? The times of a coordinator, and how they depend on each
//! other.

use std::time::Duration;

use capstan_control::failure::Quorum;
use capstan_meta::session::SessionOptions;
use capstan_meta::view::ViewOptions;

/// The times of a coordinator. All coordinators of an installation should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// The ping interval of a proxy.
    pub ping_every: Duration,
    /// The reply timeout of a proxy.
    pub reply_within: Duration,
    /// How long a proxy may serve after a grant.
    pub grant_ttl: Duration,
    /// The drift of two clocks in that time, and a margin.
    pub margin: Duration,
    /// Consecutive misses before a proxy is suspected.
    pub patience: u32,
    /// How often a proxy's nodes are queried.
    pub nodes_every: Duration,
    /// How often everything is pushed again without a change.
    pub full_every: Duration,
    /// The largest age of the view for decisions.
    pub fresh_within: Duration,
    /// How long the store keeps the registration of a silent coordinator.
    pub session_ttl: Duration,
    /// How long a primary may not serve before a replica in sync is promoted.
    pub node_down: Duration,
    /// How long a node may make no progress before it is given up, if that loses nothing or was chosen.
    pub lone_node_down: Duration,
    /// How long a primary may be busy with one command before a replica in sync is promoted.
    pub busy: Duration,
    /// How long a planned successor may take to get everything before the handover is reverted.
    pub take_over: Duration,
    /// How long a host may be unreachable before its replicas are created elsewhere: one that returns earlier
    /// keeps its nodes.
    pub host_gone: Duration,
    /// How long a coordinator continues to grant without the store.
    pub outage: Duration,
    /// The minimum number of coordinators that must agree that a proxy is dead.
    pub quorum_at_least: usize,
}

impl Default for Timing {
    fn default() -> Timing {
        Timing {
            ping_every: Duration::from_millis(500),
            reply_within: Duration::from_millis(500),
            grant_ttl: Duration::from_millis(1500),
            margin: Duration::from_millis(300),
            patience: 2,
            nodes_every: Duration::from_millis(500),
            full_every: Duration::from_secs(30),
            fresh_within: Duration::from_secs(6),
            session_ttl: Duration::from_secs(10),
            node_down: Duration::from_secs(3),
            lone_node_down: Duration::from_secs(30),
            busy: Duration::from_secs(60),
            take_over: Duration::from_secs(10),
            host_gone: Duration::from_secs(60),
            outage: Duration::from_secs(15 * 60),
            quorum_at_least: 1,
        }
    }
}

impl Timing {
    /// The time after a grant until the proxy certainly no longer serves because of it.
    #[must_use]
    pub fn grant_over(&self) -> Duration {
        self.grant_ttl + self.margin
    }

    /// How long after its registration a coordinator reports no proxy: by then every grant made without
    /// counting it has expired.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        self.fresh_within + self.grant_over()
    }

    /// How long a coordinator is missing from the store before it certainly grants nothing any more.
    #[must_use]
    pub fn surely_silent(&self) -> Duration {
        self.outage + self.fresh_within + self.grant_over()
    }

    /// The number of coordinators needed.
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        Quorum { at_least: self.quorum_at_least }
    }

    /// The session of a coordinator. Its margin is longer than a grant: when the store drops a coordinator,
    /// all of its grants have expired.
    #[must_use]
    pub fn session(&self) -> SessionOptions {
        let margin = self.grant_over().max(self.session_ttl / 5);
        SessionOptions { ttl: self.session_ttl, margin, ..SessionOptions::default() }
    }

    /// The view of a coordinator: its progress requests are frequent enough to keep it fresh.
    #[must_use]
    pub fn view(&self) -> ViewOptions {
        let heartbeat = (self.fresh_within / 4).max(Duration::from_millis(50));
        ViewOptions { heartbeat, answer_within: self.fresh_within / 2, ..ViewOptions::default() }
    }
}
