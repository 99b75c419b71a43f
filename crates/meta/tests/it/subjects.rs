//! On what the contract is tried: the embedded store in process, the same over its own wire, and a real etcd.

use std::fmt;
use std::future::Future;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::Duration;

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::{
    Event, KeyRange, OwnedTask, Put, Range, Result, Revision, Store, Watch, WatchMessage, WatchStream, wire,
};
use capstan_testkit as testkit;

/// No rule takes longer on a busy machine.
const RULE_DEADLINE: Duration = Duration::from_secs(60);
/// How long an event that is due may take on a busy machine.
pub const EVENT_DEADLINE: Duration = Duration::from_secs(20);

/// Which implementation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Subject {
    Embedded,
    Wire,
    Etcd,
}

/// A store to try a rule on. Nobody else writes to it while the rule runs.
pub struct World {
    pub subject: Subject,
    pub store: Store,
    /// The store's revision when the rule began.
    pub base: Revision,
    /// What must live as long as the store.
    _server: Option<Server>,
}

/// Held, not used.
#[expect(dead_code, reason = "they end with the world")]
enum Server {
    Wire(OwnedTask),
    Etcd(Box<testkit::Etcd>),
}

/// Runs one rule on one subject.
pub fn run<F: Future<Output = ()>>(subject: Subject, rule: impl FnOnce(World) -> F) {
    // All rules share one etcd, and rules count revisions: one at a time.
    static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());
    let _turn =
        (subject == Subject::Etcd).then(|| ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner));
    let shared = (subject == Subject::Etcd).then(shared_etcd);
    block_on(async move {
        let world = match shared {
            Some(endpoint) => World::on_shared_etcd(endpoint).await,
            None => World::fresh(subject).await,
        };
        tokio::time::timeout(RULE_DEADLINE, rule(world)).await.expect("the rule did not finish in time");
    });
}

/// Runs a test's future on a runtime of its own.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(future)
}

/// The endpoint of the etcd that all rules of this process share.
fn shared_etcd() -> &'static str {
    static ETCD: OnceLock<(testkit::Etcd, Child)> = OnceLock::new();
    let start = || {
        let etcd = block_on(testkit::Etcd::start()).unwrap();
        let broom = sweep_after_us(&etcd);
        (etcd, broom)
    };
    ETCD.get_or_init(start).0.endpoint()
}

/// What a static holds is never dropped: a child that waits for our end removes the directory.
fn sweep_after_us(etcd: &testkit::Etcd) -> Child {
    let script = "read _; until rm -rf \"$0\" 2>/dev/null; do sleep 0.2; done";
    let mut sweep = Command::new("sh");
    sweep.args(["-c", script]).arg(etcd.dir()).stdin(Stdio::piped()).stdout(Stdio::null());
    sweep.stderr(Stdio::null()).spawn().unwrap()
}

impl World {
    /// A store that nothing was ever written to.
    pub async fn fresh(subject: Subject) -> World {
        let embedded = || Embedded::in_memory(embedded::Options::default());
        match subject {
            Subject::Embedded => World::new(subject, Store::new(embedded()), None).await,
            Subject::Wire => {
                let (endpoint, server) = serve(embedded()).await;
                let store = Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap());
                World::new(subject, store, Some(Server::Wire(server))).await
            }
            Subject::Etcd => {
                let etcd = testkit::Etcd::start().await.unwrap();
                let store = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
                World::new(subject, store, Some(Server::Etcd(Box::new(etcd)))).await
            }
        }
    }

    /// A key space of its own in the shared etcd, without leases that others left to expire.
    async fn on_shared_etcd(endpoint: &str) -> World {
        let options = EtcdOptions::new([endpoint]).prefix(fresh_prefix());
        let store = Store::new(Etcd::connect(options).await.unwrap());
        for lease in store.leases().await.unwrap() {
            // It may expire at this very moment.
            let _ = store.lease_revoke(lease).await;
        }
        World::new(Subject::Etcd, store, None).await
    }

    async fn new(subject: Subject, store: Store, server: Option<Server>) -> World {
        let base = store.range(Range::one("nothing")).await.unwrap().revision;
        World { subject, store, base, _server: server }
    }

    /// The revision that is `n` changes after the beginning.
    pub fn rev(&self, n: i64) -> Revision {
        Revision(self.base.0 + n)
    }

    /// The store's present revision.
    pub async fn now(&self) -> Revision {
        self.store.range(Range::one("nothing")).await.unwrap().revision
    }

    /// Puts, and returns the revision.
    pub async fn put(&self, key: &str, value: &str) -> Revision {
        self.store.put(Put::new(key.to_owned(), value.to_owned())).await.unwrap().revision
    }

    /// Puts several keys, one revision each, with their own names as values.
    pub async fn put_all(&self, keys: &[&str]) {
        for key in keys {
            self.put(key, key).await;
        }
    }

    /// The keys that a read finds.
    pub async fn keys(&self, range: Range) -> Vec<String> {
        let found = self.store.range(range).await.unwrap();
        found.kvs.iter().map(|kv| kv.key_text().into_owned()).collect()
    }

    /// Watches everything from a revision on.
    pub async fn watch_all(&self, from: Revision) -> Watched {
        self.watch(Watch::from(KeyRange::all(), from)).await
    }

    /// Begins a watch that must begin.
    pub async fn watch(&self, watch: Watch) -> Watched {
        Watched { stream: self.store.watch(watch).await.unwrap() }
    }

    /// Why a watch ends, at once or from its stream.
    pub async fn watch_error(&self, watch: Watch) -> capstan_meta::MetaError {
        let mut stream = match self.store.watch(watch).await {
            Ok(stream) => stream,
            Err(error) => return error,
        };
        loop {
            match stream.next().await {
                Ok(WatchMessage::Progress(_)) => {}
                Ok(message) => panic!("expected the watch to end, got {message:?}"),
                Err(error) => return error,
            }
        }
    }
}

