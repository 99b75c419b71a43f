//! What does a coordinator do about one proxy? It tells it what changed, grants it the right to serve, asks after its
//! nodes, and reports it when it is gone.
//!
//! The rules that keep two proxies from serving one slot, whatever is lost or late:
//! 1. A grant is given only while this coordinator is registered and its view is fresh and shows that registration. It
//!    names the epoch that the proxy has, and only if nothing of what the proxy has then was taken from it since; and it
//!    counts from what the proxy's clock said before. So whatever is served was its proxy's at most `fresh_within` and a
//!    grant ago.
//! 2. Nobody is told to serve what another proxy may still serve (`handover`). A proxy is fenced before it is judged:
//!    from then on it has what it says, or what is in the tree now.
//! 3. A report is made only when every grant that the proxy may have received from here is over; from then on none is
//!    given until the report is withdrawn and the view has caught up with what was done because of it.
//! 4. A coordinator that just registered (for the first time, or again) reports nobody until grants that were made
//!    without counting it are over. Reports die with the registration under which they were made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use capstan_control::epoch::Epoch;
use capstan_meta::backoff::Backoff;
use capstan_meta::record::Key;
use capstan_meta::session::Session;
use capstan_meta::view::{Snapshot, View};
use capstan_meta::{LeaseId, Txn, clock, latest};
use tokio::time::{Instant, sleep_until};

use super::board::{Board, Held, NodeFact};
use super::content::Content;
use super::handover::{Gain, owner_unaware, owns_all};
use super::proxies::{Proxies, Reply};
use super::timing::Timing;
use crate::address::Address;
use crate::broker::{self, Tree};
use crate::keys::{CoordinatorKey, FailureKey, ReportId};
use crate::nmctl::{Basis, Holding, LeaseGrant, Message};

/// The tree that a snapshot shows.
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

/// What every watcher of a coordinator shares.
pub(super) struct Shared<P> {
    pub store: capstan_meta::Store,
    pub proxies: P,
    pub session: Session,
    pub view: Arc<View>,
    pub trees: latest::Receiver<Arc<Tree>>,
    pub board: Board,
    pub me: CoordinatorKey,
    pub timing: Timing,
    pub registered: Mutex<Option<(LeaseId, Instant)>>,
    pub newest: Mutex<Newest>,
}

impl<P> Shared<P> {
    /// The tree as the view shows it at this moment: the one that its freshness is about.
    pub fn newest(&self) -> Arc<Tree> {
        let snapshot = self.view.snapshot();
        let mut newest = self.newest.lock().unwrap_or_else(PoisonError::into_inner);
        if !newest.snapshot.same_as(&snapshot) {
            *newest = Newest::of(snapshot);
        }
        newest.tree.clone()
    }

