//! A node: one engine, the copies of some tokens, and the API. What a daemon starts.

use std::collections::BTreeSet;
use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::Duration;

use capstan_access::tls::LiveTls;
use capstan_control::keys::{HostId, ServiceName};
use capstan_log::HolderId;
use capstan_log::keys::LogKeys;
use capstan_meta::record::{Extra, Key};
use capstan_meta::session::Session;
use capstan_meta::settle::Next;
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{OwnedTask, Store, Txn, clock};
use capstan_steward::{Holder, Joining, Logs, Owner, Policy, WantedLog};
use tokio::sync::Semaphore;
use tokio_util::sync::CancellationToken;

use crate::api::Catalogue;
use crate::api::archive::follow_schedules;
use crate::api::nodes::{facts_of, node_key};
use crate::data::pace::Pace;
use crate::data::tokens::Tokens;
use crate::decide::NodeState;
use crate::error::DocsError;
use crate::guarded::change;
use crate::id::Token;
use crate::jobs::follow_jobs;
use crate::keys::{AliveKey, ClusterKey, NodeKey, Nodes, SecretKey};
use crate::metrics::DocsMetrics;
use crate::queue::Queue;
use crate::report::{follow_self, sweep, weigh};
use crate::router::{Router, ranges};
use crate::spec::ClusterSpec;
use crate::status::{NodeRecord, NodeStatus};
use crate::storage::DiskEngine;

/// The service, as holders and drains know it.
pub const SERVICE: &str = "docs";

/// How long the first node waits for the others before it deals the tokens to those that are there.
const GATHER: Duration = Duration::from_secs(8);
/// Pause before something that failed is tried again.
const RETRY: Duration = Duration::from_millis(250);
/// How often the states of nodes are looked at.
const STATES: Duration = Duration::from_millis(500);
/// How often copies that the records do not name any more are looked for.
const TIDY: Duration = Duration::from_secs(5);

/// Whether this is the address of a queue that a node can use.
#[must_use]
pub fn is_queue(url: &str) -> bool {
    crate::queue::is_url(url)
}

/// What a node is.
#[derive(Clone, Debug)]
pub struct NodeOptions {
    /// The host that it runs on: its name.
    pub id: HostId,
    /// Where its log and its engine are.
    pub dir: PathBuf,
    /// Where the backups are that clients ask it for.
    pub backups: PathBuf,
    /// Where clients and other nodes reach its API.
    pub http: SocketAddr,
    /// Its certificate and the authority of the cluster, if its API is served over TLS; then it reaches other nodes over
    /// TLS only.
    pub tls: Option<LiveTls>,
    /// The cluster that the first node creates.
    pub cluster: ClusterSpec,
    /// Bytes of documents that are kept in memory.
    pub cache_bytes: u64,
    /// The RabbitMQ that new copies of tokens come over, as `amqp://...`; none: they come directly.
    pub queue: Option<String>,
    /// Bytes per second of all copies of tokens that leave the node together; none: no limit.
    pub move_bytes_per_second: Option<NonZeroU64>,
    /// What the node counts.
    pub metrics: DocsMetrics,
}

/// A node whose engine is open. Its holder is started with its owner, and then the node itself.
pub struct Prepared {
    options: NodeOptions,
    cluster: ClusterSpec,
    secret: String,
    joining: Joining,
    tokens: Arc<Tokens>,
    store: Store,
}

impl std::fmt::Debug for Prepared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Prepared({})", self.options.id)
    }
}

/// A node that runs. Clones are the same node; its tasks end with the last of them.
#[derive(Clone)]
pub struct Node {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub(crate) id: HostId,
    pub(crate) router: Router,
    pub(crate) cluster: ClusterSpec,
    pub(crate) started: u64,
    pub(crate) http: SocketAddr,
    pub(crate) tls: Option<LiveTls>,
    pub(crate) metrics: DocsMetrics,
    /// Cancelled when streams have to end, because the node stops.
    pub(crate) closing: CancellationToken,
    /// Where the backups are that clients ask for.
    pub(crate) backups: PathBuf,
    /// One backup or restore at a time.
    pub(crate) one_archive: Arc<Semaphore>,
    pub(crate) archiving: Mutex<Option<OwnedTask>>,
    holder: Holder,
    _tasks: Vec<OwnedTask>,
    /// Tasks that look at the node itself.
    chores: Mutex<Vec<OwnedTask>>,
}

impl Inner {
    /// The node's name among the holders of logs.
    pub(crate) fn holder_id(&self) -> &HolderId {
        self.holder.id()
    }
}

impl std::fmt::Debug for Node {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Node({})", self.inner.id)
    }
}

