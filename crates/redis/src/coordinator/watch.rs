//! What does a coordinator do for one proxy? It pushes changes, grants the right to serve, queries its nodes, and reports
//! it when it is unreachable.
//!
//! The rules that keep two proxies from serving one slot, whatever is lost or late:
//! 1. A grant is given only while this coordinator is registered and its view is fresh and shows that registration (or as
//!    one without the store, for [`Timing::outage`], which counts only where all coordinators give one). It
//!    names the epoch that the proxy has, and only if no slot of that content was taken from the proxy since; and it
//!    counts from an earlier reading of the proxy's clock. So a served slot belonged to its proxy at most `fresh_within`
//!    and a grant ago.
//! 2. A slot is not pushed to a new owner while another proxy may still serve it (`handover`). A proxy is fenced before it
//!    is judged: from then on it holds what it reports, or what is in the tree now.
//! 3. A report is made only when every grant that the proxy may have received from here has expired; from then on none is
//!    given until the report is withdrawn and the view has caught up with what was done because of it.
//!    The proxy serves while the coordinators that do not grant it are too few to have it replaced
//!    (`Quorum::standing_by`): one of two coordinators that loses its link to the proxy changes nothing.
//! 4. A coordinator that just registered (for the first time, or again) reports no proxy until grants that were made
//!    without counting it have expired. Reports are deleted with the registration under which they were made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use capstan_control::epoch::Epoch;
use capstan_meta::backoff::Backoff;
use capstan_meta::record::Key;
use capstan_meta::session::Session;
use capstan_meta::view::{Snapshot, View};
use capstan_meta::{LeaseId, Txn, clock, latest};
use tokio::time::{Instant, sleep_until};

use super::proxies::{Proxies, Reply};
use crate::address::Address;
use crate::board::{Board, Held, InSyncAt, NodeFact};
use crate::broker;
use crate::decide::content::{Content, awaited_replicas};
use crate::decide::handover::{Gain, is_planned, owner_unconfirmed, owns_all};
use crate::facts::{Seen, Tree};
use crate::keys::{AcknowledgedKey, CoordinatorKey, FailureKey, GranterKey, ReportId};
use crate::nmctl::{Basis, Holding, LeaseGrant, Message, OldEpoch, SetSync, Standing};
use crate::timing::Timing;

/// The tree of a snapshot.
pub(super) struct Newest {
    snapshot: Arc<Snapshot>,
    pub tree: Arc<Tree>,
}

impl Newest {
    pub fn of(snapshot: Arc<Snapshot>) -> Newest {
        let tree = Arc::new(Tree::of(&snapshot));
        Newest { snapshot, tree }
    }
}

/// What all watchers of a coordinator share.
pub(super) struct Shared<P> {
    pub store: capstan_meta::Store,
    pub proxies: P,
    pub session: Session,
    pub view: Arc<View>,
    pub trees: latest::Receiver<Arc<Tree>>,
    pub board: Board,
    pub me: CoordinatorKey,
    /// Its record among those that may grant without the store.
    pub granter: GranterKey,
    pub timing: Timing,
    pub registered: Mutex<Option<(LeaseId, Instant)>>,
    /// When it last was registered in a fresh view.
    pub attached_at: Mutex<Option<Instant>>,
    pub newest: Mutex<Newest>,
}

impl<P> Shared<P> {
    /// The tree of the view at this moment: the one that its freshness refers to.
    pub fn newest(&self) -> Arc<Tree> {
        let snapshot = self.view.snapshot();
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if !newest.snapshot.same_as(&snapshot) {
            *newest = Newest::of(snapshot);
        }
        newest.tree.clone()
    }

    /// The registration to act under, and since when it is visible in the tree: other coordinators have
    /// counted this one from some time before, and not earlier than it was written.
    fn registration(&self, tree: &Tree) -> Option<(LeaseId, Instant)> {
        let lease = self.session.lease()?;
        let is_granter = |seen: &Seen<ReportId>| seen.record == self.me.report_id;
        if !tree.coordinators.iter().any(|(key, seen)| *key == self.me && seen.lease == lease)
            || !tree.granters.get(&self.granter.controller).is_some_and(is_granter)
        {
            return None;
        }
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        match *registered {
            Some(known) if known.0 == lease => Some(known),
            Some(_) | None => {
                *registered = Some((lease, Instant::now()));
                *registered
            }
        }
    }

