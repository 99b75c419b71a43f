//! Nodes and moves, for operators: read from the metadata, whether or not a node answers.

use std::sync::Arc;

use capstan_control::keys::HostId;
use capstan_log::keys::LogKeys;
use capstan_log::{HolderId, LogConfig};
use capstan_meta::record::Key as _;
use capstan_meta::settle::Next;
use capstan_meta::view::{Ranges, Snapshot, View, ViewOptions};
use capstan_meta::{Store, Txn};
use capstan_steward::holder::id_of;
use capstan_steward::keys::{HolderKey, Holders};
use capstan_steward::{Logs, Policy, StewardError};
use serde::Serialize;

use crate::decide::{NodeFacts, NodeState};
use crate::error::DocsError;
use crate::guarded::change;
use crate::id::Token;
use crate::keys::{Alive, AliveKey, ClusterKey, Jobs, NodeKey, Nodes as NodeKeys};
use crate::node::SERVICE;
use crate::router::Router;
use crate::status::Job;

/// A node as operators see it.
#[derive(Clone, Debug, Serialize)]
pub struct NodeLine {
    /// Its host.
    pub node: String,
    /// Its state.
    pub state: NodeState,
    /// Where its API is; nothing while it is down.
    pub http: Option<String>,
    /// Tokens that it leads.
    pub masters: usize,
    /// Tokens of which it has a copy.
    pub copies: usize,
}

/// A token that moves.
#[derive(Clone, Debug, Serialize)]
pub struct MoveLine {
    /// The token.
    pub token: String,
    /// What happens: `copying`, or `leaving` when the new copy is complete.
    pub state: &'static str,
    /// The node that gets a copy.
    pub learner: Option<String>,
    /// The node whose copy goes.
    pub leaving: Option<String>,
    /// How far the copy is, as its receiver says.
    pub job: Option<Job>,
}

impl MoveLine {
    /// The part of the copy that is done, in percent.
    #[must_use]
    pub fn percent(&self) -> Option<u64> {
        let job = self.job.as_ref()?;
        Some((job.cursor * 100).checked_div(job.total).unwrap_or(0).min(100))
    }

    /// Seconds that the rest of the copy takes if it goes on as it did, from the time `now` on.
    #[must_use]
    pub fn remaining(&self, now: u64) -> Option<u64> {
        let job = self.job.as_ref().filter(|job| job.cursor > 0)?;
        let (took, left) = (now.saturating_sub(job.started_at), job.total.saturating_sub(job.cursor));
        Some(took * left / job.cursor)
    }
}

/// The nodes of a cluster.
#[derive(Debug)]
pub struct Nodes {
    store: Store,
    view: Arc<View>,
}

impl Nodes {
    /// Reads what is known.
    pub async fn open(store: Store) -> Result<Nodes, DocsError> {
        let view = View::open(store.clone(), ranges(), ViewOptions::default()).await?;
        Ok(Nodes { store, view: Arc::new(view) })
    }

    /// The same from the view of a running node, which covers all of it.
    pub(super) async fn of(router: &Router) -> Result<Nodes, DocsError> {
        router.refresh().await?;
        Ok(Nodes { store: router.store.clone(), view: Arc::clone(&router.view) })
    }

    /// Every node, by name.
    #[must_use]
    pub fn list(&self) -> Vec<NodeLine> {
        let snapshot = self.view.snapshot();
        let records = snapshot.list(&NodeKeys {});
        let lines = records.iter().map(|(key, found)| {
            let alive = snapshot.get(&AliveKey { node: key.node.clone() }).ok().flatten();
            let (masters, copies) = counts(&snapshot, &key.node);
            NodeLine {
                node: key.node.to_string(),
                state: found.record.state,
                http: alive.map(|alive| alive.record.http.to_string()),
                masters,
                copies,
            }
        });
        lines.collect()
    }

    /// Every token that moves.
    #[must_use]
    pub fn moves(&self) -> Vec<MoveLine> {
        let snapshot = self.view.snapshot();
        let logs = tokens(&snapshot);
        let moving = logs.into_iter().filter(|(_, log)| log.learner.is_some() || log.leaving.is_some());
        let name = |holder: &HolderId| holder.as_str().trim_start_matches("docs.").to_owned();
        let jobs = snapshot.list(&Jobs {});
        let job = |token: Token| {
            let job = jobs.iter().find(|(key, _)| key.token.as_str() == token.to_string());
            job.map(|(_, found)| found.record.clone())
        };
        let lines = moving.map(|(token, log)| MoveLine {
            job: job(token).filter(|_| log.learner.is_some()),
            token: token.to_string(),
            state: if log.learner.is_some() { "copying" } else { "leaving" },
            learner: log.learner.as_ref().map(name),
            leaving: log.leaving.as_ref().map(name),
        });
        lines.collect()
    }

    /// Has the tokens of a node moved elsewhere. Refused if too few nodes would be left for the copies of a token: it
    /// would never end.
    pub async fn retire(&self, node: &HostId) -> Result<(), DocsError> {
        let snapshot = self.view.snapshot();
        self.state_of(&snapshot, node)?;
        let copies = self.store.read(&ClusterKey {}).await?.map_or(0, |found| found.record.copies);
        let stays = |line: &NodeLine| {
            line.node != node.as_str() && !matches!(line.state, NodeState::Retiring | NodeState::Retired)
        };
        let left = self.list().iter().filter(|line| stays(line)).count();
        if left < copies {
            return Err(DocsError::refused(format!(
                "node {node} cannot retire: {left} nodes would be left for {copies} copies of each token; add a node first"
            )));
        }
        Ok(self.logs().await?.retire(&holder_of(node)?).await?)
    }

