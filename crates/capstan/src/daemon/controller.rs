//! The kernel's controller. Any number of processes campaign; the elected one acts.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use capstan_control::kernel::Kernel;
use capstan_control::keys::{Candidates, TermKey};
use capstan_control::reconcile::{Elected, Pace, Reconciler, run_elected};
use capstan_meta::Store;
use capstan_meta::election::{Ballot, Election};
use capstan_meta::session::Session;
use capstan_meta::view::{View, ViewOptions};
use tokio::time::sleep;

use super::host::follow;
use super::process::{LOOP, MEMBER, Process};

/// Keeps the lease of a process without a host, and revokes it at the end.
pub(crate) fn start_membership(process: &Process, session: &Session) {
    const PART: &str = "lease";
    process.health.waiting(PART, "not granted yet");
    let (health, session) = (process.health.clone(), session.clone());
    process.start_once(MEMBER, PART, async move |stop| {
        let member = follow(&session, PART, &health);
        let ended = tokio::select! {
            ended = member => ended,
            () = stop.cancelled() => Ok(()),
        };
        session.close().await.context("cannot revoke the lease; it expires by itself")?;
        ended
    });
}

/// Campaigns and, when elected, ends finished drains and records hosts.
pub(crate) fn start_controller(process: &Process, store: &Store, session: &Session, id: &str) {
    await_candidacy(process, store, id);
    let (store, session, id) = (store.clone(), session.clone(), id.to_owned());
    process.supervisor.start(LOOP, "controller", move |stop| {
        let (store, session, id) = (store.clone(), session.clone(), id.clone());
        // Used for jitter only: different processes should not try at the same moments.
        let seed = u64::from(std::process::id());
        async move {
            let view = View::open(store.clone(), Kernel::ranges(), ViewOptions::default()).await?;
            let election = Election::new(store.clone(), session, Ballot::queue(&Candidates {}), id, seed);
            let reconciler = Reconciler::new(Kernel, store, Arc::new(view), Pace::default());
            run_elected(&reconciler, &mut Elected { election, term_key: TermKey {} }, &stop).await;
            Ok(())
        }
    });
}

/// The part `controller` is ready once this process is a candidate.
fn await_candidacy(process: &Process, store: &Store, id: &str) {
    const PART: &str = "controller";
    const LOOK_EVERY: Duration = Duration::from_millis(50);
    process.health.waiting(PART, "not a candidate yet");
    let (store, health, id) = (store.clone(), process.health.clone(), id.to_owned());
    process.start_once(LOOP, "controller readiness", async move |stop| {
        loop {
            // An unreachable store is a finding of its own.
            let candidates = store.list(&Candidates {}).await;
            if candidates.is_ok_and(|found| found.iter().any(|(_, stored)| stored.record == id)) {
                health.ready(PART);
                break;
            }
            tokio::select! {
                () = stop.cancelled() => break,
                () = sleep(LOOK_EVERY) => {}
            }
        }
        stop.cancelled().await;
        Ok(())
    });
}
