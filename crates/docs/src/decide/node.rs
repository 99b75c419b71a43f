//! In which state is a node, and how does it change? One table, from which the diagram in the documentation is printed.

use serde::{Deserialize, Serialize};

/// The state of a node, by the names of the specification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum NodeState {
    /// It has appeared and holds nothing.
    #[serde(rename = "NEW")]
    New,
    /// It is among the first nodes: the tokens are dealt to them.
    CreCluster,
    /// It was added to a cluster: tokens move to it.
    Onboarding,
    /// Some of its copies are not complete yet.
    Syncing,
    /// All its copies are complete.
    #[serde(rename = "OK")]
    Ok,
    /// It was away, or could not follow.
    NeedSync,
    /// Its tokens move to other nodes.
    Retiring,
    /// It holds nothing and may be deleted.
    Retired,
}

/// What happens to a node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeEvent {
    /// There is no cluster yet, and it is one of its first nodes.
    ClusterCreated,
    /// An operator, or the setting, adds it to a cluster that is there.
    Added,
    /// It has been given copies that it has to fetch.
    TokensAssigned,
    /// All its copies are complete.
    Complete,
    /// It is away, or one of its copies has left the in-sync set.
    SyncFailed,
    /// It is back.
    Available,
    /// An operator retires it.
    RetireRequested,
    /// No token names it any more.
    TokensReorganized,
}

impl NodeState {
    /// Every state, in the order of a node's life.
    pub const ALL: [NodeState; 8] = [
        NodeState::New,
        NodeState::CreCluster,
        NodeState::Onboarding,
        NodeState::Syncing,
        NodeState::Ok,
        NodeState::NeedSync,
        NodeState::Retiring,
        NodeState::Retired,
    ];

    /// Its name in the specification.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            NodeState::New => "NEW",
            NodeState::CreCluster => "CreCluster",
            NodeState::Onboarding => "Onboarding",
            NodeState::Syncing => "Syncing",
            NodeState::Ok => "OK",
            NodeState::NeedSync => "NeedSync",
            NodeState::Retiring => "Retiring",
            NodeState::Retired => "Retired",
        }
    }

    /// The next state; nothing if the event has no meaning in this one.
    #[must_use]
    pub fn step(self, event: NodeEvent) -> Option<NodeState> {
        TABLE.iter().find(|(from, on, _, _)| *from == self && *on == event).map(|(_, _, to, _)| *to)
    }
}

/// What is known about a node when its state is decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NodeFacts {
    /// It runs.
    pub up: bool,
    /// Tokens of which it has a copy.
    pub copies: usize,
    /// Copies that are not in sync.
    pub behind: usize,
    /// Tokens that it is fetching.
    pub learning: usize,
    /// An operator wants it gone.
    pub retiring: bool,
    /// No other node has got beyond the creation of the cluster.
    pub first: bool,
}

impl NodeFacts {
    /// What has happened to a node in this state, if anything has.
    #[must_use]
    pub fn event(&self, state: NodeState) -> Option<NodeEvent> {
        let has_tokens = self.copies + self.learning > 0;
        // A node that retires before it was complete may have nothing left to complete.
        let is_due = self.copies > 0 || self.retiring;
        let is_complete = self.up && is_due && self.behind == 0 && self.learning == 0;
        match state {
            NodeState::New if has_tokens && self.first => Some(NodeEvent::ClusterCreated),
            NodeState::New if has_tokens => Some(NodeEvent::Added),
            NodeState::CreCluster | NodeState::Onboarding if has_tokens || self.retiring => {
                Some(NodeEvent::TokensAssigned)
            }
            NodeState::Syncing if is_complete => Some(NodeEvent::Complete),
            NodeState::Ok if !self.up || self.behind > 0 => Some(NodeEvent::SyncFailed),
            NodeState::Ok if self.retiring => Some(NodeEvent::RetireRequested),
            NodeState::NeedSync if self.up => Some(NodeEvent::Available),
            NodeState::Retiring if !has_tokens => Some(NodeEvent::TokensReorganized),
            NodeState::New
            | NodeState::CreCluster
            | NodeState::Onboarding
            | NodeState::Syncing
            | NodeState::Ok
            | NodeState::NeedSync
            | NodeState::Retiring
            | NodeState::Retired => None,
        }
    }
}

