//! What happens to an unhealthy node, and to its shard? Each state has its own timeout, and progress resets
//! it.

use std::collections::BTreeSet;
use std::time::Duration;

use capstan_control::incidents::Incident;
use capstan_meta::record::Key;
use tokio::time::Instant;

use super::super::content::awaits_replicas;
use super::{SEEN_WITHIN, Sight};
use crate::address::Address;
use crate::agent::Data;
use crate::board::{NodeFact, ProxyFact};
use crate::decide::{
    Draft, OldPrimary, plan_drop_replica, plan_force, plan_give_up, plan_promote, plan_replace, replacement,
    replacement_at_home,
};
use crate::error::BrokerError;
use crate::facts::ClusterTree;
use crate::health::DATA_LOST;
use crate::keys::{ClusterName, ShardKey};
use crate::shard::{ShardRecord, Succession, Waiting};
use crate::status::NodeRecord;

/// Why a node is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// Enough coordinators cannot reach its proxy.
    Unreachable,
    /// It is loading its data from disk.
    Loading,
    /// It runs a script, or another long command.
    Busy,
    /// It is being promoted, and does not have everything from the previous primary yet.
    TakingOver,
    /// Its process is alive and makes no progress.
    Frozen,
    /// Its process is dead; its data may be on disk.
    Down,
    /// It restarted with a snapshot that is older than its data was, or with a file that may lack its last writes.
    Older,
    /// It restarted without its data.
    Lost,
}

impl Trouble {
    fn word(self) -> &'static str {
        match self {
            Trouble::Unreachable => "unreachable",
            Trouble::Loading => "loading",
            Trouble::Busy => "busy",
            Trouble::TakingOver => "taking-over",
            Trouble::Frozen => "frozen",
            Trouble::Down => "down",
            Trouble::Older => "older",
            Trouble::Lost => "lost",
        }
    }

    fn cause(self, node: &Address) -> String {
        match self {
            Trouble::Unreachable => format!("the host of its primary {node} is unreachable"),
            Trouble::Loading => format!("its primary {node} is loading its data from disk"),
            Trouble::Busy => format!("its primary {node} is busy with a long command or script"),
            Trouble::TakingOver => format!("{node} is being promoted and does not have all data yet"),
            Trouble::Frozen => format!("the process of its primary {node} is stopped"),
            Trouble::Down => format!("the process of its primary {node} does not run"),
            Trouble::Older => format!("its primary {node} restarted and may lack its last writes"),
            Trouble::Lost => format!("its primary {node} restarted without its data"),
        }
    }
}

/// The next step.
pub(crate) enum Next {
    /// Nothing: its timeout has not passed.
    Well,
    /// This transaction.
    Commit(Box<Draft>),
    /// Nothing can be done; the note records it in the shard's record, unless it is there.
    Wait {
        /// Why.
        why: String,
        /// The transaction that records it.
        note: Option<Box<Draft>>,
    },
}

/// An unhealthy node.
pub(crate) struct Patient<'p> {
    pub sight: Sight<'p>,
    pub name: &'p ClusterName,
    pub node: &'p NodeRecord,
    /// Proxies that any coordinator reports.
    pub gone: &'p BTreeSet<&'p Address>,
    pub trouble: Trouble,
    /// Since when it does not serve, as observed here.
    pub since: Option<Instant>,
    /// Since when it makes no progress either.
    pub stuck: Option<Instant>,
}

impl<'p> Patient<'p> {
    pub(crate) fn next(&self) -> Next {
        let Some(cluster) = self.sight.tree.cluster(self.name) else { return Next::Well };
        let step = if !self.node.is_primary() {
            self.replica(cluster)
        } else if self.node.slot_count() == 0 {
            // It serves nothing: slots that move to it are still at their source.
            self.replace_when(self.for_long(self.sight.timing.node_down))
        } else {
            self.primary(cluster)
        };
        match step {
            Ok(next) => next,
            Err(error) => Next::Wait { why: error.to_string(), note: None },
        }
    }

    fn elapsed(&self, since: Option<Instant>) -> Duration {
        since.map_or(Duration::ZERO, |since| self.sight.at.saturating_duration_since(since))
    }

    /// Whether it has not served for this long.
    fn for_long(&self, bound: Duration) -> bool {
        self.elapsed(self.since) >= bound
    }

    /// Whether it has made no progress for this long.
    fn stuck_for(&self, bound: Duration) -> bool {
        self.elapsed(self.stuck) >= bound
    }

    /// A replica is dropped only after a long time, if another node can replace it, and only while its
    /// primary is seen to be healthy: otherwise it may be the last copy.
    fn replica(&self, cluster: &'p ClusterTree) -> Result<Next, BrokerError> {
        let timing = self.sight.timing;
        let bound = match self.trouble {
            Trouble::Down | Trouble::Frozen => timing.lone_node_down,
            _ => timing.host_gone,
        };
        let draining = self.sight.tree.draining.contains(&self.node.proxy_address);
        let primary = self.node.replica_of.as_ref().and_then(|primary| cluster.nodes.get(primary));
        let whole = primary.is_some_and(|primary| self.is_well(&primary.record));
        if draining || !whole || !self.stuck_for(bound) {
            return Ok(Next::Well);
        }
        replacement(self.sight.tree, self.name, &self.node.address, None)?;
        let (tree, now) = (self.sight.tree, self.sight.now);
        let why = format!("it was {} for too long, and its primary has all data", self.trouble.word());
        commit(plan_drop_replica(tree, self.name, &self.node.address, &why, now))
    }