    /// Whether the view shows what the store had a moment ago.
    pub fn is_fresh(&self) -> bool {
        self.view.staleness() <= self.timing.fresh_within
    }

    /// How it stands with the store, as a grant states it; nothing if it may not grant at all.
    fn standing(&self, tree: &Tree, fresh: bool) -> Option<Standing> {
        let mut attached_at = self.attached_at.lock().unwrap_or_else(PoisonError::into_inner);
        if fresh && self.registration(tree).is_some() {
            *attached_at = Some(Instant::now());
            return Some(Standing::Registered(tree.alive().iter().map(ToString::to_string).collect()));
        }
        // A later life of this controller, or another one under its name, grants in its place.
        let replaced =
            tree.granters.get(&self.granter.controller).is_some_and(|seen| seen.record != self.me.report_id);
        let lately = attached_at.is_some_and(|at| at.elapsed() < self.timing.outage);
        (lately && !replaced).then_some(Standing::Detached)
    }

    /// Whether no coordinator can have a proxy serve without this one: the proxy has acknowledged its grants since
    /// everybody counts it, or there is no other.
    fn is_ours(&self, tree: &Tree, proxy: &Address) -> bool {
        let Some((lease, _)) = self.registration(tree) else { return false };
        let acknowledged = self.board.of(proxy).acknowledged == Some(lease);
        acknowledged || tree.granted_only_by(&self.me.report_id)
    }
}

/// One proxy, from the point of view of one coordinator.
pub(super) struct Watcher<P> {
    shared: Arc<Shared<P>>,
    proxy: Address,
    /// The content that it has confirmed completely.
    confirmed: Option<Arc<Content>>,
    /// The content that it has confirmed except for the other proxies' slots, which are pushed later.
    confirmed_own: Option<Content>,
    /// The replicas that must have a write, as it has confirmed them.
    in_sync: Option<SetSync>,
    /// What it held at its last report.
    held: Option<Arc<Held>>,
    /// Until when the proxy may serve because of grants from here.
    granted_until: Option<Instant>,
    misses: u32,
    /// The registration under which the proxy was reported, and whether the report is certainly written.
    reported: Option<(LeaseId, bool)>,
    /// The registration under which the proxy acknowledged a grant, sent after all coordinators counted this one.
    acknowledged: Option<LeaseId>,
    /// The epoch of the content not yet pushed, and since when it is pending.
    wanted_since: Option<(Epoch, Instant)>,
    retry: Backoff,
    /// The earliest next attempt after a failure, and the epoch of the last attempt.
    push_at: Instant,
    tried: Option<Epoch>,
    /// When to check again what is waited for, if there is no event before.
    look_at: Instant,
    ping_at: Instant,
    nodes_at: Instant,
    full_at: Instant,
}

impl<P: Proxies> Watcher<P> {
    pub fn new(shared: Arc<Shared<P>>, proxy: Address, seed: u64) -> Watcher<P> {
        let now = Instant::now();
        let retry = Backoff::new(shared.timing.ping_every / 10, shared.timing.ping_every * 4, seed);
        let full_at = now + shared.timing.full_every;
        Watcher {
            shared,
            proxy,
            confirmed: None,
            confirmed_own: None,
            in_sync: None,
            held: None,
            granted_until: None,
            misses: 0,
            reported: None,
            acknowledged: None,
            wanted_since: None,
            retry,
            push_at: now,
            tried: None,
            look_at: now,
            ping_at: now,
            nodes_at: now,
            full_at,
        }
    }

    /// Watches the proxy without end; dropped when the host is removed.
    pub async fn run(mut self) {
        let (mut trees, mut notes) = (self.shared.trees.clone(), self.shared.board.notes());
        loop {
            notes.see();
            let tree = trees.see();
            self.push(&tree).await;
            self.ping_if_due().await;
            let behind = self.is_behind(&trees.get());
            let look_at = self.push_at.max(self.look_at);
            let wake_at = if behind { self.ping_at.min(look_at) } else { self.ping_at };
            tokio::select! {
                biased;
                () = sleep_until(wake_at) => {}
                changed = trees.changed() => if changed.is_err() { return },
                changed = notes.changed(), if behind => if changed.is_err() { return },
            }
        }
    }

