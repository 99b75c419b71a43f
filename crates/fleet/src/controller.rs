//! How are decisions carried out? Any number of updaters run; the elected one acts.
//!
//! Configuration is a part of what every decision looks at: a change applies at once, and nothing is restarted or
//! aborted for it.

use std::sync::Arc;
use std::time::Duration;

use capstan_control::reconcile::{
    Controller, Elected, NoMessage, Pace, Plan, Reconciler, Situation, Step, Told, run_elected,
};
use capstan_meta::Store;
use capstan_meta::election::Election;
use capstan_meta::error::Result;
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{View, ViewOptions};
use tokio_util::sync::CancellationToken;

use crate::commit::txn;
use crate::courier::Courier;
use crate::decide::decide;
use crate::encoding::Moment;
use crate::facts::Facts;
use crate::keys::{TermKey, Tree};
use crate::probe::{ServiceHealth, Unobserved};
use crate::release::Trust;
use crate::scout::Scout;

/// Wall-clock time is looked at in whole seconds, so a time that is close is not looked at again and again.
const SHORTEST_WAIT: Duration = Duration::from_millis(250);

/// How long an updater that died leads on: the document's program waits as long.
pub const SESSION_TTL: Duration = Duration::from_secs(60);

/// The decision as a controller of the kernel's loop.
#[derive(Clone, Debug)]
pub struct Updater {
    tree: Tree,
    services: Arc<dyn ServiceHealth>,
}

impl Updater {
    /// Decides for the fleet with these keys.
    #[must_use]
    pub fn new(tree: Tree, services: Arc<dyn ServiceHealth>) -> Updater {
        Updater { tree, services }
    }
}

impl Controller for Updater {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "fleet updater"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let now = Moment::from_unix(situation.unix_now);
        let mut facts = Facts::read(&*situation.snapshot, &self.tree, now);
        let hosts = facts.infos.values().filter_map(|seen| seen.record.host.clone());
        facts.ailing = hosts.filter_map(|host| self.services.ailing(&host).map(|why| (host, why))).collect();
        let decision = decide(&facts);
        let steps = decision
            .next
            .iter()
            .map(|next| Step::Commit { what: decision.why.clone(), txn: txn(&self.tree, &facts, next) });
        let wake_at = decision.wake_at.map(|at| {
            let wait = at.as_epoch().saturating_sub(now.as_epoch());
            situation.now + wait.max(SHORTEST_WAIT)
        });
        // Findings are no part of the view: while a request is under way they are asked again and again.
        let ask_again = self.services.changes_every().filter(|_| is_under_way(&facts));
        let wake_at = wake_at.into_iter().chain(ask_again.map(|every| situation.now + every)).min();
        let why = match facts.problems.first() {
            None => decision.why.clone(),
            Some(problem) => format!("{} ({problem})", decision.why),
        };
        Plan { steps: steps.collect(), wake_at, why }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}

fn is_under_way(facts: &Facts) -> bool {
    facts.request.as_ref().is_some_and(|request| !request.record.stop) && !facts.has_ended()
}

/// How an updater runs.
#[derive(Clone, Debug)]
pub struct UpdaterOptions {
    /// What others see as the leader's name.
    pub name: String,
    /// What messages call the fleet.
    pub cluster: String,
    /// How the process's lease is kept.
    pub session: SessionOptions,
    /// How the view keeps in touch with the store.
    pub view: ViewOptions,
    /// How the loop paces itself.
    pub pace: Pace,
    /// Where the jitter of the election comes from.
    pub seed: u64,
    /// What is known about the health of services on hosts.
    pub services: Arc<dyn ServiceHealth>,
    /// The keys that releases must be signed by before the updater aims at them by itself.
    pub trust: Option<Trust>,
}

impl UpdaterOptions {
    /// As the document's program runs it: a lease of a minute.
    #[must_use]
    pub fn named(name: &str) -> UpdaterOptions {
        UpdaterOptions {
            name: name.to_owned(),
            cluster: "fleet".to_owned(),
            session: SessionOptions { ttl: SESSION_TTL, ..SessionOptions::default() },
            view: ViewOptions::default(),
            pace: Pace::default(),
            seed: rand::random(),
            services: Arc::new(Unobserved),
            trust: None,
        }
    }
}

/// Stands for election and decides whenever elected, until it is stopped. The lease is given back on the way out, so
/// that a successor need not wait for it to end.
pub async fn run(
    store: &Store,
    tree: &Tree,
    options: UpdaterOptions,
    stop: &CancellationToken,
) -> Result<()> {
    let session = Session::start(store.clone(), options.session);
    let view = Arc::new(View::open(store.clone(), Facts::ranges(tree), options.view).await?);
    let updater = Updater::new(tree.clone(), options.services);
    let reconciler = Reconciler::new(updater, store.clone(), view.clone(), options.pace);
    let election =
        Election::new(store.clone(), session.clone(), tree.ballot(), options.name.clone(), options.seed);
    let mut elected: Elected<TermKey> = Elected { election, term_key: tree.term() };
    let scout = Scout::new(store.clone(), tree.clone(), view.clone(), options.name.clone(), options.trust);
    let courier = Courier::new(store.clone(), tree.clone(), view, options.name, options.cluster);
    tokio::join!(run_elected(&reconciler, &mut elected, stop), courier.run(stop), scout.run(stop));
    session.close().await
}