    fn is_well(&self, primary: &NodeRecord) -> bool {
        let fact = self.sight.facts.get(&primary.proxy_address).filter(|fact| fact.reached);
        let seen = fact.and_then(|fact| fact.nodes.get(&primary.address));
        seen.is_some_and(|seen| seen.leads(self.name))
    }

    fn primary(&self, cluster: &'p ClusterTree) -> Result<Next, BrokerError> {
        let timing = self.sight.timing;
        let bound = match self.trouble {
            Trouble::Unreachable | Trouble::Lost | Trouble::Older => Duration::ZERO,
            Trouble::Loading | Trouble::Frozen | Trouble::Down => timing.node_down,
            Trouble::Busy => timing.busy,
            Trouble::TakingOver => timing.take_over,
        };
        if !self.for_long(bound) {
            return Ok(Next::Well);
        }
        let shard = cluster.shards.get(&self.node.address);
        let record = shard.map(|seen| &seen.record);
        let members = self.members(cluster, record);
        let (tree, now) = (self.sight.tree, self.sight.now);
        match self.successor(&members) {
            Ok(successor) => {
                return commit(plan_promote(tree, self.name, &successor, OldPrimary::Returns, now));
            }
            // It has everything that it can get, and the previous primary is not reachable any more.
            Err(_) if self.may_be_forced(record) => {
                return commit(plan_force(tree, self.name, &self.node.address, now));
            }
            Err(_) => {}
        }
        if is_cache(cluster) {
            let due = self.trouble == Trouble::Lost || self.stuck_for(timing.lone_node_down);
            return self.go_on_with_less(cluster, due);
        }
        let why = self.successor(&members).err().unwrap_or_default();
        Ok(self.wait(shard, &why))
    }

