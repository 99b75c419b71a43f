//! What does a coordinator do about one proxy? It tells it what changed, grants it the right to serve, asks after its
//! nodes, and reports it when it is gone.
//!
//! The rules that keep two proxies from serving one slot, whatever is lost or late:
//! 1. A grant is given only while this coordinator is registered, its view is fresh and shows that registration, and
//!    only to a proxy that has confirmed since then a content from which nothing was taken. So a proxy that was replaced
//!    is told before it may serve again, also by a coordinator that was cut off from the store meanwhile.
//! 2. A report is made only when every grant that the proxy may have received from here is over; from then on none is
//!    given until the report is withdrawn and the view has caught up with what was done because of it.
//! 3. A coordinator that just registered (for the first time, or again) reports nobody until grants that were made
//!    without counting it are over. Reports die with the registration under which they were made.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use capstan_control::epoch::Epoch;
use capstan_meta::backoff::Backoff;
use capstan_meta::record::Key;
use capstan_meta::session::Session;
use capstan_meta::view::View;
use capstan_meta::{LeaseId, Txn, clock, latest};
use tokio::time::{Instant, sleep_until};

use super::board::{Board, NodeFact};
use super::content::Content;
use super::handover::Gain;
use super::proxies::{Proxies, Reply};
use super::timing::Timing;
use crate::address::Address;
use crate::broker::{self, Tree};
use crate::keys::{CoordinatorKey, FailureKey, ReportId};
use crate::nmctl::{LeaseGrant, Message};

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
    pub registered: Mutex<(LeaseId, Instant)>,
}

impl<P> Shared<P> {
    /// The registration that can be acted on, and since when it is known here.
    fn registration(&self) -> Option<(LeaseId, Instant)> {
        let lease = self.session.lease()?;
        let mut registered = self.registered.lock().unwrap_or_else(PoisonError::into_inner);
        if registered.0 != lease {
            *registered = (lease, Instant::now());
        }
        Some(*registered)
    }
}

