//! The daemon of one host: registers the host, and answers drains for itself.
//!
//! For drains the daemon is a service like the others. It has nothing to move, so it answers at once; so even a host
//! without other services can be drained.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_console::Health;
use capstan_control::drain::{Answer, DrainKeeper, Intent, questions};
use capstan_control::hosts::HostRecord;
use capstan_control::keys::{HostId, HostKey, Role, ServiceName};
use capstan_control::reconcile::{
    Authority, Controller, NoMessage, Pace, Plan, Reconciler, Situation, Step, Told,
};
use capstan_meta::session::{Session, SessionOptions, SessionState};
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{Store, clock};

use super::logs;
use super::process::{LOOP, MEMBER, Process};
use crate::commands::version::VERSION;
use crate::config;

/// The name of this part in `/readyz`, and of the service that answers drains.
pub(super) const PART: &str = "host";
/// The part of a lease's TTL that is kept as a margin for clock drift.
const MARGIN_SHARE: u32 = 5;

/// Starts the lease under which everything of this process is registered.
pub(crate) fn start_session(store: Store, settings: &config::Host) -> Session {
    Session::start(store, lease_options(settings.lease_ttl))
}

/// The session options for this TTL.
pub(super) fn lease_options(ttl: Duration) -> SessionOptions {
    SessionOptions { ttl, margin: ttl / MARGIN_SHARE, ..SessionOptions::default() }
}

/// Registers the host and keeps it registered; answers drains; deregisters when the process stops.
pub(crate) fn start_host(
    process: &Process,
    store: &Store,
    session: &Session,
    settings: &config::Host,
    roles: &[&str],
    addresses: BTreeMap<String, String>,
) -> Result<()> {
    let id: HostId = settings.id.parse()?;
    start_drain_agent(process, store, &id)?;
    let record = HostRecord {
        boot: format!("{:x}-{}", clock::since_epoch().as_nanos(), std::process::id()),
        roles: roles.iter().map(|role| role.parse::<Role>()).collect::<Result<_, _>>()?,
        services: services(roles)?,
        addresses,
        version: VERSION.to_owned(),
        labels: settings.labels.clone(),
        started_at: clock::since_epoch().as_secs(),
        ..HostRecord::default()
    };
    process.health.waiting(PART, "not registered yet");
    let (health, session) = (process.health.clone(), session.clone());
    process.start_once(MEMBER, "host", async move |stop| {
        let member = stand(&session, HostKey { host: id.clone() }, record, &health);
        let ended = tokio::select! {
            ended = member => ended,
            () = stop.cancelled() => Ok(()),
        };
        session.close().await.context("cannot revoke the host's lease; it expires by itself")?;
        tracing::info!(host = %id, "left");
        ended
    });
    Ok(())
}

/// The services that answer drains of a host with these roles: its daemon, and the roles that have something to move.
fn services(roles: &[&str]) -> Result<Vec<ServiceName>> {
    let moves = |role: &&str| *role == capstan_redis::drain::SERVICE || logs::SERVICES.contains(role);
    let moving = roles.iter().copied().filter(moves);
    std::iter::once(PART).chain(moving).map(|name| Ok(name.parse()?)).collect()
}

/// Answers drains of a host for its daemon.
pub(super) fn start_drain_agent(process: &Process, store: &Store, id: &HostId) -> Result<()> {
    let agent = DrainAgent { host: id.clone(), service: PART.parse()? };
    let store = store.clone();
    process.supervisor.start(LOOP, format!("drain agent of {id}"), move |stop| {
        let (store, agent) = (store.clone(), agent.clone());
        async move {
            let view = View::open(store.clone(), DrainKeeper::ranges(), ViewOptions::default()).await?;
            Reconciler::new(agent, store, Arc::new(view), Pace::default())
                .run(&Authority::Anyone, &stop)
                .await;
            Ok(())
        }
    });
    Ok(())
}

/// Keeps the host registered as long as this runs; health follows the lease.
async fn stand(session: &Session, key: HostKey, record: HostRecord, health: &Health) -> Result<()> {
    session.claim(&key, &record).await.context("the host id is taken")?;
    tracing::info!(host = %key.host, "registered");
    tokio::select! {
        ended = follow(session, PART, health) => ended,
        taken = session.taken(&key) => Err(anyhow::Error::from(taken).context("the host id was taken")),
    }
}

/// A part is ready while there is a lease.
pub(super) async fn follow(session: &Session, part: &str, health: &Health) -> Result<()> {
    let mut state = session.state();
    loop {
        match *state.borrow_and_update() {
            SessionState::Live { .. } => health.ready(part),
            SessionState::Lost => health.waiting(part, "lease lost, requesting a new one"),
        }
        state.changed().await.context("the session has ended")?;
    }
}

/// Answers drains of its own host: the daemon has nothing to move or to take up.
#[derive(Clone, Debug)]
struct DrainAgent {
    host: HostId,
    service: ServiceName,
}

impl Controller for DrainAgent {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "drain agent"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let asked =
            questions(&situation.snapshot, &self.service).into_iter().find(|asked| asked.host == self.host);
        let Some(asked) = asked else { return Plan::idle("no drain of this host") };
        let (answer, why) = match asked.intent() {
            Intent::Drain => (Answer::Drained, "this host is drained"),
            Intent::Return => (Answer::Healthy, "this host has returned"),
        };
        let txn = asked.answer(answer, situation.unix_now);
        let step =
            txn.map(|txn| Step::Commit { what: format!("answer the drain of host {}", self.host), txn });
        Plan { steps: step.into_iter().collect(), wake_at: None, why: why.to_owned() }
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}
