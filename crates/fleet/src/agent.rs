//! How does a host obey? A state machine without clocks, disks or sockets: what was seen and what became of the last
//! effect go in, the next effects come out. [`shell`] performs them.
//!
//! A worker looks at five keys and no others: the request, the released step, what is wanted of its own host, its own
//! entry in the registry, and once, when it starts, its own status. It never looks at its peers: the updater does that
//! for all. At most one effect that takes time is under way; a stop that arrives meanwhile is confirmed when it is over.
//! Nothing is begun without a lease: a rollout may continue without a host that is cut off, and its last order may
//! belong to another host by now.

mod joined;
mod machine;
pub mod shell;

use std::sync::Arc;

use capstan_meta::Revision;

use crate::release::{Manifest, Version};
use crate::run::{Installed, Permission, StepWork};
use crate::status::{Desired, HostStatus, Released, Request};

pub use joined::Joined;
pub use machine::{State, Worker};

/// What a worker sees of the metadata.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Inputs {
    /// The request, with the revisions that say whether it is still the same.
    pub request: Option<SeenRequest>,
    /// The step that hosts may run together.
    pub released: Option<Released>,
    /// What is wanted of this host.
    pub desired: Option<Desired>,
    /// Whether this host is not in the registry: it has left, or has not joined.
    pub left: bool,
}

/// A request as it was read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SeenRequest {
    /// The request.
    pub request: Request,
    /// When the key came into being.
    pub create_revision: Revision,
    /// When it was last written: the guard of every report.
    pub mod_revision: Revision,
}

/// What a worker is told.
#[derive(Clone, Debug)]
pub enum Event {
    /// The metadata looks like this now.
    Seen(Box<Inputs>),
    /// The release was fetched and checked, or was not.
    Loaded(Result<Arc<Manifest>, Fault>),
    /// A step was run, or was not.
    Ran(Result<Installed, Fault>),
    /// The release is now the host's, or is not.
    Finished(Result<(), Fault>),
    /// The host is back on the version that it kept, or is not.
    RolledBack(Result<(), Fault>),
    /// What was under way crashed: a defect of this program, told like a failure of the host.
    Crashed(String),
    /// Others can see that this worker is up.
    LeaseHeld,
    /// Others may take this worker for gone, and have another host do its work.
    LeaseLost,
    /// A report was written; `false`: the request is not the one that it was about.
    Reported {
        /// Whether it was written.
        written: bool,
    },
}

/// Why something did not work.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Fault {
    /// It was asked to stop and did.
    Stopped,
    /// It failed, in words for an operator.
    Failed(String),
}

/// What a worker wants done.
#[derive(Clone, Debug)]
pub enum Effect {
    /// Fetch and check a release, with all its artifacts.
    Load {
        /// Which one.
        version: Version,
        /// Whether it may be an older one.
        permission: Permission,
    },
    /// Run one step.
    Run(Box<StepWork>),
    /// All steps are done: make the release the host's own.
    Finish {
        /// Which request it was.
        work: Box<StepWork>,
    },
    /// Run all steps of the version that the host kept.
    RollBack {
        /// That version.
        to: Version,
        /// The work that failed.
        work: Box<StepWork>,
    },
    /// Whatever is under way is to stop at its next safe point.
    Cancel,
    /// Write the status, and what was installed, if the request is still this one.
    Report(Box<Report>),
}

/// What a worker writes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// The status of the host.
    pub status: HostStatus,
    /// What is verifiably installed since the last report.
    pub installed: Installed,
    /// The request as it was when the worker joined it.
    pub guard: Revision,
}
