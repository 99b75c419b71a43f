//! The states of a worker and the one function between them.

use std::sync::Arc;

use super::joined::{Joined, Permit, Relation};
use super::{Effect, Event, Fault, Inputs, Report};
use crate::lrn::Lrn;
use crate::release::{Manifest, StepNumber, Version};
use crate::run::Installed;
use crate::status::HostStatus;

/// Longest error text in a status; the whole text is in the host's log.
const MAX_MESSAGE: usize = 2_000;

/// A request that this host takes part in, and its release.
#[derive(Clone, Debug)]
pub struct Task {
    joined: Joined,
    manifest: Arc<Manifest>,
}

/// Where a worker is.
#[derive(Clone, Debug)]
pub enum State {
    /// In no request.
    Idle,
    /// Fetches and checks the release.
    Loading(Joined),
    /// Has announced a step and waits until it may run it.
    Waiting(Task, StepNumber),
    /// Runs a step.
    Running(Task, StepNumber),
    /// Makes the release the host's own.
    Finishing(Task, Installed),
    /// Has the release.
    Done(Task),
    /// Failed at this step.
    Failed(Joined, Option<Arc<Manifest>>, u32, String),
    /// Goes back to the version that the host kept.
    RollingBack(Task, u32, String, Version),
    /// Waits for what is under way to stop.
    Stopping {
        /// Whether the request was overwritten, which is reported.
        overwritten: bool,
    },
    /// Waits for a report to be written, and what follows it.
    Reporting(Box<Report>, Box<State>),
}

/// The worker of one host.
#[derive(Clone, Debug)]
pub struct Worker {
    lrn: Lrn,
    /// What this host last wrote, to go on from after a restart or a stop.
    own: Option<HostStatus>,
    /// What it could not write because the request had changed: newer than `own`, and true.
    unwritten: Option<HostStatus>,
    inputs: Inputs,
    /// Whether others can see that it is up.
    leased: bool,
    state: State,
}

impl Worker {
    /// A worker that has just started and found this status of its own. It has no lease yet.
    #[must_use]
    pub fn new(lrn: Lrn, own: Option<HostStatus>) -> Worker {
        Worker { lrn, own, unwritten: None, inputs: Inputs::default(), leased: false, state: State::Idle }
    }

    /// Where it is.
    #[must_use]
    pub fn state(&self) -> &State {
        &self.state
    }

    /// What this host last wrote.
    #[must_use]
    pub fn own(&self) -> Option<&HostStatus> {
        self.own.as_ref()
    }

    /// Takes an event in; what follows is what to do about it, in order.
    pub fn step(&mut self, event: Event) -> Vec<Effect> {
        let mut effects = Vec::new();
        let state = std::mem::replace(&mut self.state, State::Idle);
        let state = match event {
            Event::Seen(inputs) => {
                self.inputs = *inputs;
                state
            }
            Event::Loaded(loaded) => self.loaded(state, loaded, &mut effects),
            Event::Ran(ran) => self.ran(state, ran, &mut effects),
            Event::Finished(finished) => self.finished(state, finished, &mut effects),
            Event::RolledBack(rolled_back) => self.rolled_back(state, rolled_back, &mut effects),
            Event::Crashed(why) => self.crashed(state, why, &mut effects),
            // What was seen before may be old by now: what is seen next is obeyed.
            Event::LeaseHeld | Event::LeaseLost => {
                self.leased = matches!(event, Event::LeaseHeld);
                self.state = state;
                return effects;
            }
            Event::Reported { written } => self.reported(state, written),
        };
        self.state = self.look(state, &mut effects);
        if let State::Failed(..) = self.state {
            // A restart finds its own failure, and may find the order to try again beside it.
            let state = std::mem::replace(&mut self.state, State::Idle);
            self.state = self.look(state, &mut effects);
        }
        effects
    }

