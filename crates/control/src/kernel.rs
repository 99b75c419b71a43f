//! What does the kernel itself decide? One controller for everything that belongs to no service: it ends drains,
//! records hosts and keeps the event record bounded.

use capstan_meta::view::Ranges;

use crate::drain::DrainKeeper;
use crate::events;
use crate::hosts::keeper;
use crate::keys::{Drains, Events, Hosts, KnownHosts};
use crate::reconcile::{Controller, NoMessage, Plan, Situation, Told};

/// The kernel's own controller. Runs on the leader; its view covers [`Kernel::ranges`].
#[derive(Clone, Copy, Debug, Default)]
pub struct Kernel;

impl Kernel {
    /// The ranges that its view must cover.
    #[must_use]
    pub fn ranges() -> Ranges {
        Ranges::new().with(&Drains {}).with(&Hosts {}).with(&KnownHosts {}).with(&Events {})
    }
}

impl Controller for Kernel {
    type Message = NoMessage;

    fn name(&self) -> &str {
        "kernel"
    }

    fn plan(&self, situation: &Situation) -> Plan<NoMessage> {
        let mut plan = DrainKeeper.plan(situation);
        plan.steps.extend(keeper::plan(&situation.snapshot, situation.unix_now));
        plan.steps.extend(events::trim(&situation.snapshot.list(&Events {})));
        plan
    }

    async fn tell(&self, message: NoMessage) -> Told {
        match message {}
    }
}
