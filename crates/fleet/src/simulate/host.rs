//! A simulated host: a disk that survives crashes, the real worker, and a service that can be drained.

use std::collections::BTreeSet;

use capstan_meta::LeaseId;

use crate::agent::{Report, Worker};
use crate::lrn::Lrn;
use crate::release::{Manifest, StepKind};
use crate::run::StepWork;

/// What a host is doing that takes time.
#[derive(Clone, Debug)]
pub(super) enum Job {
    Load,
    Run(Box<StepWork>),
    Finish(Box<StepWork>),
    RollBack(String, Box<StepWork>),
    Report(Box<Report>),
}

/// A host.
#[derive(Debug)]
pub(super) struct SimHost {
    pub(super) lrn: Lrn,
    pub(super) up: bool,
    /// Whether it reaches the store.
    pub(super) linked: bool,
    /// Counts its starts: what an earlier life was doing is lost.
    pub(super) boot: u64,
    pub(super) lease: LeaseId,
    pub(super) worker: Option<Worker>,
    /// Whether it is about to look at the metadata.
    pub(super) notified: bool,
    /// What is under way, and its number.
    pub(super) job: Option<Job>,
    pub(super) job_number: u64,
    pub(super) cancelled: bool,
    /// The step whose program runs, whether or not a worker that knows of it does: (request, step).
    pub(super) running: Option<(u64, u32)>,
    /// Whether it has left the fleet and is about to be taken away.
    pub(super) leaving: bool,
    /// Since when it is up and reaches the store, in milliseconds.
    pub(super) there_since: u64,
    /// The request that this life of it has last seen stopped.
    pub(super) saw_stop: Option<u64>,
    /// Steps that were begun and steps that were done: (request, version, step).
    pub(super) begun: BTreeSet<(u64, String, u32)>,
    pub(super) done: BTreeSet<(u64, String, u32)>,
    pub(super) release: String,
    pub(super) kept: String,
    /// How many times slower than others it is.
    pub(super) slowness: u64,
    /// Whether the new release does not work here, and whether it was tried.
    pub(super) bad: bool,
    pub(super) was_broken: bool,
    /// Whether its service has work.
    pub(super) has_work: bool,
    /// Its failure domain.
    pub(super) zone: &'static str,
}

impl SimHost {
    pub(super) fn new(lrn: Lrn, release: &str) -> SimHost {
        SimHost {
            lrn,
            up: false,
            linked: true,
            boot: 0,
            lease: LeaseId::NONE,
            worker: None,
            notified: false,
            job: None,
            job_number: 0,
            cancelled: false,
            running: None,
            leaving: false,
            there_since: 0,
            saw_stop: None,
            begun: BTreeSet::new(),
            done: BTreeSet::new(),
            release: release.to_owned(),
            kept: String::new(),
            slowness: 1,
            bad: false,
            was_broken: false,
            has_work: true,
            zone: ["a", "b", "c"][lrn.0 as usize % 3],
        }
    }

    /// Its worker is gone. Its disk is left, and the program that it was running.
    pub(super) fn crash(&mut self) {
        self.up = false;
        self.boot += 1;
        self.worker = None;
        self.job = None;
        self.notified = false;
        self.cancelled = false;
        self.saw_stop = None;
    }

    /// Makes a release its own.
    pub(super) fn adopt(&mut self, version: &str) {
        if self.release != version {
            self.kept = std::mem::replace(&mut self.release, version.to_owned());
        }
    }

    /// What the host has once a release is its own: the release, or what is missing of it. A `once` step is no part of
    /// a host.
    pub(super) fn result_of(&self, generation: u64, manifest: &Manifest) -> String {
        let version = manifest.version.to_string();
        let missing = manifest.numbered_steps().find(|(number, step)| {
            step.kind != StepKind::Once && !self.done.contains(&(generation, version.clone(), number.get()))
        });
        missing.map_or(version.clone(), |(number, _)| format!("{version} without step {number}"))
    }

    /// Goes back to a version: the steps of the request are undone.
    pub(super) fn go_back(&mut self, generation: u64, version: &str) {
        self.adopt(version);
        self.begun.retain(|(of, _, _)| *of != generation);
        self.done.retain(|(of, _, _)| *of != generation);
    }
}