    /// What follows from what is seen.
    fn look(&mut self, state: State, effects: &mut Vec<Effect>) -> State {
        match state {
            State::Idle => self.join(effects),
            State::Loading(joined) => self.go_on(joined, effects, |_, joined, _| State::Loading(joined)),
            State::Running(task, step) => self.go_on(task.joined, effects, |_, joined, _| {
                State::Running(Task { joined, manifest: task.manifest }, step)
            }),
            State::RollingBack(task, step, why, to) => self.go_on(task.joined, effects, |_, joined, _| {
                State::RollingBack(Task { joined, manifest: task.manifest }, step, why, to)
            }),
            State::Waiting(task, step) => match task.joined.relation(&self.inputs) {
                Relation::Same => self.permitted(refreshed(task, &self.inputs), step, effects),
                Relation::Over => self.join(effects),
                Relation::Unexpected => self.unexpected(effects),
            },
            State::Done(task) => match task.joined.relation(&self.inputs) {
                Relation::Same => self.done(refreshed(task, &self.inputs), effects),
                Relation::Over => self.join(effects),
                // Another request for a host that is through: it is a new one.
                Relation::Unexpected => self.join(effects),
            },
            State::Failed(joined, manifest, step, why) => match joined.relation(&self.inputs) {
                Relation::Same => self.failed(joined, manifest, step, why, effects),
                Relation::Over | Relation::Unexpected => self.join(effects),
            },
            // Both end by themselves; what is seen then decides.
            State::Stopping { overwritten } => State::Stopping { overwritten },
            State::Finishing(task, installed) => State::Finishing(task, installed),
            State::Reporting(report, next) => State::Reporting(report, next),
        }
    }

    /// What is under way goes on, or is stopped if its request is not there any more.
    fn go_on(
        &self,
        joined: Joined,
        effects: &mut Vec<Effect>,
        on: impl FnOnce(&Worker, Joined, &mut Vec<Effect>) -> State,
    ) -> State {
        match joined.relation(&self.inputs) {
            Relation::Same => on(self, with_guard(joined, &self.inputs), effects),
            relation @ (Relation::Over | Relation::Unexpected) => {
                effects.push(Effect::Cancel);
                State::Stopping { overwritten: relation == Relation::Unexpected }
            }
        }
    }

    fn join(&self, effects: &mut Vec<Effect>) -> State {
        let Some(mut joined) = Joined::join(&self.inputs, self.lrn) else { return self.confirm(effects) };
        let own = self.own.as_ref().filter(|own| own.is_about(&joined.request));
        joined.attempt = own.map_or(0, |own| own.attempt);
        if let Some(own) = own.filter(|own| own.error) {
            return State::Failed(joined, None, own.step, own.message.clone());
        }
        match joined.request.version.parse::<Version>() {
            Ok(version) => {
                effects.push(Effect::Load { version, permission: joined.permission() });
                State::Loading(joined)
            }
            Err(error) => self.fail(joined, None, 1, error.to_string(), effects),
        }
    }

    /// Nothing is under way here. If the request is stopped, or the host left, that is said once.
    fn confirm(&self, effects: &mut Vec<Effect>) -> State {
        let Some(joined) = Joined::to_confirm(&self.inputs, self.lrn) else { return State::Idle };
        let own = self.own.as_ref().filter(|own| own.is_about(&joined.request));
        if own.is_some_and(|own| own.stopped) {
            return State::Idle;
        }
        // Another machine may join under the number of one that left: it has not done what this one did.
        let newest = self.unwritten.as_ref().filter(|unwritten| unwritten.is_about(&joined.request)).or(own);
        let known = newest.filter(|_| !self.inputs.left).cloned();
        let status = HostStatus { stopped: true, ..known.unwrap_or_else(|| joined.status(0, 0)) };
        self.report(&joined, status, Installed::default(), State::Idle, effects)
    }