    fn is_behind(&self, tree: &Tree) -> bool {
        Content::of(tree, &self.proxy).is_some_and(|content| self.confirmed.as_deref() != Some(&content))
    }

    /// Pushes what the proxy lacks, if it is its turn.
    async fn push(&mut self, tree: &Tree) {
        let now = Instant::now();
        let epoch = tree.host(&self.proxy).and_then(|host| host.epoch.as_ref()).map(|seen| seen.record);
        // The failure of an older content does not delay a newer one.
        if now < self.push_at && epoch <= self.tried {
            return;
        }
        self.tried = epoch;
        if let Err(why) = self.fence(tree).await {
            return self.push_failed(why);
        }
        // Before its slots: a primary that gains them acknowledges nothing without them.
        if let Err(why) = self.push_in_sync(tree).await {
            return self.push_failed(why);
        }
        let Some(content) = Content::of(tree, &self.proxy) else { return };
        if self.confirmed.as_deref() == Some(&content) && now < self.full_at {
            return;
        }
        if let Some(why) = self.must_wait(tree, &content) {
            return self.defer(&why);
        }
        match self.push_all(tree, &content).await {
            Ok(None) => self.on_confirmed(content),
            Ok(Some(why)) => {
                self.confirmed_own = Some(content);
                self.defer(&why);
            }
            Err(why) => self.push_failed(why),
        }
    }

    /// It is not this proxy's turn; the others are checked again soon.
    fn defer(&mut self, why: &str) {
        self.look_at = Instant::now() + self.shared.timing.ping_every / 10;
        self.shared.board.note_trouble(&self.proxy, why);
    }

    fn on_confirmed(&mut self, content: Content) {
        let (now, content) = (Instant::now(), Arc::new(content));
        self.full_at = now + self.shared.timing.full_every;
        self.retry.reset();
        self.holds(Held::of(&content));
        self.confirmed = Some(content.clone());
        self.confirmed_own = None;
        self.shared.board.note(&self.proxy, |fact| {
            fact.answered(true);
            fact.confirmed = Some(content);
            fact.confirmed_at = Some(now);
            fact.trouble = None;
        });
    }

    fn push_failed(&mut self, why: String) {
        self.push_at = Instant::now() + self.retry.next_wait();
        tracing::debug!(proxy = %self.proxy, why, "push to proxy failed");
        self.shared.board.note_trouble(&self.proxy, &why);
    }

    /// The proxy holds this. Slots that it gained are served once they are granted, so that is not waited
    /// for.
    fn holds(&mut self, held: Held) {
        if self.held.as_ref().is_none_or(|known| known.epoch() != held.epoch()) {
            self.ping_at = Instant::now();
        }
        let held = Arc::new(held);
        self.held = Some(held.clone());
        self.shared.board.note(&self.proxy, |fact| fact.held = Some(held));
    }