    /// Has a node take part.
    pub async fn add(&self, node: &HostId) -> Result<(), DocsError> {
        match self.state_of(&self.view.snapshot(), node)? {
            state @ (NodeState::Retiring | NodeState::Retired) => Err(DocsError::refused(format!(
                "node {node} is {}: that cannot be undone; when it is Retired, stop it, delete it (capstan docs delete {node}) and start it again",
                state.name()
            ))),
            NodeState::New
            | NodeState::CreCluster
            | NodeState::Onboarding
            | NodeState::Syncing
            | NodeState::Ok
            | NodeState::NeedSync => Ok(self.logs().await?.keep(&holder_of(node)?).await?),
        }
    }

    /// Forgets a node that has stopped and holds nothing: it is Retired, or it never came back and its copies were made
    /// elsewhere. If it starts again it is a new one.
    pub async fn delete(&self, node: &HostId) -> Result<(), DocsError> {
        let snapshot = self.view.snapshot();
        let state = self.state_of(&snapshot, node)?;
        let holder = holder_of(node)?;
        let held =
            tokens(&snapshot).iter().filter(|(_, log)| log.members().any(|one| *one == holder)).count();
        if held > 0 {
            return Err(DocsError::refused(format!(
                "node {node} is {} and holds {held} tokens; retire it first (capstan docs retire {node}), or wait until its copies were made elsewhere",
                state.name()
            )));
        }
        if snapshot.get(&AliveKey { node: node.clone() }).ok().flatten().is_some() {
            return Err(DocsError::refused(format!("node {node} is still running; stop it first")));
        }
        let logs = self.logs().await?;
        let settled = match state {
            // One that starts again takes part again.
            NodeState::Retired => logs.keep(&holder).await,
            // The steward forgets a holder that retires, is away and holds nothing.
            NodeState::New
            | NodeState::CreCluster
            | NodeState::Onboarding
            | NodeState::Syncing
            | NodeState::Ok
            | NodeState::NeedSync
            | NodeState::Retiring => logs.retire(&holder).await,
        };
        match settled {
            // The steward may have forgotten it already.
            Ok(()) | Err(StewardError::NoSuchHolder(_)) => {}
            Err(error) => return Err(error.into()),
        }
        let key = node_key(node);
        change(&self.store, &key, |seen, _| match seen {
            None => Ok(Next::Done(())),
            Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
        })
        .await
    }

    fn state_of(&self, snapshot: &Snapshot, node: &HostId) -> Result<NodeState, DocsError> {
        let found = snapshot.get(&node_key(node)).map_err(|bad| DocsError::Broken(bad.to_string()))?;
        let unknown = || DocsError::NotFound(format!("there is no node {node}; see: capstan docs nodes"));
        found.map(|found| found.record.state).ok_or_else(unknown)
    }

    async fn logs(&self) -> Result<Logs, DocsError> {
        Ok(Logs::open(self.store.clone(), Policy::default()).await?)
    }
}

fn ranges() -> Ranges {
    Ranges::new().with(&NodeKeys {}).with(&Alive {}).with(&Jobs {}).with(&LogKeys {}).with(&Holders {})
}

fn holder_of(node: &HostId) -> Result<HolderId, DocsError> {
    Ok(id_of(node, &SERVICE.parse()?)?)
}

/// The tokens and the records of their logs.
fn tokens(snapshot: &Snapshot) -> Vec<(Token, LogConfig)> {
    let logs = snapshot.list(&LogKeys {});
    logs.iter().filter_map(|(key, found)| Some((Token::of_log(&key.log)?, found.record.clone()))).collect()
}

fn counts(snapshot: &Snapshot, node: &HostId) -> (usize, usize) {
    let Ok(holder) = holder_of(node) else { return (0, 0) };
    let logs = tokens(snapshot);
    let masters = logs.iter().filter(|(_, log)| log.primary == holder).count();
    (masters, logs.iter().filter(|(_, log)| log.holders.contains(&holder)).count())
}

/// What decides about the state of a node.
pub(crate) fn facts_of(snapshot: &Arc<Snapshot>, node: &HostId) -> Option<NodeFacts> {
    let holder = holder_of(node).ok()?;
    let logs = tokens(snapshot);
    let is_copy = |log: &LogConfig| log.holders.contains(&holder);
    let holder_record = snapshot.get(&HolderKey { holder: holder.clone() }).ok().flatten();
    let others = snapshot.list(&NodeKeys {});
    let mut others = others.iter().filter(|(key, _)| key.node != *node);
    Some(NodeFacts {
        up: snapshot.get(&AliveKey { node: node.clone() }).ok().flatten().is_some(),
        copies: logs.iter().filter(|(_, log)| is_copy(log)).count(),
        behind: logs.iter().filter(|(_, log)| is_copy(log) && !log.is_in_sync(&holder)).count(),
        learning: logs.iter().filter(|(_, log)| log.learner.as_ref() == Some(&holder)).count(),
        retiring: holder_record.is_some_and(|found| found.record.retiring),
        first: others.all(|(_, found)| matches!(found.record.state, NodeState::New | NodeState::CreCluster)),
    })
}

/// The key of a node's record.
pub(crate) fn node_key(node: &HostId) -> NodeKey {
    NodeKey { node: node.clone() }
}