    fn loaded(
        &mut self,
        state: State,
        loaded: Result<Arc<Manifest>, Fault>,
        effects: &mut Vec<Effect>,
    ) -> State {
        let State::Loading(joined) = state else { return self.stopped(state, effects) };
        let manifest = match loaded {
            Ok(manifest) => manifest,
            Err(Fault::Stopped) => return State::Idle,
            Err(Fault::Failed(why)) => return self.fail(joined, None, self.own_step(), why, effects),
        };
        let own = self.own.clone().filter(|own| own.is_about(&joined.request));
        let task = Task { joined, manifest };
        match own {
            Some(own) if own.finished => State::Done(task),
            // The report is there already: this is a restart in the middle of a request.
            Some(own) => match StepNumber::new(own.step).filter(|step| task.manifest.step(*step).is_some()) {
                Some(step) => State::Waiting(task, step),
                None => self.announce(task, StepNumber::FIRST, Installed::default(), effects),
            },
            None => self.announce(task, StepNumber::FIRST, Installed::default(), effects),
        }
    }

    fn own_step(&self) -> u32 {
        let joined = self.inputs.request.as_ref();
        let own = self.own.as_ref().filter(|own| joined.is_some_and(|seen| own.is_about(&seen.request)));
        own.map_or(1, |own| own.step.max(1))
    }

    fn permitted(&mut self, task: Task, step: StepNumber, effects: &mut Vec<Effect>) -> State {
        let Some(kind) = task.manifest.step(step).map(|step| step.kind) else { return State::Done(task) };
        match task.joined.permit(&self.inputs, self.lrn, kind, step.get()) {
            Permit::Wait => State::Waiting(task, step),
            Permit::Run | Permit::RollBack(_) if !self.leased => State::Waiting(task, step),
            Permit::Run => {
                effects.push(Effect::Run(Box::new(task.joined.work(&task.manifest, step))));
                State::Running(task, step)
            }
            Permit::PassOver => self.advance(task, step, Installed::default(), effects),
            Permit::RollBack(to) => self.roll_back(task, step.get(), "ordered back".to_owned(), &to, effects),
        }
    }

    fn ran(&mut self, state: State, ran: Result<Installed, Fault>, effects: &mut Vec<Effect>) -> State {
        let State::Running(task, step) = state else { return self.stopped(state, effects) };
        match ran {
            Ok(installed) => self.advance(task, step, installed, effects),
            Err(Fault::Stopped) => State::Waiting(task, step),
            Err(Fault::Failed(why)) => self.fail(task.joined, Some(task.manifest), step.get(), why, effects),
        }
    }

    /// The step behind this one is announced; behind the last one the release becomes the host's own.
    fn advance(
        &mut self,
        task: Task,
        step: StepNumber,
        installed: Installed,
        effects: &mut Vec<Effect>,
    ) -> State {
        if step < task.manifest.last_step() {
            return self.announce(task, step.next(), installed, effects);
        }
        effects.push(Effect::Finish { work: Box::new(task.joined.work(&task.manifest, step)) });
        State::Finishing(task, installed)
    }

    fn finished(&mut self, state: State, finished: Result<(), Fault>, effects: &mut Vec<Effect>) -> State {
        let State::Finishing(task, installed) = state else { return self.stopped(state, effects) };
        let last = task.manifest.last_step();
        match finished {
            Ok(()) => {
                let steps = last.get();
                let status = HostStatus { finished: true, ..task.joined.status(steps, steps) };
                self.report(&task.joined.clone(), status, installed, State::Done(task), effects)
            }
            Err(Fault::Stopped) => State::Waiting(task, last),
            Err(Fault::Failed(why)) => self.fail(task.joined, Some(task.manifest), last.get(), why, effects),
        }
    }

    fn crashed(&mut self, state: State, why: String, effects: &mut Vec<Effect>) -> State {
        match state {
            State::Loading(joined) => self.fail(joined, None, self.own_step(), why, effects),
            State::Running(task, step) => {
                self.fail(task.joined, Some(task.manifest), step.get(), why, effects)
            }
            State::Finishing(task, _) => {
                let last = task.manifest.last_step().get();
                self.fail(task.joined, Some(task.manifest), last, why, effects)
            }
            State::RollingBack(..) => self.rolled_back(state, Err(Fault::Failed(why)), effects),
            State::Reporting(..) => State::Idle,
            State::Stopping { .. } => self.stopped(state, effects),
            State::Idle | State::Waiting(..) | State::Done(_) | State::Failed(..) => state,
        }
    }

