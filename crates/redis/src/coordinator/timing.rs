//! How often, for how long, and after how long? The times of a coordinator, and how they depend on each other.

use std::time::Duration;

use capstan_control::failure::Quorum;
use capstan_meta::session::SessionOptions;
use capstan_meta::view::ViewOptions;

/// The times of a coordinator. All coordinators of an installation should have the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// How often a proxy is spoken to.
    pub ping_every: Duration,
    /// A request to a proxy without a reply for so long has failed.
    pub reply_within: Duration,
    /// For how long a proxy may serve after a grant.
    pub grant_ttl: Duration,
    /// How much two clocks can drift apart in that time, and then some.
    pub margin: Duration,
    /// Misses in a row before a proxy is suspected.
    pub patience: u32,
    /// How often a proxy is asked about its nodes.
    pub nodes_every: Duration,
    /// How often everything is told again although nothing changed.
    pub full_every: Duration,
    /// How old a view of the tree may be when it is acted upon.
    pub fresh_within: Duration,
    /// How long the store keeps a coordinator that is silent.
    pub session_ttl: Duration,
    /// How long a primary that has a replica may be down.
    pub node_down: Duration,
    /// How long a primary without a replica may be down: its data may come back with it.
    pub lone_node_down: Duration,
    /// Never fewer coordinators than this agree that a proxy is dead.
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
            quorum_at_least: 1,
        }
    }
}

impl Timing {
    /// After a grant that a proxy may have received, so long until it surely serves no more because of it.
    #[must_use]
    pub fn grant_over(&self) -> Duration {
        self.grant_ttl + self.margin
    }

    /// How long after its registration a coordinator reports nobody: by then every grant that was made without
    /// counting it is over.
    #[must_use]
    pub fn warm_up(&self) -> Duration {
        self.fresh_within + self.grant_over()
    }

    /// How many coordinators it takes.
    #[must_use]
    pub fn quorum(&self) -> Quorum {
        Quorum { at_least: self.quorum_at_least }
    }

    /// The session of a coordinator. Its margin is longer than a grant: when the store lets a coordinator go, all of
    /// its grants are over.
    #[must_use]
    pub fn session(&self) -> SessionOptions {
        let margin = self.grant_over().max(self.session_ttl / 5);
        SessionOptions { ttl: self.session_ttl, margin, ..SessionOptions::default() }
    }

    /// The view of a coordinator: asked for signs of life often enough to be fresh.
    #[must_use]
    pub fn view(&self) -> ViewOptions {
        let heartbeat = (self.fresh_within / 4).max(Duration::from_millis(50));
        ViewOptions { heartbeat, answer_within: self.fresh_within / 2, ..ViewOptions::default() }
    }
}