impl Prepared {
    /// Joins the cluster or creates it, and opens the engine.
    pub async fn open(options: NodeOptions, store: &Store) -> Result<Prepared, DocsError> {
        let cluster = create_once(store, &ClusterKey {}, &options.cluster).await?;
        let secret = create_once(store, &SecretKey {}, &random_secret()).await?;
        // The first nodes are there before the tokens, and take part whatever the setting is.
        let has_tokens =
            store.list(&LogKeys {}).await?.iter().any(|(key, _)| Token::of_log(&key.log).is_some());
        let joining = if cluster.auto_add || !has_tokens { Joining::AtOnce } else { Joining::WhenAdded };
        let since = clock::since_epoch().as_secs();
        let record = NodeRecord { state: NodeState::New, since, extra: Extra::default() };
        create_once(store, &NodeKey { node: options.id.clone() }, &record).await?;
        let (dir, cache) = (options.dir.join("engine"), options.cache_bytes);
        let engine = tokio::task::spawn_blocking(move || {
            std::fs::create_dir_all(&dir)
                .map_err(|error| DocsError::Broken(format!("cannot make {}: {error}", dir.display())))?;
            Ok::<_, DocsError>(DiskEngine::open(&dir, cache)?)
        });
        let engine = engine.await.map_err(|error| DocsError::Broken(error.to_string()))??;
        let pace = Arc::new(Pace::new(options.move_bytes_per_second));
        let queue = options.queue.as_deref();
        let queue = queue.map(|url| Queue::start(url, options.id.as_str(), &secret, Arc::clone(&pace)));
        options.metrics.begin();
        let tokens = Arc::new(Tokens::new(Arc::new(engine), queue, pace, options.metrics.clone()));
        Ok(Prepared { options, cluster, secret, joining, tokens, store: store.clone() })
    }

    /// How the node's holder takes part if it is new.
    #[must_use]
    pub fn joining(&self) -> Joining {
        self.joining
    }

    /// What the node's holder tells about its logs.
    #[must_use]
    pub fn owner(&self) -> Arc<dyn Owner> {
        self.tokens.clone()
    }

    /// Begins to serve: the holder keeps the node's copies.
    pub async fn start(self, holder: Holder, session: &Session) -> Result<Node, DocsError> {
        let Prepared { options, cluster, secret, joining: _, tokens, store } = self;
        let view = Arc::new(View::open(store.clone(), ranges(), ViewOptions::default()).await?);
        let queue = tokens.queue().map(Queue::report);
        let status =
            NodeStatus { http: options.http, building: 0, unusable: 0, queue, extra: Extra::default() };
        session.declare(&AliveKey { node: options.id.clone() }, &status);
        let (digits, tls) = (cluster.token_digits, options.tls.as_ref());
        let router = Router::new(store.clone(), view, digits, tokens.clone(), secret, tls)?;
        let tasks = vec![
            OwnedTask::spawn(create_tokens(store, cluster.clone())),
            OwnedTask::spawn(tidy(holder.clone(), tokens, cluster.token_digits)),
        ];
        let started = clock::since_epoch().as_secs();
        let chores = Mutex::default();
        let closing = CancellationToken::new();
        let inner = Inner {
            closing,
            id: options.id,
            router,
            cluster,
            started,
            http: options.http,
            tls: options.tls,
            metrics: options.metrics,
            backups: options.backups,
            one_archive: Arc::new(Semaphore::new(1)),
            archiving: Mutex::default(),
            holder,
            _tasks: tasks,
            chores,
        };
        let node = Node { inner: Arc::new(inner) };
        let chores = [
            OwnedTask::spawn(finish_drops(Arc::downgrade(&node.inner))),
            OwnedTask::spawn(follow_states(Arc::downgrade(&node.inner))),
            OwnedTask::spawn(follow_jobs(Arc::downgrade(&node.inner))),
            OwnedTask::spawn(follow_self(Arc::downgrade(&node.inner), session.clone())),
            OwnedTask::spawn(sweep(Arc::downgrade(&node.inner))),
            OwnedTask::spawn(weigh(Arc::downgrade(&node.inner))),
            OwnedTask::spawn(follow_schedules(Arc::downgrade(&node.inner))),
        ];
        node.inner.chores.lock().unwrap_or_else(PoisonError::into_inner).extend(chores);
        Ok(node)
    }
}

impl Node {
    /// Its name.
    #[must_use]
    pub fn id(&self) -> &HostId {
        &self.inner.id
    }

    /// Its name among the holders of logs.
    pub(crate) fn holder_id(&self) -> &HolderId {
        self.inner.holder_id()
    }

    /// Waits until every token has a primary.
    pub async fn serving(&self) {
        loop {
            let snapshot = self.inner.router.view.snapshot();
            let all = Token::all(self.inner.cluster.token_digits)
                .all(|token| Router::config(&snapshot, token).is_some());
            if all {
                return;
            }
            tokio::time::sleep(RETRY).await;
        }
    }