    fn announce(
        &mut self,
        task: Task,
        step: StepNumber,
        installed: Installed,
        effects: &mut Vec<Effect>,
    ) -> State {
        let status = task.joined.status(step.get(), task.manifest.last_step().get());
        self.report(&task.joined.clone(), status, installed, State::Waiting(task, step), effects)
    }

    fn fail(
        &self,
        joined: Joined,
        manifest: Option<Arc<Manifest>>,
        step: u32,
        why: String,
        effects: &mut Vec<Effect>,
    ) -> State {
        let steps = manifest.as_ref().map_or(0, |manifest| manifest.last_step().get());
        let message = shortened(&why);
        let status = HostStatus { error: true, message, ..joined.status(step, steps) };
        let next = State::Failed(joined.clone(), manifest, step, why);
        self.report(&joined, status, Installed::default(), next, effects)
    }

    /// The request was overwritten while this host was in it.
    fn unexpected(&self, effects: &mut Vec<Effect>) -> State {
        let Some(joined) = Joined::join(&self.inputs, self.lrn) else { return State::Idle };
        let why = "unexpected request: it was overwritten while an update was under way".to_owned();
        self.fail(joined, None, self.own.as_ref().map_or(1, |own| own.step.max(1)), why, effects)
    }

    fn failed(
        &self,
        joined: Joined,
        manifest: Option<Arc<Manifest>>,
        step: u32,
        why: String,
        effects: &mut Vec<Effect>,
    ) -> State {
        let joined = with_guard(joined, &self.inputs);
        if let (Some(to), Some(manifest)) = (joined.ordered_back(&self.inputs), &manifest)
            && self.own.as_ref().is_none_or(|own| own.rolled_back_to != to && !own.rollback_failed)
        {
            let task = Task { joined, manifest: manifest.clone() };
            return self.roll_back(task, step, why, &to, effects);
        }
        let needs_manifest = joined.ordered_back(&self.inputs).is_some() && manifest.is_none();
        match joined.ordered_again(&self.inputs) {
            Some(attempt) => {
                let step = if self.has_gone_back(&joined) { 1 } else { step };
                self.try_again(Joined { attempt, ..joined }, manifest, step, effects)
            }
            None if needs_manifest && !self.has_gone_back(&joined) => self.reload(joined, effects),
            None => State::Failed(joined, manifest, step, why),
        }
    }

    fn has_gone_back(&self, joined: &Joined) -> bool {
        let own = self.own.as_ref().filter(|own| own.is_about(&joined.request));
        own.is_some_and(HostStatus::was_taken_back)
    }

    /// A restart forgot the release of a request that had failed.
    fn reload(&self, joined: Joined, effects: &mut Vec<Effect>) -> State {
        match joined.request.version.parse::<Version>() {
            Ok(version) => {
                effects.push(Effect::Load { version, permission: joined.permission() });
                State::Loading(joined)
            }
            Err(error) => State::Failed(joined, None, 1, error.to_string()),
        }
    }

    fn try_again(
        &self,
        joined: Joined,
        manifest: Option<Arc<Manifest>>,
        step: u32,
        effects: &mut Vec<Effect>,
    ) -> State {
        let number = StepNumber::new(step).unwrap_or(StepNumber::FIRST);
        let status = joined.status(number.get(), manifest.as_ref().map_or(0, |m| m.last_step().get()));
        let next = match manifest {
            Some(manifest) => State::Waiting(Task { joined: joined.clone(), manifest }, number),
            // It failed before the release was known; it is fetched when the report is written.
            None => State::Idle,
        };
        self.report(&joined, status, Installed::default(), next, effects)
    }