    /// Queries what the proxy holds, and makes it refuse anything older than the tree (rule 2).
    async fn fence(&mut self, tree: &Tree) -> Result<(), String> {
        let Some(epoch) = tree.host(&self.proxy).and_then(|host| host.epoch.as_ref()) else { return Ok(()) };
        let epoch = epoch.record;
        if self.held.as_ref().is_some_and(|held| held.fenced >= epoch) {
            return Ok(());
        }
        match self.shared.proxies.send(&self.proxy, &Message::Fence(epoch)).await {
            Ok(Reply::Text(text)) => {
                let holding =
                    Holding::parse(&text).ok_or_else(|| format!("FENCE: unexpected reply {text:?}"))?;
                self.holds(Held { fenced: epoch, holding });
                Ok(())
            }
            Ok(Reply::Refused(why)) => {
                self.on_refusal(epoch, &why).await;
                Err(format!("FENCE: {why}"))
            }
            Ok(Reply::Done) => Err("FENCE: unexpected empty reply".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Pushes which replicas must have a write. A proxy of an earlier version does not take it.
    async fn push_in_sync(&mut self, tree: &Tree) -> Result<(), String> {
        let Some(message) = awaited_replicas(tree, &self.proxy) else { return Ok(()) };
        if self.in_sync.as_ref() == Some(&message) {
            return Ok(());
        }
        let Shared { proxies, board, .. } = &*self.shared;
        let known = proxies.send(&self.proxy, &Message::Epoch).await.map_err(|error| error.to_string())?;
        let Reply::Text(known) = known else { return Err(format!("EPOCH: unexpected reply {known:?}")) };
        if !pairs(&known).any(|(name, _)| name == "SETSYNC") {
            board.note(&self.proxy, |fact| fact.in_sync = InSyncAt::Ignored);
            self.in_sync = Some(message);
            return Ok(());
        }
        match proxies.send(&self.proxy, &Message::SetSync(message.clone())).await {
            Ok(Reply::Done) => {
                let now = Instant::now();
                let confirmed =
                    message.shards.iter().map(|shard| (shard.node.clone(), (shard.revision, now)));
                let confirmed = InSyncAt::Confirmed(confirmed.collect());
                board.note(&self.proxy, |fact| fact.in_sync = confirmed);
                self.in_sync = Some(message);
                Ok(())
            }
            Ok(Reply::Refused(why)) => {
                self.on_refusal(message.epoch, &why).await;
                Err(format!("SETSYNC: {why}"))
            }
            Ok(Reply::Text(text)) => Err(format!("SETSYNC: unexpected reply {text:?}")),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Why this content is not pushed yet. The wait is bounded by the grants given before it.
    fn must_wait(&mut self, tree: &Tree, content: &Content) -> Option<String> {
        let Shared { board, timing, .. } = &*self.shared;
        let now = Instant::now();
        let since = match self.wanted_since {
            Some((epoch, since)) if epoch == content.epoch => since,
            Some(_) | None => {
                self.wanted_since = Some((content.epoch, now));
                now
            }
        };
        let held = self.held.as_deref();
        let gain = Gain { tree, board, quorum: timing.quorum(), proxy: &self.proxy, held, content };
        if now < since + timing.warm_up() {
            gain.must_wait()
        } else {
            gain.must_wait_longer(|other| self.shared.is_ours(tree, other))
        }
    }

    /// Pushes everything, or everything but the other proxies' slots: then it returns why those have to wait.
    async fn push_all(&mut self, tree: &Tree, content: &Content) -> Result<Option<String>, String> {
        let (mut refused, mut later) = (None, None);
        let own_confirmed = self.confirmed_own.as_ref() == Some(content);
        let handover = is_planned(tree, self.held.as_deref(), content);
        for mut message in content.messages_after(self.confirmed.as_deref()) {
            match &mut message {
                Message::SetPeer(_) => {
                    later = self.redirects_too_early(tree, content);
                    if later.is_some() {
                        continue;
                    }
                }
                _ if own_confirmed => continue,
                Message::SetDb(announcement) => announcement.flags.handover = handover,
                _ => {}
            }
            match self.shared.proxies.send(&self.proxy, &message).await {
                Ok(Reply::Done | Reply::Text(_)) => self.after(&message, content).await,
                // A node that is not ready delays its own message; the other messages contain the new owners
                // of the rest.
                Ok(Reply::Refused(why)) => {
                    self.on_refusal(content.epoch, &why).await;
                    refused = Some(format!("{}: {why}", message.name()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        refused.map_or(Ok(later), Err)
    }

    /// Why the owners of the other slots are not pushed to the proxy yet.
    fn redirects_too_early(&self, tree: &Tree, content: &Content) -> Option<String> {
        let Shared { board, timing, .. } = &*self.shared;
        let over = self.wanted_since.is_some_and(|(_, since)| Instant::now() >= since + timing.grant_over());
        if over { None } else { owner_unconfirmed(tree, board, timing.quorum(), content) }
    }

    /// Clients wait for the proxy's own slots: other watchers are notified, and the slots are granted, before
    /// the rest is pushed.
    async fn after(&mut self, sent: &Message, content: &Content) {
        if let Message::SetDb(_) = sent {
            self.holds(Held::of(content));
            if self.reported.is_none() {
                self.ping_if_due().await;
            }
        }
    }

    /// Handles a proxy with a higher epoch than the tree: the tree was restored, or the proxy was used
    /// elsewhere before.
    async fn on_refusal(&self, pushed: Epoch, why: &str) {
        let Some(OldEpoch { known }) = OldEpoch::parse(why) else { return };
        let fresh = self.shared.view.catch_up(self.shared.timing.fresh_within).await;
        let current = fresh.ok().map(|snapshot| Tree::of(&snapshot));
        let mine =
            current.as_ref().and_then(|tree| tree.host(&self.proxy)?.epoch.as_ref().map(|seen| seen.record));
        if mine.is_some_and(|mine| mine >= pushed && mine < known) {
            tracing::warn!(proxy = %self.proxy, %known, "proxy has a higher epoch than the metadata; raising it");
            if let Err(error) = broker::raise_host_epoch(&self.shared.store, &self.proxy, known).await {
                tracing::warn!(proxy = %self.proxy, %error, "cannot raise the epoch");
            }
        }
    }

    async fn ping_if_due(&mut self) {
        if Instant::now() >= self.ping_at {
            self.ping_at = Instant::now() + self.shared.timing.ping_every;
            self.ping().await;
        }
    }

    /// Pings the proxy, and grants the right to serve.
    async fn ping(&mut self) {
        let asked = Instant::now();
        let mut reply = self.shared.proxies.send(&self.proxy, &Message::Epoch).await;
        if let Ok(Reply::Text(text)) = &reply
            && let Some(grant) = self.grant(text)
        {
            // Counted from here: the proxy counts from earlier, whenever it receives the grant.
            self.granted_until = Some(Instant::now() + self.shared.timing.grant_over());
            let detached = grant.basis.as_ref().is_some_and(|basis| basis.standing == Standing::Detached);
            reply = self.shared.proxies.send(&self.proxy, &Message::Lease(grant)).await;
            if matches!(reply, Ok(Reply::Done)) && !detached {
                self.acknowledge(asked);
            }
        }
        let reached = reply.is_ok();
        self.misses = if reached { 0 } else { self.misses.saturating_add(1) };
        if !reached {
            (self.confirmed, self.confirmed_own, self.in_sync) = (None, None, None);
        }
        let misses = self.misses;
        self.shared.board.note(&self.proxy, |fact| {
            fact.answered(reached);
            fact.misses = misses;
            fact.missed_since = (!reached).then(|| fact.missed_since.unwrap_or_else(Instant::now));
            if let Err(error) = &reply {
                fact.trouble = Some(error.to_string());
            }
        });
        match reached {
            true if self.reported.is_some() => self.withdraw().await,
            true => self.ask_nodes().await,
            false => self.suspect().await,
        }
    }

    /// The grant, if this coordinator may give one now (rule 1). `report` is the proxy's report of its epochs
    /// and its clock.
    fn grant(&mut self, report: &str) -> Option<LeaseGrant> {
        let report: BTreeMap<&str, &str> = pairs(report).collect();
        let has: Epoch = Epoch(report.get("SETDB")?.parse().ok()?);
        if self.held.as_ref().is_some_and(|held| held.epoch() != has) {
            // Another coordinator has pushed to it, or it has lost its state.
            self.forget();
            self.shared.board.note(&self.proxy, |fact| fact.held = None);
        }
        let Shared { me, timing, .. } = &*self.shared;
        // In this order: the tree is at least as new as the measured freshness.
        let fresh = self.shared.is_fresh();
        let tree = self.shared.newest();
        let standing = self.shared.standing(&tree, fresh)?;
        if self.reported.is_some() {
            return None;
        }
        let standing = match (report.contains_key("STANDING"), standing) {
            (true, standing) => standing,
            // A proxy of an earlier version takes every grant for one of a registered coordinator.
            (false, Standing::Detached) => return None,
            (false, Standing::Registered(_) | Standing::Unstated) => Standing::Unstated,
        };
        // Without a settled content (a change is being pushed to the hosts) the last one counts.
        let newest = Content::unsettled(&tree, &self.proxy)?;
        let held = self.held.as_deref().filter(|held| held.epoch().is_told())?;
        if !held.holding.serves().all(|entry| owns_all(&newest, &entry.db, entry.claim.range())) {
            return None;
        }
        Some(LeaseGrant {
            coordinator: me.report_id.to_string(),
            needed: u32::try_from(timing.quorum().standing_by(tree.alive().len())).unwrap_or(u32::MAX),
            ttl_ms: u64::try_from(timing.grant_ttl.as_millis()).unwrap_or(u64::MAX),
            basis: Some(Basis { epoch: held.epoch(), clock: (*report.get("CLOCK")?).to_owned(), standing }),
        })
    }

    /// The proxy has received a grant of this registration while it was valid. Every grant of a registered coordinator
    /// that it receives from now on names this one, if others have counted it for long enough when the proxy was asked.
    fn acknowledge(&mut self, asked: Instant) {
        let Shared { timing, board, .. } = &*self.shared;
        let Some((lease, since)) = self.shared.registration(&self.shared.newest()) else { return };
        let in_time = asked.elapsed() + timing.margin < timing.grant_ttl;
        if in_time && asked >= since + timing.warm_up() && self.acknowledged != Some(lease) {
            self.acknowledged = Some(lease);
            board.note(&self.proxy, |fact| fact.acknowledged = Some(lease));
        }
    }

    fn report_key(&self) -> FailureKey {
        let report_id: ReportId = self.shared.me.report_id.clone();
        FailureKey { address: self.proxy.clone(), report_id }
    }

    fn acknowledged_key(&self) -> AcknowledgedKey {
        let FailureKey { address, report_id } = self.report_key();
        AcknowledgedKey { address, report_id }
    }

    /// Reports the proxy, when all grants that it may have received have expired (rules 3 and 4).
    async fn suspect(&mut self) {
        let (now, timing, tree) = (Instant::now(), &self.shared.timing, self.shared.newest());
        let Some((lease, since)) = self.shared.registration(&tree) else { return };
        let over = self.granted_until.is_none_or(|until| now >= until);
        let enough = self.misses >= timing.patience;
        if let (true, false, Some(until)) = (enough, over, self.granted_until) {
            self.ping_at = self.ping_at.min(until);
        }
        let warm = now >= since + timing.warm_up();
        let written = self.reported == Some((lease, true));
        if over && warm && enough && !written && tree.host(&self.proxy).is_some() {
            self.report(lease).await;
        }
    }

    /// Writes the report under the present registration, and only while it lasts. From here on it may exist.
    async fn report(&mut self, lease: LeaseId) {
        tracing::warn!(proxy = %self.proxy, misses = self.misses, "proxy is unreachable; reporting it");
        let now = i64::try_from(clock::since_epoch().as_secs()).unwrap_or(i64::MAX);
        self.reported = Some((lease, false));
        let mut txn =
            Txn::new().when(self.shared.me.present()).then(self.report_key().put(&now).lease(lease));
        if self.acknowledged == Some(lease) {
            txn = txn.then(self.acknowledged_key().put(&now).lease(lease));
        }
        match self.shared.store.commit(txn).await {
            Ok(result) => self.reported = Some((lease, result.succeeded)),
            Err(error) => tracing::debug!(proxy = %self.proxy, %error, "report may not have been written"),
        }
    }

    /// Resets what is known of the proxy's state.
    fn forget(&mut self) {
        (self.held, self.confirmed, self.confirmed_own, self.in_sync) = (None, None, None, None);
    }

    async fn withdraw(&mut self) {
        let txn = Txn::new().then(self.report_key().delete()).then(self.acknowledged_key().delete());
        let gone = self.shared.store.commit(txn).await;
        // The consequences of the report must be visible before anything is granted.
        if gone.is_ok() && self.shared.view.catch_up(self.shared.timing.fresh_within).await.is_ok() {
            tracing::info!(proxy = %self.proxy, "proxy is reachable again");
            self.reported = None;
            self.forget();
        }
    }

    async fn ask_nodes(&mut self) {
        let now = Instant::now();
        if now < self.nodes_at {
            return;
        }
        self.nodes_at = now + self.shared.timing.nodes_every;
        if let Ok(Reply::Text(text)) = self.shared.proxies.send(&self.proxy, &Message::Info).await {
            let nodes: BTreeMap<Address, NodeFact> = text.lines().filter_map(NodeFact::parse).collect();
            self.shared.board.note_nodes(&self.proxy, nodes, now);
        }
    }
}

/// Alternating names and values, one per line.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut lines = text.lines();
    std::iter::from_fn(move || Some((lines.next()?, lines.next()?)))
}
