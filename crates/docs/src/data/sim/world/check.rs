//! What holds at every moment of a world, and what it comes to when nothing breaks any more.

use std::collections::BTreeMap;

use capstan_log::{HolderId, LogConfig};

use super::{Node, World};
use crate::data::find::digest;
use crate::decide::{JobProgress, JobState, NodeState};
use crate::id::Token;

/// Rounds after which a cluster without faults must have settled.
const CALM: usize = 400;

impl World {
    /// A copy is exactly what the entries make that it has applied.
    fn check_copy(&self, holder: &HolderId, token: Token) {
        let next = self.nodes[holder].data(token).applied().next;
        let states = &self.logs[&token].states;
        let expected = next.checked_sub(1).map_or(BTreeMap::new(), |last| states[last as usize].clone());
        assert_eq!(self.documents(holder, token), expected, "token {token} on {holder} after {next} entries");
    }

    /// What holds at every moment.
    pub(super) fn check(&mut self) {
        let (holder, token) = (self.any_node(), self.any_token());
        self.check_copy(&holder, token);
        for token in self.logs.keys() {
            let config = self.config(*token);
            for holder in &config.in_sync {
                let end = self.nodes[holder].held.get(token).map_or(0, |held| held.end);
                assert!(end >= self.end(*token), "{holder} is in sync and lacks entries of token {token}");
            }
        }
    }

    /// Everything works again: every copy becomes the same, every node complete, and nothing is left behind.
    pub(in crate::data::sim) fn calm(&mut self) {
        let holders: Vec<HolderId> = self.nodes.keys().cloned().collect();
        let tokens: Vec<Token> = self.logs.keys().copied().collect();
        for _ in 0..CALM {
            let mut changes = self.govern();
            for holder in &holders {
                self.restart(holder);
                self.tidy(holder);
            }
            for token in &tokens {
                changes += usize::from(self.primary(*token).is_none());
                self.replicate(*token);
                holders.iter().for_each(|holder| self.apply(holder, *token, u64::MAX));
            }
            if changes == 0 && self.is_settled() {
                return self.compare();
            }
        }
        let states: Vec<_> = self.nodes.iter().map(|(holder, node)| (holder, node.state)).collect();
        let configs: Vec<_> = tokens.iter().map(|token| self.config(*token)).collect();
        panic!("the cluster does not settle: {states:?} {configs:?}");
    }

    fn is_settled(&self) -> bool {
        let complete = |config: LogConfig| {
            config.in_sync.len() == config.holders.len()
                && config.learner.is_none()
                && config.leaving.is_none()
        };
        let state = |(holder, node): (&HolderId, &Node)| match self.records.holders.get(holder) {
            Some(record) if !record.record.retiring => node.state == NodeState::Ok,
            // One that never got a token has no other way to go.
            Some(_) => matches!(node.state, NodeState::Retired | NodeState::New),
            // It retired and went away: an operator may delete it whatever its state is.
            None => true,
        };
        self.nodes.iter().all(state) && self.logs.keys().all(|token| complete(self.config(*token)))
    }

    fn compare(&mut self) {
        for token in self.logs.keys().copied().collect::<Vec<_>>() {
            let config = self.config(token);
            let digests: Vec<_> = config
                .holders
                .iter()
                .map(|holder| {
                    assert_eq!(
                        self.documents(holder, token),
                        self.expected(token),
                        "token {token} on {holder}"
                    );
                    digest(&self.nodes[holder].data(token).view()).unwrap()
                })
                .collect();
            assert!(digests.windows(2).all(|two| two[0] == two[1]), "token {token}: {digests:?}");
            assert_eq!(digests.len(), 3, "token {token}");
        }
        let up: Vec<HolderId> = self.nodes.keys().filter(|one| self.records.is_up(one)).cloned().collect();
        for holder in up {
            self.tidy(&holder);
            let node = &self.nodes[&holder];
            for (token, generation) in node.tokens.stored(1).unwrap() {
                let held = self.config(token).holders.contains(&holder);
                let counts = node.data(token).applied().generation == generation;
                assert!(held && counts, "{holder} has kept data of token {token} that does not count");
            }
        }
        let open = |(_, job, _): &(HolderId, JobProgress, u64)| job.state != JobState::Completed;
        assert!(!self.jobs.values().any(open), "jobs that have not ended: {:?}", self.jobs);
    }
}