    fn done(&self, task: Task, effects: &mut Vec<Effect>) -> State {
        match task.joined.ordered_back(&self.inputs) {
            Some(to) if self.own.as_ref().is_none_or(|own| own.rolled_back_to != to) => {
                // Its last report says that it has the release. That is taken back first: a worker that dies while it
                // goes back must not confirm a later stop with it.
                let last = task.manifest.last_step().get();
                let why = "not healthy after the update".to_owned();
                self.fail(task.joined, Some(task.manifest), last, why, effects)
            }
            Some(_) | None => State::Done(task),
        }
    }

    fn roll_back(&self, task: Task, step: u32, why: String, to: &str, effects: &mut Vec<Effect>) -> State {
        match to.parse::<Version>() {
            Ok(version) => {
                let number = StepNumber::new(step).unwrap_or(StepNumber::FIRST);
                let work = Box::new(task.joined.work(&task.manifest, number));
                effects.push(Effect::RollBack { to: version.clone(), work });
                State::RollingBack(task, step, why, version)
            }
            Err(error) => self.fail(task.joined, Some(task.manifest), step, error.to_string(), effects),
        }
    }

    fn rolled_back(&mut self, state: State, back: Result<(), Fault>, effects: &mut Vec<Effect>) -> State {
        let State::RollingBack(task, step, why, to) = state else { return self.stopped(state, effects) };
        let Task { joined, manifest } = task;
        let mut status = HostStatus {
            error: true,
            message: shortened(&why),
            ..joined.status(step, manifest.last_step().get())
        };
        match back {
            Ok(()) => status.rolled_back_to = to.to_string(),
            Err(Fault::Stopped) => return State::Failed(joined, Some(manifest), step, why),
            Err(Fault::Failed(error)) => {
                status.rollback_failed = true;
                status.message = shortened(&format!("{why}; and going back to {to} failed: {error}"));
            }
        }
        let next = State::Failed(joined.clone(), Some(manifest), step, why);
        self.report(&joined, status, Installed::default(), next, effects)
    }

    fn report(
        &self,
        joined: &Joined,
        status: HostStatus,
        installed: Installed,
        next: State,
        effects: &mut Vec<Effect>,
    ) -> State {
        let report = Box::new(Report { status, installed, guard: joined.mod_revision });
        effects.push(Effect::Report(report.clone()));
        State::Reporting(report, Box::new(next))
    }

    fn reported(&mut self, state: State, written: bool) -> State {
        match state {
            State::Reporting(report, next) if written => {
                self.own = Some(report.status);
                self.unwritten = None;
                *next
            }
            // The request is another one by now: what is seen decides, from the beginning.
            State::Reporting(report, _) => {
                self.unwritten = Some(report.status);
                State::Idle
            }
            State::Idle
            | State::Loading(_)
            | State::Waiting(..)
            | State::Running(..)
            | State::Finishing(..)
            | State::Done(_)
            | State::Failed(..)
            | State::RollingBack(..)
            | State::Stopping { .. } => state,
        }
    }

    /// What was asked to stop has ended, one way or the other. An overwritten request is told to its writer.
    fn stopped(&mut self, state: State, effects: &mut Vec<Effect>) -> State {
        let State::Stopping { overwritten } = state else { return state };
        let still_there = self.inputs.request.as_ref().is_some_and(|seen| !seen.request.stop);
        if overwritten && still_there { self.unexpected(effects) } else { State::Idle }
    }
}

fn with_guard(joined: Joined, inputs: &Inputs) -> Joined {
    let mod_revision = inputs.request.as_ref().map_or(joined.mod_revision, |seen| seen.mod_revision);
    Joined { mod_revision, ..joined }
}

fn refreshed(task: Task, inputs: &Inputs) -> Task {
    Task { joined: with_guard(task.joined, inputs), manifest: task.manifest }
}

fn shortened(why: &str) -> String {
    why.chars().take(MAX_MESSAGE).collect()
}