/// A key prefix that nobody else in this process has.
pub fn fresh_prefix() -> String {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    format!("/test-{}/", NEXT.fetch_add(1, Ordering::Relaxed))
}

/// Serves a store on the etcd wire; ends when the task is dropped.
pub async fn serve(store: Embedded) -> (String, OwnedTask) {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let endpoint = format!("http://{}", listener.local_addr().unwrap());
    let serving = async move {
        wire::serve(listener, Arc::new(store), wire::Options::default(), std::future::pending())
            .await
            .unwrap();
    };
    (endpoint, OwnedTask::spawn(serving))
}

/// An open watch, and what a test wants to know of it.
pub struct Watched {
    pub stream: Box<dyn WatchStream>,
}

impl Watched {
    /// The next events, however many come together.
    pub async fn batch(&mut self) -> (Revision, Arc<[Event]>) {
        loop {
            let next = tokio::time::timeout(EVENT_DEADLINE, self.stream.next()).await;
            match next.expect("no event in time").unwrap() {
                WatchMessage::Events { revision, events } => return (revision, events),
                WatchMessage::Progress(_) => {}
            }
        }
    }

    /// Events until there are `count`; more is a failure.
    pub async fn events(&mut self, count: usize) -> Vec<Event> {
        let mut all = Vec::new();
        while all.len() < count {
            all.extend(self.batch().await.1.iter().cloned());
        }
        assert_eq!(all.len(), count, "{all:#?}");
        all
    }

    /// Asks for progress until everything up to `revision` is known to have been delivered; events are a failure.
    pub async fn quiet_until(&mut self, revision: Revision) {
        let quiet = async {
            loop {
                self.stream.request_progress().await.unwrap();
                let next = tokio::time::timeout(Duration::from_millis(200), self.stream.next()).await;
                match next {
                    Ok(Ok(WatchMessage::Progress(at))) if at >= revision => return,
                    Ok(Ok(WatchMessage::Progress(_))) | Err(_) => {}
                    Ok(other) => panic!("expected silence, got {other:?}"),
                }
            }
        };
        tokio::time::timeout(EVENT_DEADLINE, quiet).await.expect("no progress in time");
    }
}

/// `PUT key=value @revision` or `DELETE key @revision`, relative to the world's beginning.
pub fn shown(world: &World, events: &[Event]) -> Vec<String> {
    let one = |event: &Event| {
        let (key, at) = (event.kv.key_text(), event.kv.mod_revision.0 - world.base.0);
        match event.kind() {
            capstan_meta::EventKind::Put => {
                format!("PUT {key}={} @{at}", String::from_utf8_lossy(&event.kv.value))
            }
            capstan_meta::EventKind::Delete => format!("DELETE {key} @{at}"),
        }
    };
    events.iter().map(one).collect()
}

/// The error of a call that must fail.
pub fn error<T: fmt::Debug>(result: Result<T>) -> capstan_meta::MetaError {
    result.expect_err("must be refused")
}
