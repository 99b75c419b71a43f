//! Which request is a worker in, and may it run its next step?

use std::sync::Arc;

use capstan_meta::Revision;

use super::{Inputs, SeenRequest};
use crate::lrn::Lrn;
use crate::release::{Manifest, StepKind, StepNumber};
use crate::run::{Permission, StepWork};
use crate::status::{Desired, HostStatus, Phase, Request};

/// A request that this host takes part in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Joined {
    /// The request.
    pub request: Request,
    /// When its key came into being.
    pub create_revision: Revision,
    /// When it was last written.
    pub mod_revision: Revision,
    /// How often the operator had this host tried again.
    pub attempt: u32,
}

/// How what is seen now relates to what was joined.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Relation {
    /// The same request.
    Same,
    /// It is stopped, gone, or replaced by a later one: whatever is under way ends without a word.
    Over,
    /// It was overwritten while it was under way.
    Unexpected,
}

/// Whether a step may be run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Permit {
    /// Now.
    Run,
    /// Another host has done it for all.
    PassOver,
    /// Not yet.
    Wait,
    /// The host is to go back to what it had.
    RollBack(String),
}

impl Joined {
    /// The request, if this host takes part in it.
    pub(super) fn join(inputs: &Inputs, lrn: Lrn) -> Option<Joined> {
        let seen = inputs.request.as_ref()?;
        let takes_part = !seen.request.stop && !inputs.left && seen.request.servers.contains(&lrn);
        takes_part.then(|| Joined::of(seen))
    }

    /// The request, if this host has to confirm that nothing of it runs here: it is stopped, or the host left.
    pub(super) fn to_confirm(inputs: &Inputs, lrn: Lrn) -> Option<Joined> {
        let seen = inputs.request.as_ref()?;
        let over = seen.request.stop || inputs.left;
        (over && seen.request.servers.contains(&lrn)).then(|| Joined::of(seen))
    }

    fn of(seen: &SeenRequest) -> Joined {
        Joined {
            request: seen.request.clone(),
            create_revision: seen.create_revision,
            mod_revision: seen.mod_revision,
            attempt: 0,
        }
    }

    pub(super) fn relation(&self, inputs: &Inputs) -> Relation {
        let Some(seen) = &inputs.request else { return Relation::Over };
        let later =
            seen.create_revision != self.create_revision || seen.request.generation > self.request.generation;
        if seen.request.stop || inputs.left || later {
            Relation::Over
        } else if seen.request.is_same_as(&self.request) {
            Relation::Same
        } else {
            Relation::Unexpected
        }
    }

    /// What the host is to go back to after a failure.
    pub(super) fn permission(&self) -> Permission {
        if self.request.rollback { Permission::RollBack } else { Permission::Upgrade }
    }

    pub(super) fn work(&self, manifest: &Arc<Manifest>, step: StepNumber) -> StepWork {
        StepWork {
            generation: self.request.generation(),
            manifest: manifest.clone(),
            step,
            permission: self.permission(),
        }
    }

    /// A status of this request at a step.
    pub(super) fn status(&self, step: u32, steps: u32) -> HostStatus {
        HostStatus {
            version: self.request.version.clone(),
            step,
            generation: self.request.generation,
            host_steps_total: steps,
            attempt: self.attempt,
            ..HostStatus::default()
        }
    }

    fn wanted<'i>(&self, inputs: &'i Inputs) -> Option<&'i Desired> {
        inputs.desired.as_ref().filter(|desired| desired.generation == self.request.generation)
    }

    /// The attempt that an operator ordered, if it is a later one than this.
    pub(super) fn ordered_again(&self, inputs: &Inputs) -> Option<u32> {
        let desired = self.wanted(inputs)?;
        (desired.phase == Phase::Run && desired.attempt > self.attempt).then_some(desired.attempt)
    }

    /// The version that the host is ordered back to.
    pub(super) fn ordered_back(&self, inputs: &Inputs) -> Option<String> {
        match &self.wanted(inputs)?.phase {
            Phase::Rollback { to } => Some(to.clone()),
            Phase::Drain
            | Phase::Run
            | Phase::Return
            | Phase::Settle
            | Phase::Done
            | Phase::Gone
            | Phase::Failed => None,
        }
    }

    /// Whether a step of this kind may be run now.
    pub(super) fn permit(&self, inputs: &Inputs, lrn: Lrn, kind: StepKind, step: u32) -> Permit {
        if let Some(to) = self.ordered_back(inputs) {
            return Permit::RollBack(to);
        }
        let alone = self.wanted(inputs).is_some_and(|desired| {
            desired.phase == Phase::Run && desired.through >= step && desired.attempt >= self.attempt
        });
        let released =
            inputs.released.as_ref().filter(|released| released.generation == self.request.generation);
        match kind {
            StepKind::Rolling | StepKind::SelfUpdate => {
                if alone {
                    Permit::Run
                } else {
                    Permit::Wait
                }
            }
            StepKind::Barrier => {
                let together = released.is_some_and(|released| {
                    released.step > step || (released.step == step && released.only.is_none())
                });
                if alone || together { Permit::Run } else { Permit::Wait }
            }
            StepKind::Once => match released {
                Some(released) if released.step == step && !released.done && released.only == Some(lrn) => {
                    Permit::Run
                }
                Some(released) if released.step > step || (released.step == step && released.done) => {
                    Permit::PassOver
                }
                Some(_) | None if alone => Permit::PassOver,
                Some(_) | None => Permit::Wait,
            },
        }
    }
}
