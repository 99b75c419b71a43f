//! Coordinators: read the metadata, push it to the proxies, ping them, report failures, complete recorded
//! work.
//!
//! Any number of them, independent of each other: each has a view of the tree and a lease in the store, and
//! all of them do the same. What must happen once is a guarded transaction; what may happen twice is a
//! message with an epoch.
//!
//! Read first: [`Coordinator`] (how it is run), `watch` (its work for one proxy), [`Completer`] (its decisions), [`Timing`].

mod complete;
mod granter;
mod mover;
mod proxies;
mod watch;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use capstan_control::keys::HostId;
use capstan_control::reconcile::{Authority, Decision, Pace, Reconciler};
use capstan_meta::session::Session;
use capstan_meta::view::View;
use capstan_meta::{MetaError, OwnedTask, Store, latest};
use tokio::sync::watch as channel;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

pub use complete::Completer;
pub use proxies::{Proxies, Reply, Unreached, Wire};

use crate::address::Address;
use crate::board::Board;
use crate::facts::Tree;
use crate::keys::{CoordinatorKey, GranterKey, ReportId};
use crate::timing::Timing;
use watch::{Newest, Shared, Watcher};

/// A coordinator that runs until it is stopped.
pub struct Coordinator<P> {
    shared: Arc<Shared<P>>,
    trees: latest::Sender<Arc<Tree>>,
    reconciler: Arc<Reconciler<Completer>>,
    seed: u64,
}

impl<P: Proxies> Coordinator<P> {
    /// Registers under an address that identifies the process for operators, and opens the view. Needs only the store;
    /// the seed makes its backoff reproducible and identifies this process. `controller` is the name that stays the same
    /// over restarts: no two processes with it run at the same time.
    pub async fn start(
        store: Store,
        proxies: P,
        (controller, address): (HostId, &Address),
        timing: Timing,
        seed: u64,
    ) -> Result<Coordinator<P>, MetaError> {
        let me =
            ReportId::new(format!("{seed:016x}")).map_err(|error| MetaError::Rejected(error.to_string()))?;
        let session =
            Session::start(store.clone(), capstan_meta::session::SessionOptions { seed, ..timing.session() });
        let key = CoordinatorKey { address: address.clone(), report_id: me.clone() };
        let granter = GranterKey { controller };
        granter::announce(&store, &granter, &me, seed).await?;
        session.register(&key, &me).await;
        let registered = Mutex::new(None);
        // Opened after the registration: it shows whatever was decided without this coordinator.
        let options = capstan_meta::view::ViewOptions { seed, ..timing.view() };
        let view = Arc::new(View::open(store.clone(), Tree::ranges(), options).await?);
        let newest = Newest::of(view.snapshot());
        let (trees, seen) = latest::channel(newest.tree.clone());
        let board = Board::default();
        let completer = Completer { board: board.clone(), timing, turn: seed as usize };
        let pace = Pace { seed, ..Pace::default() };
        let reconciler = Arc::new(Reconciler::new(completer, store.clone(), view.clone(), pace));
        let shared = Shared {
            store,
            proxies,
            session,
            view,
            trees: seen,
            board,
            me: key,
            granter,
            timing,
            registered,
            attached_at: Mutex::new(None),
            newest: Mutex::new(newest),
        };
        Ok(Coordinator { shared: Arc::new(shared), trees, reconciler, seed })
    }

    /// The recent reports of the proxies.
    #[must_use]
    pub fn board(&self) -> Board {
        self.shared.board.clone()
    }

    /// The name under which it reports.
    #[must_use]
    pub fn report_id(&self) -> &ReportId {
        &self.shared.me.report_id
    }

    /// Its last decision, and what it waits for.
    #[must_use]
    pub fn decisions(&self) -> channel::Receiver<Decision> {
        self.reconciler.decisions()
    }

    /// Runs until it is stopped. Then it waits until its grants have expired before it leaves, so that the
    /// other coordinators can rely on it.
    pub async fn run(self, stop: CancellationToken) {
        let moving = OwnedTask::spawn(mover::run(self.shared.clone()));
        let granting = OwnedTask::spawn(granter::keep(self.shared.clone()));
        tokio::select! {
            biased;
            () = stop.cancelled() => {}
            () = self.follow() => {}
            _ = self.reconciler.run(&Authority::Anyone, &stop) => {}
        }
        drop((moving, granting));
        sleep(self.shared.timing.grant_over()).await;
        let closing = timeout(self.shared.timing.session_ttl, async {
            granter::leave(&self.shared).await;
            self.shared.session.close().await
        });
        if let Ok(Err(error)) = closing.await {
            tracing::debug!(%error, "cannot revoke the coordinator's lease; it will expire");
        }
    }

    /// Builds trees from the view's snapshots, and keeps a watcher for every registered host.
    async fn follow(&self) {
        let mut changes = self.shared.view.changes();
        let mut watchers: BTreeMap<Address, OwnedTask> = BTreeMap::new();
        loop {
            changes.mark_seen();
            let tree = self.shared.newest();
            watchers.retain(|proxy, _| tree.host(proxy).is_some());
            self.shared.board.keep(|proxy| tree.host(proxy).is_some());
            for (at, (proxy, _)) in tree.registered().enumerate() {
                watchers.entry(proxy.clone()).or_insert_with(|| {
                    let seed = self.seed.wrapping_add(at as u64);
                    OwnedTask::spawn(Watcher::new(self.shared.clone(), proxy.clone(), seed).run())
                });
            }
            self.trees.set(tree);
            if changes.next().await.is_none() {
                return;
            }
        }
    }
}