    /// Ends the streams of changes, which would not end by themselves.
    pub fn close_streams(&self) {
        self.inner.closing.cancel();
    }

    /// Stops holding tokens; copies stay on disk.
    pub async fn stop(&self) -> Result<(), DocsError> {
        if let Some(queue) = self.inner.router.tokens().queue() {
            queue.stop();
        }
        Ok(self.inner.holder.stop().await?)
    }
}

/// Writes a record if there is none, and answers with the one that is there.
async fn create_once<K: Key>(store: &Store, key: &K, record: &K::Record) -> Result<K::Record, DocsError>
where
    K::Record: Clone,
{
    change(store, key, |seen, _| match seen {
        Some(seen) => Ok(Next::Done(seen.record.clone())),
        None => Ok(Next::Commit(Txn::new().when(key.absent()).then(key.put(record)))),
    })
    .await
}

fn random_secret() -> String {
    let bytes: [u8; 32] = rand::random();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Deals the tokens when enough nodes are there. Every node does it; the records decide.
async fn create_tokens(store: Store, cluster: ClusterSpec) {
    let logs = loop {
        match Logs::open(store.clone(), Policy::default()).await {
            Ok(logs) => break logs,
            Err(error) => tracing::warn!(%error, "the records of the logs cannot be read; trying again"),
        }
        tokio::time::sleep(RETRY).await;
    };
    let until = tokio::time::Instant::now() + GATHER;
    while tokio::time::Instant::now() < until && up(&logs) < cluster.copies {
        tokio::time::sleep(RETRY).await;
    }
    let Ok(service) = SERVICE.parse::<ServiceName>() else { return };
    let wanted = WantedLog::new(service, cluster.copies).committed_on(cluster.min_copies);
    for token in Token::all(cluster.token_digits) {
        let Ok(log) = token.log() else { return };
        loop {
            match logs.create(&log, &wanted).await {
                Ok(_) => break,
                Err(error) => tracing::debug!(%token, %error, "token was not created; trying again"),
            }
            tokio::time::sleep(RETRY).await;
        }
    }
}

fn up(logs: &Logs) -> usize {
    let facts = logs.facts();
    let service = facts.service(SERVICE);
    facts.holders.iter().filter(|holder| Some(holder.service) == service && holder.is_up()).count()
}

/// Completes drops of collections that were cut off.
async fn finish_drops(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(TIDY).await;
        let Some(inner) = inner.upgrade() else { return };
        let node = Node { inner };
        if let Err(error) = Catalogue::of(&node).finish_drops().await {
            tracing::debug!(%error, "dropped collections are not gone yet; trying again");
        }
    }
}

/// Keeps the states of all nodes as the facts say. Every node does it; the records decide.
async fn follow_states(inner: Weak<Inner>) {
    loop {
        tokio::time::sleep(STATES).await;
        let Some(inner) = inner.upgrade() else { return };
        let (store, snapshot) = (inner.router.store.clone(), inner.router.view.snapshot());
        let nodes: Vec<HostId> = snapshot.list(&Nodes {}).iter().map(|(key, _)| key.node.clone()).collect();
        for node in nodes {
            let Some(facts) = facts_of(&snapshot, &node) else { continue };
            let key = node_key(&node);
            let changed = change(&store, &key, |seen, progress| {
                let next = seen.and_then(|seen| {
                    let state = seen.record.state;
                    Some((seen, facts.event(state).and_then(|event| state.step(event))?))
                });
                match next {
                    Some((seen, state)) if progress.committed == 0 => {
                        let next = NodeRecord { state, ..seen.record.clone() };
                        Ok(Next::Commit(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next))))
                    }
                    Some(_) | None => Ok(Next::Done(())),
                }
            });
            if let Err(error) = changed.await {
                tracing::debug!(%node, %error, "the state of a node was not changed; trying again");
            }
        }
    }
}

/// Deletes the data of tokens that other nodes hold instead of this one.
async fn tidy(holder: Holder, tokens: Arc<Tokens>, digits: u8) {
    loop {
        tokio::time::sleep(TIDY).await;
        let snapshot = holder.view().snapshot();
        let logs = snapshot.list(&LogKeys {});
        let left: BTreeSet<Token> = logs
            .iter()
            .filter(|(_, config)| !config.record.members().any(|member| member == holder.id()))
            .filter_map(|(key, _)| Token::of_log(&key.log))
            .collect();
        let tokens = Arc::clone(&tokens);
        match tokio::task::spawn_blocking(move || tokens.tidy(digits, &left)).await {
            Ok(Ok(())) => {}
            Ok(Err(error)) => tracing::warn!(%error, "data that is not needed was not deleted; trying again"),
            Err(_) => return,
        }
    }
}