    /// The replicas that may be promoted and that no coordinator reports.
    fn members(&self, cluster: &'p ClusterTree, shard: Option<&ShardRecord>) -> Vec<&'p NodeRecord> {
        let replicas = cluster.replicas_of(&self.node.address).map(|seen| &seen.record);
        let may = |node: &&NodeRecord| shard.is_some_and(|shard| shard.may_promote(&node.address));
        let is_gone = |proxy: &Address| self.gone.iter().any(|gone| **gone == *proxy);
        replicas.filter(may).filter(|node| !is_gone(&node.proxy_address)).collect()
    }

    /// The member with the highest offset; an error until every reachable member has reported. With a choice,
    /// reports from before the primary's failure do not count: its last writes may have arrived after them.
    fn successor(&self, members: &[&NodeRecord]) -> Result<Address, String> {
        if members.is_empty() {
            return Err("no other node is known to have all of its data".to_owned());
        }
        let since = self.since.filter(|_| members.len() > 1).map(|since| since + SEEN_WITHIN);
        let mut best: Option<(u64, std::cmp::Reverse<&Address>)> = None;
        let mut why = "its replicas in sync cannot be promoted now";
        for member in members {
            let fact = self.sight.facts.get(&member.proxy_address).filter(|fact| fact.reached);
            let reported_at =
                fact.and_then(|fact| fact.nodes_at).filter(|at| since.is_none_or(|since| *at >= since));
            let (Some(fact), Some(_)) = (fact, reported_at) else {
                return Err("waiting for the reports of its replicas".to_owned());
            };
            let Some(seen) = fact.nodes.get(&member.address) else { continue };
            if self.missed_writes(fact, &member.address) {
                why = "its replicas in sync lost their link to it while it still served, and the metadata store could not \
                       be updated";
                continue;
            }
            let rank = (seen.offset, std::cmp::Reverse(&member.address));
            if seen.can_lead() && self.has_enough(seen.data) && best.is_none_or(|best| rank > best) {
                best = Some(rank);
            }
        }
        best.map(|(_, node)| node.0.clone()).ok_or_else(|| why.to_owned())
    }

    /// Whether a member was unlinked while this primary served: it would have left the set, if the store had been
    /// available. With `acks: replica` nothing that it missed was acknowledged.
    fn missed_writes(&self, there: &ProxyFact, member: &Address) -> bool {
        if self.sight.tree.cluster(self.name).is_some_and(awaits_replicas) {
            return false;
        }
        let here = self.sight.facts.get(&self.node.proxy_address);
        here.is_some_and(|here| there.missed_writes(member, &self.node.address, here, SEEN_WITHIN))
    }

    /// A member that was restarted since its last link to the primary may lack later writes: it is promoted
    /// only if the primary cannot return with more.
    fn has_enough(&self, data: Data) -> bool {
        let final_loss = matches!(self.trouble, Trouble::Lost | Trouble::Older)
            || self.stuck_for(self.sight.timing.lone_node_down);
        match data {
            Data::Current => true,
            Data::Whole => final_loss,
            Data::Older | Data::Gone => false,
        }
    }

    /// Whether a planned successor may be promoted without the previous primary, because that one is gone.
    fn may_be_forced(&self, shard: Option<&ShardRecord>) -> bool {
        let own = self
            .sight
            .facts
            .get(&self.node.proxy_address)
            .and_then(|fact| fact.nodes.get(&self.node.address));
        self.trouble == Trouble::TakingOver
            && own.is_some_and(|own| self.has_enough(own.data))
            && shard.is_some_and(|shard| {
                shard.succession == Succession::Agreed && shard.may_promote(&self.node.address)
            })
    }

    /// A cache continues with a replica that lacks data, else empty.
    fn go_on_with_less(&self, cluster: &'p ClusterTree, due: bool) -> Result<Next, BrokerError> {
        let (tree, now) = (self.sight.tree, self.sight.now);
        let can_lead = |node: &&NodeRecord| {
            let fact = self.sight.facts.get(&node.proxy_address).filter(|fact| fact.reached);
            fact.and_then(|fact| fact.nodes.get(&node.address)).is_some_and(NodeFact::can_lead)
        };
        let replicas = cluster.replicas_of(&self.node.address).map(|seen| &seen.record);
        match replicas.filter(can_lead).min_by_key(|node| &node.address).filter(|_| due) {
            Some(node) => commit(plan_promote(tree, self.name, &node.address, OldPrimary::Leaves, now)),
            None => self.replace_when(due),
        }
    }

    fn replace_when(&self, due: bool) -> Result<Next, BrokerError> {
        let (tree, name, node, now) = (self.sight.tree, self.name, &self.node.address, self.sight.now);
        if !due {
            return Ok(Next::Well);
        }
        let replicas = tree.cluster(name).map_or(0, |cluster| cluster.replicas_of(node).count());
        let at_home = self.trouble == Trouble::Lost && replicas == 0;
        let place = match replacement(tree, name, node, None) {
            // Its host is healthy, and there is nothing to wait for.
            Err(BrokerError::TooFewNodes { .. }) if at_home => replacement_at_home(tree, name, node),
            other => other,
        };
        let why = self.trouble.cause(node);
        match place {
            Ok(place) => commit(
                plan_replace(tree, name, node, &place, &why, now).and_then(|draft| self.with_incident(draft)),
            ),
            // The same node can be emptied and assigned again.
            Err(BrokerError::TooFewNodes { .. }) if at_home => {
                commit(plan_give_up(tree, name, node, &why, now).and_then(|draft| self.with_incident(draft)))
            }
            Err(error) => Err(error),
        }
    }

    /// The slots continue without their data: recorded as an incident in the same transaction, until it is
    /// acknowledged.
    fn with_incident(&self, mut draft: Draft) -> Result<Draft, BrokerError> {
        let (node, now, slots) = (&self.node.address, self.sight.now, self.node.slot_count());
        if slots > 0 {
            let object = format!("redis cluster {}, node {node}", self.name);
            let cause = format!("{slots} slots continue without their data: {}", self.trouble.cause(node));
            let incident = Incident::new(object, cause, "restore what matters from a backup", now);
            let id = format!("{}.{}.{now}", self.name, node.as_str().replace(':', "."));
            let put = incident.put(&DATA_LOST, &id);
            draft.then(put.map_err(|error| BrokerError::Invalid(error.to_string()))?);
        }
        Ok(draft)
    }

    /// The shard can only wait. Its record gets the reason, for operators and `status`.
    fn wait(&self, shard: Option<&crate::facts::Seen<ShardRecord>>, why: &str) -> Next {
        let cause = format!("{}; {why}", self.trouble.cause(&self.node.address));
        let note = shard.and_then(|seen| {
            let known = seen.record.waiting.as_ref();
            let state = self.trouble.word();
            // Alternating causes are one wait: only the first one and another state are written.
            if known.is_some_and(|known| known.state == state) {
                return None;
            }
            let since = known.map_or(self.sight.now, |known| known.since);
            let waiting = Some(Waiting { state: state.to_owned(), cause: cause.clone(), since });
            let key = ShardKey { cluster: self.name.clone(), primary: self.node.address.clone() };
            let next = ShardRecord { waiting, ..seen.record.clone() };
            let mut draft = Draft::new(format!("shard {} of cluster {} waits: {cause}", next.id, self.name));
            draft.guard(key.unchanged(seen)).then(key.put(&next));
            Some(Box::new(draft))
        });
        Next::Wait { why: cause, note }
    }
}

fn commit(draft: Result<Draft, BrokerError>) -> Result<Next, BrokerError> {
    draft.map(|draft| Next::Commit(Box::new(draft)))
}

fn is_cache(cluster: &ClusterTree) -> bool {
    cluster.config.as_ref().is_some_and(|config| config.record.serving.cache)
}