/// One proxy, as one coordinator knows it.
pub(super) struct Watcher<P> {
    shared: Arc<Shared<P>>,
    proxy: Address,
    confirmed: Option<Arc<Content>>,
    /// Until when the proxy may serve because of what was sent from here.
    granted_until: Option<Instant>,
    misses: u32,
    /// The registration under which the proxy was reported, and whether the report is surely written.
    reported: Option<(LeaseId, bool)>,
    /// The registration under which the proxy confirmed what it knows.
    confirmed_under: LeaseId,
    /// The content that is not told yet, by its epoch, and since when it is wanted.
    wanted_since: Option<(Epoch, Instant)>,
    retry: Backoff,
    push_at: Instant,
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
            granted_until: None,
            misses: 0,
            reported: None,
            confirmed_under: LeaseId::NONE,
            wanted_since: None,
            retry,
            push_at: now,
            ping_at: now,
            nodes_at: now,
            full_at,
        }
    }

    /// Watches over the proxy for ever; dropped when the host is removed.
    pub async fn run(mut self) {
        let mut trees = self.shared.trees.clone();
        loop {
            let tree = trees.see();
            self.push(&tree).await;
            if Instant::now() >= self.ping_at {
                self.ping_at = Instant::now() + self.shared.timing.ping_every;
                let tree = trees.get();
                self.ping(&tree).await;
            }
            let wake_at =
                if self.is_behind(&trees.get()) { self.ping_at.min(self.push_at) } else { self.ping_at };
            tokio::select! {
                biased;
                () = sleep_until(wake_at) => {}
                changed = trees.changed() => if changed.is_err() { return },
                () = self.shared.board.changed(), if self.is_behind(&trees.get()) => {}
            }
        }
    }

    fn is_behind(&self, tree: &Tree) -> bool {
        Content::of(tree, &self.proxy).is_some_and(|content| self.confirmed.as_deref() != Some(&content))
    }

    fn is_confirmed_under_this_registration(&self) -> bool {
        self.shared.registration().is_none_or(|(lease, _)| lease == self.confirmed_under)
    }

    /// Tells the proxy what it does not know, if it is its turn.
    async fn push(&mut self, tree: &Tree) {
        let now = Instant::now();
        let Some(content) = Content::of(tree, &self.proxy) else { return };
        let known =
            self.confirmed.as_deref() == Some(&content) && self.is_confirmed_under_this_registration();
        if (known && now < self.full_at) || now < self.push_at {
            return;
        }
        let known = match &self.confirmed {
            Some(known) => Some(known.clone()),
            None => self.recognised(&content).await,
        };
        if let Some(why) = self.must_wait(tree, known.as_deref(), &content) {
            self.push_at = now + self.shared.timing.ping_every / 10;
            self.shared.board.note(&self.proxy, |fact| fact.trouble = Some(why));
            return;
        }
        let under = self.shared.registration().map_or(LeaseId::NONE, |(lease, _)| lease);
        match self.tell_all(&content).await {
            Ok(()) => {
                let content = Arc::new(content);
                self.confirmed_under = under;
                self.confirmed = Some(content.clone());
                self.full_at = Instant::now() + self.shared.timing.full_every;
                self.retry.reset();
                self.shared.board.note(&self.proxy, |fact| {
                    fact.reached = true;
                    fact.confirmed = Some(content);
                    fact.trouble = None;
                });
            }
            Err(why) => {
                self.push_at = Instant::now() + self.retry.next_wait();
                tracing::debug!(proxy = %self.proxy, why, "not told");
                self.shared.board.note(&self.proxy, |fact| fact.trouble = Some(why));
            }
        }
    }

    /// The content, if the proxy says that it knows it already: somebody else has told it.
    async fn recognised(&self, content: &Content) -> Option<Arc<Content>> {
        let reply = self.shared.proxies.tell(&self.proxy, &Message::Epoch).await;
        let Ok(Reply::Said(text)) = reply else { return None };
        let mut words = text.lines().skip_while(|word| *word != "SETDB").skip(1);
        let told: Option<u64> = words.next().and_then(|epoch| epoch.parse().ok());
        (told == Some(content.epoch.0)).then(|| Arc::new(content.clone()))
    }

    /// Why this content is not told yet. It is not waited for longer than what was granted before it can last.
    fn must_wait(&mut self, tree: &Tree, known: Option<&Content>, content: &Content) -> Option<String> {
        let Shared { board, timing, .. } = &*self.shared;
        let now = Instant::now();
        let since = match self.wanted_since {
            Some((epoch, since)) if epoch == content.epoch => since,
            Some(_) | None => {
                self.wanted_since = Some((content.epoch, now));
                now
            }
        };
        let gain = Gain { tree, board, quorum: timing.quorum(), proxy: &self.proxy, known, content };
        gain.must_wait().filter(|_| now < since + timing.warm_up())
    }

    async fn tell_all(&mut self, content: &Content) -> Result<(), String> {
        let mut refused = None;
        for message in content.messages(content.order_after(self.confirmed.as_deref())) {
            match self.shared.proxies.tell(&self.proxy, &message).await {
                Ok(Reply::Done | Reply::Said(_)) => {}
                // A node that is not ready holds up its own message; the others say where everything else went.
                Ok(Reply::Refused(why)) => {
                    self.on_refusal(content, &why).await;
                    refused = Some(format!("{}: {why}", message.name()));
                }
                Err(error) => return Err(error.to_string()),
            }
        }
        refused.map_or(Ok(()), Err)
    }

    /// A proxy that knows a higher epoch than the tree: the tree was set back, or a proxy was used elsewhere before.
    async fn on_refusal(&self, content: &Content, why: &str) {
        let Some(known) = why.strip_prefix("OLD_EPOCH known ").and_then(|known| known.trim().parse().ok())
        else {
            return;
        };
        let known = Epoch(known);
        let fresh = self.shared.view.catch_up(self.shared.timing.fresh_within).await;
        let current = fresh.ok().map(|snapshot| Tree::of(&snapshot));
        let mine =
            current.as_ref().and_then(|tree| tree.host(&self.proxy)?.epoch.as_ref().map(|seen| seen.record));
        if mine.is_some_and(|mine| mine >= content.epoch && mine < known) {
            tracing::warn!(proxy = %self.proxy, %known, "a proxy knows a higher epoch than the metadata; raising it");
            if let Err(error) = broker::raise_host_epoch(&self.shared.store, &self.proxy, known).await {
                tracing::warn!(proxy = %self.proxy, %error, "epoch was not raised");
            }
        }
    }

    /// Grants the right to serve, or at least asks whether somebody is there.
    async fn ping(&mut self, tree: &Tree) {
        let message = self.grant(tree).unwrap_or(Message::Epoch);
        let reply = self.shared.proxies.tell(&self.proxy, &message).await;
        if matches!(message, Message::Lease(_)) {
            // Counted from now, not from the sending: it may have arrived at any time until the reply did.
            self.granted_until = Some(Instant::now() + self.shared.timing.grant_over());
        }
        let reached = reply.is_ok();
        self.misses = if reached { 0 } else { self.misses.saturating_add(1) };
        if !reached {
            self.confirmed = None;
        }
        self.shared.board.note(&self.proxy, |fact| {
            fact.reached = reached;
            if let Err(error) = &reply {
                fact.trouble = Some(error.to_string());
            }
        });
        match reached {
            true if self.reported.is_some() => self.withdraw().await,
            true => self.ask_nodes().await,
            false => self.suspect(tree).await,
        }
    }

    /// The right to serve, if this coordinator may give it now (rule 1).
    fn grant(&self, tree: &Tree) -> Option<Message> {
        let Shared { view, me, timing, .. } = &*self.shared;
        let (lease, _) = self.shared.registration()?;
        let seen = tree.coordinators.iter().any(|(key, seen)| key == me && seen.lease == lease);
        let fresh = view.staleness() <= timing.fresh_within;
        if !seen || !fresh || self.reported.is_some() || self.confirmed_under != lease {
            return None;
        }
        let alive = tree.alive();
        // Without a content of this moment (a change is being told to the hosts) the last one is what counts.
        let confirmed = self.confirmed.as_deref()?;
        let newest = Content::unsettled(tree, &self.proxy)?;
        if confirmed.has_beyond(&newest) {
            return None;
        }
        Some(Message::Lease(LeaseGrant {
            coordinator: me.report_id.to_string(),
            needed: u32::try_from(timing.quorum().needed(alive.len())).unwrap_or(u32::MAX),
            ttl_ms: u64::try_from(timing.grant_ttl.as_millis()).unwrap_or(u64::MAX),
        }))
    }

    fn report_key(&self) -> FailureKey {
        let report_id: ReportId = self.shared.me.report_id.clone();
        FailureKey { address: self.proxy.clone(), report_id }
    }

    /// Reports the proxy, when everything that it may have been granted is over (rules 2 and 3).
    async fn suspect(&mut self, tree: &Tree) {
        let (now, timing) = (Instant::now(), &self.shared.timing);
        let Some((lease, since)) = self.shared.registration() else { return };
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

    async fn withdraw(&mut self) {
        let gone = self.shared.store.commit(Txn::new().then(self.report_key().delete())).await;
        // What was done because of the report must be seen before anything is granted.
        if gone.is_ok()
            && let Ok(snapshot) = self.shared.view.catch_up(self.shared.timing.fresh_within).await
        {
            tracing::info!(proxy = %self.proxy, "a proxy answers again");
            let mut trees = self.shared.trees.clone();
            let caught_up = trees.wait_for(|tree| tree.revision >= snapshot.revision()).await.is_ok();
            if caught_up {
                self.reported = None;
            }
            self.confirmed = None;
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
            self.shared.board.note_nodes(&self.proxy, nodes, Instant::now());
        }
    }
}