/// Every transition, with the words of the specification.
const TABLE: &[(NodeState, NodeEvent, NodeState, &str)] = &[
    (NodeState::New, NodeEvent::ClusterCreated, NodeState::CreCluster, "new cluster + all NEW"),
    (NodeState::New, NodeEvent::Added, NodeState::Onboarding, "admin added node to existing cluster"),
    (NodeState::CreCluster, NodeEvent::TokensAssigned, NodeState::Syncing, ""),
    (NodeState::Onboarding, NodeEvent::TokensAssigned, NodeState::Syncing, "reorganize tokens as master"),
    (NodeState::Syncing, NodeEvent::Complete, NodeState::Ok, "update node"),
    (NodeState::Ok, NodeEvent::SyncFailed, NodeState::NeedSync, "data sync failed"),
    (NodeState::NeedSync, NodeEvent::Available, NodeState::Syncing, "node available again"),
    (NodeState::Ok, NodeEvent::RetireRequested, NodeState::Retiring, "Admin request"),
    (NodeState::Retiring, NodeEvent::TokensReorganized, NodeState::Retired, "tokens reorganized"),
];

/// The diagram of the table.
#[must_use]
pub fn diagram() -> String {
    let mut out = String::from("[*] --> NEW\n");
    for (from, _, to, label) in TABLE {
        let label = if label.is_empty() { String::new() } else { format!(": {label}") };
        out.push_str(&format!("{} --> {}{label}\n", from.name(), to.name()));
    }
    out.push_str("Retired --> [*]: can be deleted\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    const EVENTS: [NodeEvent; 8] = [
        NodeEvent::ClusterCreated,
        NodeEvent::Added,
        NodeEvent::TokensAssigned,
        NodeEvent::Complete,
        NodeEvent::SyncFailed,
        NodeEvent::Available,
        NodeEvent::RetireRequested,
        NodeEvent::TokensReorganized,
    ];

    #[test]
    fn every_event_that_facts_tell_has_a_transition() {
        for bits in 0..64_u32 {
            let bit = |at: u32| bits >> at & 1 == 1;
            let facts = NodeFacts {
                up: bit(0),
                copies: usize::from(bit(1)),
                behind: usize::from(bit(2)),
                learning: usize::from(bit(3)),
                retiring: bit(4),
                first: bit(5),
            };
            for state in NodeState::ALL {
                if let Some(event) = facts.event(state) {
                    assert!(state.step(event).is_some(), "{state:?} {event:?}");
                }
            }
        }
    }

    #[test]
    fn a_life_from_new_to_retired() {
        let up = NodeFacts { up: true, copies: 12, ..NodeFacts::default() };
        let steps = [
            (NodeFacts { learning: 1, copies: 0, ..up }, NodeState::Onboarding),
            (NodeFacts { learning: 1, copies: 0, ..up }, NodeState::Syncing),
            (up, NodeState::Ok),
            (NodeFacts { up: false, ..up }, NodeState::NeedSync),
            (NodeFacts { behind: 3, ..up }, NodeState::Syncing),
            (up, NodeState::Ok),
            (NodeFacts { retiring: true, ..up }, NodeState::Retiring),
            (NodeFacts { copies: 0, retiring: true, ..up }, NodeState::Retired),
        ];
        let mut state = NodeState::New;
        for (facts, expected) in steps {
            state = facts.event(state).and_then(|event| state.step(event)).unwrap();
            assert_eq!(state, expected);
        }
    }

    #[test]
    fn a_node_that_retires_before_it_was_complete_ends_retired() {
        for state in [NodeState::Onboarding, NodeState::Syncing, NodeState::NeedSync, NodeState::Ok] {
            let facts = NodeFacts { up: true, retiring: true, ..NodeFacts::default() };
            let mut now = state;
            while let Some(event) = facts.event(now) {
                now = now.step(event).unwrap();
            }
            assert_eq!(now, NodeState::Retired, "from {state:?}");
        }
    }

    #[test]
    fn every_pair_of_state_and_event_is_as_specified() {
        let mut lines = Vec::new();
        for state in NodeState::ALL {
            let row = EVENTS.map(|event| state.step(event).map_or("-", NodeState::name));
            lines.push(format!("{:<11}{}", state.name(), row.join(" ")));
        }
        let expected = [
            "NEW        CreCluster Onboarding - - - - - -",
            "CreCluster - - Syncing - - - - -",
            "Onboarding - - Syncing - - - - -",
            "Syncing    - - - OK - - - -",
            "OK         - - - - NeedSync - Retiring -",
            "NeedSync   - - - - - Syncing - -",
            "Retiring   - - - - - - - Retired",
            "Retired    - - - - - - - -",
        ];
        assert_eq!(lines, expected);
    }
}
