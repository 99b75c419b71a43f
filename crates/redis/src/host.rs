//! What does a host do for Redis? It keeps its nodes in their desired state, and frees those that it has
//! emptied.
//!
//! The proxy gets pushes from coordinators; the nodes behind it follow the metadata directly: a view of the
//! tree becomes a list of [`Wanted`] for the agent, and a node that the agent has emptied leaves quarantine.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::tasks::TaskError;
use capstan_meta::Store;
use capstan_meta::view::{View, ViewOptions};
use sha2::{Digest as _, Sha256};
use tokio::time::{Instant, timeout};
use tokio_util::sync::CancellationToken;

use crate::address::Address;
use crate::agent::{Agent, Incarnation, Kind, NodeReport, NodeState, Order, Persistence, Role, Wanted};
use crate::api::{NodeWish, node_wishes};
use crate::broker::end_quarantine;
use crate::check::config_unreadable;
use crate::facts::{HostTree, Tree};
use crate::keys::ClusterName;
use crate::spec::{self, Acks};
use crate::status::Place;

/// How often the agent's reports are checked without a change of the metadata: how long a node stays in
/// quarantine after it was emptied.
const LOOK_EVERY: Duration = Duration::from_millis(500);

/// The passwords of nodes, or the secret they are derived from; all hosts of an installation share it.
#[derive(Clone)]
pub struct NodeSecret(Secret);

#[derive(Clone)]
enum Secret {
    /// Each cluster has a password derived from this.
    MadeFrom(Arc<str>),
    /// Chosen by the operator of external nodes; `None`: no password.
    Given(Option<Arc<str>>),
}

impl NodeSecret {
    /// Passwords derived from this text, for nodes that the host runs.
    #[must_use]
    pub fn new(text: &str) -> NodeSecret {
        NodeSecret(Secret::MadeFrom(text.into()))
    }

    /// The password of external nodes.
    #[must_use]
    pub fn given(password: Option<&str>) -> NodeSecret {
        NodeSecret(Secret::Given(password.map(Into::into)))
    }

    /// The password of a cluster's nodes: the same for all of them, since replicas connect to primaries on
    /// other hosts, and another one for every incarnation of the name.
    fn password(&self, owner: Option<&(ClusterName, Incarnation)>) -> Option<String> {
        let text = match &self.0 {
            Secret::MadeFrom(text) => text,
            Secret::Given(password) => return password.as_deref().map(str::to_owned),
        };
        let owner = owner.map_or_else(String::new, |(name, incarnation)| format!("{name}/{incarnation}"));
        let digest = Sha256::new().chain_update(&**text).chain_update([0]).chain_update(owner).finalize();
        Some(digest.iter().map(|byte| format!("{byte:02x}")).collect())
    }
}

impl fmt::Debug for NodeSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("NodeSecret(..)")
    }
}

/// The identity of a host.
#[derive(Clone, Debug)]
pub struct Identity {
    /// Where its proxy listens.
    pub proxy: Address,
    /// What runs its nodes.
    pub nodes: Kind,
    /// The secret of their passwords.
    pub secret: NodeSecret,
}

/// The desired state of every node of this host. Where the tree does not say, it is what it was.
#[must_use]
pub fn wanted(tree: &Tree, me: &Identity, before: &[Wanted]) -> Vec<Wanted> {
    let mut wanted: Vec<Wanted> =
        node_wishes(tree, &me.proxy).into_iter().map(|wish| one_wanted(me, wish)).collect();
    let owners = tree.host(&me.proxy).map(|host| &host.owners);
    let is_known = |node: &Address| owners.is_some_and(|owners| owners.contains_key(node));
    for former in before {
        if is_known(&former.node) && !wanted.iter().any(|next| next.node == former.node) {
            wanted.push(former.clone());
        }
    }
    wanted
}

fn one_wanted(me: &Identity, wish: NodeWish) -> Wanted {
    let owner = wish.owner.map(|(name, incarnation)| (name, Incarnation(incarnation)));
    let password = me.secret.password(owner.as_ref());
    Wanted {
        node: wish.node,
        kind: me.nodes,
        owner,
        max_memory: (wish.max_memory > 0).then_some(wish.max_memory),
        eviction: wish.eviction,
        persistence: persistence(wish.persistence),
        password,
        former: wish.former,
        peers: wish.peers,
    }
}

