//! The deciders of the kernel. Any number of processes stand for election; one of them acts.

use std::sync::Arc;

use anyhow::Context as _;
use capstan_control::drain::DrainKeeper;
use capstan_control::keys::{Candidates, TermKey};
use capstan_control::reconcile::{Elected, Pace, Reconciler, run_elected};
use capstan_meta::Store;
use capstan_meta::election::{Ballot, Election};
use capstan_meta::session::Session;
use capstan_meta::view::{View, ViewOptions};

use super::host::follow;
use super::process::{LOOP, MEMBER, Process};

/// Keeps the lease of a process that stands for no host, and gives it back at the end.
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
        session.close().await.context("the lease could not be given back; it ends by itself")?;
        ended
    });
}

/// Stands for election and, when elected, ends drains that are over.
pub(crate) fn start_controller(process: &Process, store: &Store, session: &Session, id: &str) {
    let (store, session, id) = (store.clone(), session.clone(), id.to_owned());
    process.supervisor.start(LOOP, "controller", move |stop| {
        let (store, session, id) = (store.clone(), session.clone(), id.clone());
        // Only jitter comes from it: different processes should not try at the same moments.
        let seed = u64::from(std::process::id());
        async move {
            let view = View::open(store.clone(), DrainKeeper::ranges(), ViewOptions::default()).await?;
            let election = Election::new(store.clone(), session, Ballot::queue(&Candidates {}), id, seed);
            let reconciler = Reconciler::new(DrainKeeper, store, Arc::new(view), Pace::default());
            run_elected(&reconciler, &mut Elected { election, term_key: TermKey {} }, &stop).await;
            Ok(())
        }
    });
}