    /// The registration that can be acted on, and since when it is seen in the tree: others have counted this
    /// coordinator from some time before on, and not earlier than it was written.
    fn registration(&self, tree: &Tree) -> Option<(LeaseId, Instant)> {
        let lease = self.session.lease()?;
        if !tree.coordinators.iter().any(|(key, seen)| *key == self.me && seen.lease == lease) {
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
}

/// One proxy, as one coordinator knows it.
pub(super) struct Watcher<P> {
    shared: Arc<Shared<P>>,
    proxy: Address,
    /// What it has confirmed, all of it.
    confirmed: Option<Arc<Content>>,
    /// What it has confirmed but for the others' slots, which it is told later.
    confirmed_own: Option<Content>,
    /// What it had when it last spoke of it.
    held: Option<Arc<Held>>,
    /// Until when the proxy may serve because of what was sent from here.
    granted_until: Option<Instant>,
    misses: u32,
    /// The registration under which the proxy was reported, and whether the report is surely written.
    reported: Option<(LeaseId, bool)>,
    /// The content that is not told yet, by its epoch, and since when it is wanted.
    wanted_since: Option<(Epoch, Instant)>,
    retry: Backoff,
    /// Not before then, after something went wrong, with what was tried last.
    push_at: Instant,
    tried: Option<Epoch>,
    /// What is waited for is looked at again then, if nothing is heard before.
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
            held: None,
            granted_until: None,
            misses: 0,
            reported: None,
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

    /// Watches over the proxy for ever; dropped when the host is removed.
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

    /// Tells the proxy what it does not know, if it is its turn.
    async fn push(&mut self, tree: &Tree) {
        let now = Instant::now();
        let epoch = tree.host(&self.proxy).and_then(|host| host.epoch.as_ref()).map(|seen| seen.record);
        // What went wrong with an older content is no reason to wait with a newer one.
        if now < self.push_at && epoch <= self.tried {
            return;
        }
        self.tried = epoch;
        if let Err(why) = self.fence(tree).await {
            return self.not_told(why);
        }
        let Some(content) = Content::of(tree, &self.proxy) else { return };
        if self.confirmed.as_deref() == Some(&content) && now < self.full_at {
            return;
        }
        if let Some(why) = self.must_wait(tree, &content) {
            return self.told_later(&why);
        }
        match self.tell_all(tree, &content).await {
            Ok(None) => self.told(content),
            Ok(Some(why)) => {
                self.confirmed_own = Some(content);
                self.told_later(&why);
            }
            Err(why) => self.not_told(why),
        }
    }

    /// It is not its turn; the others are looked at again soon.
    fn told_later(&mut self, why: &str) {
        self.look_at = Instant::now() + self.shared.timing.ping_every / 10;
        self.shared.board.note_trouble(&self.proxy, why);
    }

    fn told(&mut self, content: Content) {
        let (now, content) = (Instant::now(), Arc::new(content));
        self.full_at = now + self.shared.timing.full_every;
        self.retry.reset();
        self.holds(Held::of(&content));
        self.confirmed = Some(content.clone());
        self.confirmed_own = None;
        self.shared.board.note(&self.proxy, |fact| {
            fact.reached = true;
            fact.confirmed = Some(content);
            fact.confirmed_at = Some(now);
            fact.trouble = None;
        });
    }

    fn not_told(&mut self, why: String) {
        self.push_at = Instant::now() + self.retry.next_wait();
        tracing::debug!(proxy = %self.proxy, why, "not told");
        self.shared.board.note_trouble(&self.proxy, &why);
    }

    /// The proxy has this. What it gained it serves when it is granted, so that is not waited for.
    fn holds(&mut self, held: Held) {
        if self.held.as_ref().is_none_or(|known| known.epoch() != held.epoch()) {
            self.ping_at = Instant::now();
        }
        let held = Arc::new(held);
        self.held = Some(held.clone());
        self.shared.board.note(&self.proxy, |fact| fact.held = Some(held));
    }

    /// Asks the proxy what it has, and to obey nothing from before the tree any more (rule 2).
    async fn fence(&mut self, tree: &Tree) -> Result<(), String> {
        let Some(epoch) = tree.host(&self.proxy).and_then(|host| host.epoch.as_ref()) else { return Ok(()) };
        let epoch = epoch.record;
        if self.held.as_ref().is_some_and(|held| held.fenced >= epoch) {
            return Ok(());
        }
        match self.shared.proxies.tell(&self.proxy, &Message::Fence(epoch)).await {
            Ok(Reply::Said(text)) => {
                let holding = Holding::parse(&text).ok_or_else(|| format!("FENCE: {text:?} was said"))?;
                self.holds(Held { fenced: epoch, holding });
                Ok(())
            }
            Ok(Reply::Refused(why)) => {
                self.on_refusal(epoch, &why).await;
                Err(format!("FENCE: {why}"))
            }
            Ok(Reply::Done) => Err("FENCE: nothing was said".to_owned()),
            Err(error) => Err(error.to_string()),
        }
    }

    /// Why this content is not told yet. It is not waited for longer than what was granted before it can last.
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
        gain.must_wait().filter(|_| now < since + timing.warm_up())
    }

    /// Tells everything, or everything but the others' slots: then why those have to wait.
    async fn tell_all(&mut self, tree: &Tree, content: &Content) -> Result<Option<String>, String> {
        let (mut refused, mut later) = (None, None);
        let knows_own = self.confirmed_own.as_ref() == Some(content);
        for message in content.messages_after(self.confirmed.as_deref()) {
            match message {
                Message::SetPeer(_) => {
                    later = self.points_too_early(tree, content);
                    if later.is_some() {
                        continue;
                    }
                }
                _ if knows_own => continue,
                _ => {}
            }
            match self.shared.proxies.tell(&self.proxy, &message).await {
                Ok(Reply::Done | Reply::Said(_)) => self.after(&message, content).await,
                // A node that is not ready holds up its own message; the others say where everything else went.
                Ok(Reply::Refused(why)) => {
                    self.on_refusal(content.epoch, &why).await;
                    refused = Some(format!("{}: {why}", message.name()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        refused.map_or(Ok(later), Err)
    }

    /// Why the proxy is not told yet who has which slots.
    fn points_too_early(&self, tree: &Tree, content: &Content) -> Option<String> {
        let Shared { board, timing, .. } = &*self.shared;
        let over = self.wanted_since.is_some_and(|(_, since)| Instant::now() >= since + timing.grant_over());
        if over { None } else { owner_unaware(tree, board, timing.quorum(), content) }
    }

    /// Clients wait for what it was told to be its own: others hear of that, and it is granted, before it is told
    /// everything else.
    async fn after(&mut self, told: &Message, content: &Content) {
        if let Message::SetDb(_) = told {
            self.holds(Held::of(content));
            if self.reported.is_none() {
                self.ping_if_due().await;
            }
        }
    }

    /// A proxy that knows a higher epoch than the tree: the tree was set back, or a proxy was used elsewhere before.
    async fn on_refusal(&self, told: Epoch, why: &str) {
        let Some(known) = why.strip_prefix("OLD_EPOCH known ").and_then(|known| known.trim().parse().ok())
        else {
            return;
        };
        let known = Epoch(known);
        let fresh = self.shared.view.catch_up(self.shared.timing.fresh_within).await;
        let current = fresh.ok().map(|snapshot| Tree::of(&snapshot));
        let mine =
            current.as_ref().and_then(|tree| tree.host(&self.proxy)?.epoch.as_ref().map(|seen| seen.record));
        if mine.is_some_and(|mine| mine >= told && mine < known) {
            tracing::warn!(proxy = %self.proxy, %known, "a proxy knows a higher epoch than the metadata; raising it");
            if let Err(error) = broker::raise_host_epoch(&self.shared.store, &self.proxy, known).await {
                tracing::warn!(proxy = %self.proxy, %error, "epoch was not raised");
            }
        }
    }

    async fn ping_if_due(&mut self) {
        if Instant::now() >= self.ping_at {
            self.ping_at = Instant::now() + self.shared.timing.ping_every;
            self.ping().await;
        }
    }

    /// Asks whether somebody is there, and grants the right to serve.
    async fn ping(&mut self) {
        let mut reply = self.shared.proxies.tell(&self.proxy, &Message::Epoch).await;
        if let Ok(Reply::Said(text)) = &reply
            && let Some(grant) = self.grant(text)
        {
            // Counted from here: the proxy counts from earlier, whenever it hears of it.
            self.granted_until = Some(Instant::now() + self.shared.timing.grant_over());
            reply = self.shared.proxies.tell(&self.proxy, &Message::Lease(grant)).await;
        }
        let reached = reply.is_ok();
        self.misses = if reached { 0 } else { self.misses.saturating_add(1) };
        if !reached {
            (self.confirmed, self.confirmed_own) = (None, None);
        }
        let misses = self.misses;
        self.shared.board.note(&self.proxy, |fact| {
            (fact.reached, fact.misses) = (reached, misses);
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

    /// The right to serve, if this coordinator may give it now (rule 1). `said` is what the proxy said of its epochs
    /// and its clock.
    fn grant(&mut self, said: &str) -> Option<LeaseGrant> {
        let said: BTreeMap<&str, &str> = pairs(said).collect();
        let has: Epoch = Epoch(said.get("SETDB")?.parse().ok()?);
        if self.held.as_ref().is_some_and(|held| held.epoch() != has) {
            // Somebody else has told it something, or it has forgotten everything.
            self.forget();
            self.shared.board.note(&self.proxy, |fact| fact.held = None);
        }
        let Shared { view, me, timing, .. } = &*self.shared;
        // In this order: the tree is at least as new as what the freshness was measured of.
        let fresh = view.staleness() <= timing.fresh_within;
        let tree = self.shared.newest();
        self.shared.registration(&tree)?;
        if !fresh || self.reported.is_some() {
            return None;
        }
        // Without a content of this moment (a change is being told to the hosts) the last one is what counts.
        let newest = Content::unsettled(&tree, &self.proxy)?;
        let held = self.held.as_deref().filter(|held| held.epoch().is_told())?;
        if !held.holding.serves().all(|entry| owns_all(&newest, &entry.db, entry.claim.range())) {
            return None;
        }
        Some(LeaseGrant {
            coordinator: me.report_id.to_string(),
            needed: u32::try_from(timing.quorum().needed(tree.alive().len())).unwrap_or(u32::MAX),
            ttl_ms: u64::try_from(timing.grant_ttl.as_millis()).unwrap_or(u64::MAX),
            basis: Some(Basis { epoch: held.epoch(), clock: (*said.get("CLOCK")?).to_owned() }),
        })
    }

    fn report_key(&self) -> FailureKey {
        let report_id: ReportId = self.shared.me.report_id.clone();
        FailureKey { address: self.proxy.clone(), report_id }
    }

    /// Reports the proxy, when everything that it may have been granted is over (rules 3 and 4).
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

    /// Writes the report under the present registration, and only while it lasts. From here on it may be there.
    async fn report(&mut self, lease: LeaseId) {
        tracing::warn!(proxy = %self.proxy, misses = self.misses, "a proxy does not answer; reporting it");
        let now = i64::try_from(clock::since_epoch().as_secs()).unwrap_or(i64::MAX);
        self.reported = Some((lease, false));
        let txn = Txn::new().when(self.shared.me.present()).then(self.report_key().put(&now).lease(lease));
        match self.shared.store.commit(txn).await {
            Ok(result) => self.reported = Some((lease, result.succeeded)),
            Err(error) => tracing::debug!(proxy = %self.proxy, %error, "report may not be written"),
        }
    }

    /// Nothing is known of what the proxy has.
    fn forget(&mut self) {
        (self.held, self.confirmed, self.confirmed_own) = (None, None, None);
    }

    async fn withdraw(&mut self) {
        let gone = self.shared.store.commit(Txn::new().then(self.report_key().delete())).await;
        // What was done because of the report must be seen before anything is granted.
        if gone.is_ok() && self.shared.view.catch_up(self.shared.timing.fresh_within).await.is_ok() {
            tracing::info!(proxy = %self.proxy, "a proxy answers again");
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
        if let Ok(Reply::Said(text)) = self.shared.proxies.tell(&self.proxy, &Message::Info).await {
            let nodes: BTreeMap<Address, NodeFact> = text.lines().filter_map(NodeFact::parse).collect();
            self.shared.board.note_nodes(&self.proxy, nodes, now);
        }
    }
}

/// Names and values that take turns, a line each.
fn pairs(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let mut lines = text.lines();
    std::iter::from_fn(move || Some((lines.next()?, lines.next()?)))
}