/// The roles of a host's nodes.
pub fn roles<'t>(tree: &'t Tree, host: &'t HostTree) -> impl Iterator<Item = (Address, Order)> {
    host.copies.iter().map(|(node, seen)| {
        let role = seen.record.replica_of.clone().map_or(Role::Primary, Role::ReplicaOf);
        let cluster = tree.cluster(&seen.record.cluster_name);
        let shard = cluster.and_then(|cluster| cluster.shards.get(node));
        let config = cluster.and_then(|cluster| cluster.config.as_ref());
        let name = &seen.record.cluster_name;
        // The stricter one, if it cannot be read.
        let acks = match (config, cluster) {
            (Some(seen), _) => seen.record.serving.acks,
            (None, Some(cluster)) if config_unreadable(tree, name, cluster).is_some() => Acks::Replica,
            (None, _) => Acks::default(),
        };
        let order = match shard.map(|seen| &seen.record) {
            Some(shard) => Order {
                role,
                succession: shard.succession,
                alone: shard.is_only(node),
                established: shard.established,
                acks,
            },
            None => Order::from(role),
        };
        (node.clone(), order)
    })
}

/// The view options of a host: with frequent signs of life from the store, because roles change only with
/// them.
#[must_use]
pub fn view_options() -> ViewOptions {
    ViewOptions { heartbeat: LOOK_EVERY, ..ViewOptions::default() }
}

fn persistence(asked: spec::Persistence) -> Persistence {
    match asked {
        spec::Persistence::None => Persistence::None,
        spec::Persistence::Aof => Persistence::Aof,
        spec::Persistence::Rdb => Persistence::Rdb,
    }
}

/// Nodes in quarantine that are empty.
fn emptied(host: &HostTree, report: impl Fn(&Address) -> Option<NodeReport>) -> Vec<Address> {
    let empty = |node: &Address| {
        report(node).is_some_and(|report| matches!(report.state, NodeState::Ready { owner: None, .. }))
    };
    host.quarantine.keys().filter(|node| empty(node)).cloned().collect()
}

/// Keeps the nodes of this host until it is stopped. The view covers [`Tree::ranges`].
pub async fn keep(
    me: &Identity,
    agent: &Agent,
    store: &Store,
    view: &View,
    stop: &CancellationToken,
) -> Result<(), TaskError> {
    let (mut changes, mut nodes) = (view.changes(), Vec::new());
    loop {
        let tree = Tree::of(&changes.mark_seen());
        // Roles first: a node must not be kept in a wrong role for a moment.
        if let Some(host) = tree.host(&me.proxy) {
            let epoch = host.epoch.as_ref().map(|seen| seen.record).unwrap_or_default();
            agent.set_roles(epoch, roles(&tree, host));
        }
        if let Some(at) = Instant::now().checked_sub(view.staleness()) {
            agent.confirm_roles(at);
        }
        nodes = wanted(&tree, me, &nodes);
        agent.want(nodes.clone());
        free_emptied(me, agent, store, &tree).await;
        tokio::select! {
            () = stop.cancelled() => return Ok(()),
            next = timeout(LOOK_EVERY, changes.next()) => {
                if let Ok(None) = next {
                    return Err("the view has ended".into());
                }
            }
        }
    }
}

/// A failure is logged and retried at the next check.
async fn free_emptied(me: &Identity, agent: &Agent, store: &Store, tree: &Tree) {
    let Some(host) = tree.host(&me.proxy) else { return };
    let Some(epoch) = host.epoch.as_ref().map(|seen| seen.record) else { return };
    let reports = agent.nodes().reports();
    for node in emptied(host, |node| reports.get(node).cloned()) {
        let place = Place { proxy: me.proxy.clone(), node };
        if let Err(error) = end_quarantine(store, &place, epoch).await {
            tracing::warn!(node = %place.node, %error, "cannot free an emptied node");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn passwords_differ_between_clusters_and_their_lives() {
        let secret = NodeSecret::new("s");
        let name: ClusterName = "c".parse().unwrap();
        let of = |life| secret.password(Some(&(name.clone(), Incarnation(life))));
        assert_eq!(of(1), of(1));
        assert_ne!(of(1), of(2));
        assert_ne!(of(1), secret.password(None));
        assert_ne!(of(1), NodeSecret::new("t").password(Some(&(name.clone(), Incarnation(1)))));
        assert_eq!(NodeSecret::given(Some("p")).password(None).as_deref(), Some("p"));
        assert_eq!(NodeSecret::given(None).password(Some(&(name, Incarnation(1)))), None);
    }
}
