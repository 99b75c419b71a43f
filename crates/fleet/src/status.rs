//! What is asked of the hosts, and what do they report? The document's two JSON values, and what stands beside them.
//!
//! Fields that the document does not have are added behind its own, and only where they say something, so that other
//! readers find the values that they know.

use std::collections::BTreeMap;

use capstan_control::keys::HostId;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::encoding::{Moment, go_records};
use crate::lrn::{Lrn, Lrns};

/// Numbers the requests of a fleet. Zero: written by a program that does not number them.
pub use crate::run::Generation;

/// `status/current`: what the fleet is to be updated to.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Request {
    /// Target version.
    pub version: String,
    /// The hosts under update: the registry as it was at the start, never edited afterwards.
    pub servers: Vec<Lrn>,
    /// If `true`, workers stop the update at once.
    pub stop: bool,
    /// When it was started.
    pub started_at: Moment,
    /// One more than the request before it.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// Names this request among all of all fleets.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub update_id: String,
    /// Whether hosts may go back to the version that they keep.
    #[serde(skip_serializing_if = "is_false")]
    pub rollback: bool,
    /// Why it was stopped.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub stop_reason: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl Request {
    /// Its number.
    #[must_use]
    pub fn generation(&self) -> Generation {
        Generation(self.generation)
    }

    /// The hosts in the order of their numbers, each once, however they were written.
    #[must_use]
    pub fn members(&self) -> Lrns {
        self.servers.iter().copied().collect()
    }

    /// Whether both are the same request, whatever their `stop` says.
    #[must_use]
    pub fn is_same_as(&self, other: &Request) -> bool {
        self.generation == other.generation
            && self.version == other.version
            && self.started_at == other.started_at
            && (self.servers == other.servers || self.members() == other.members())
    }
}

/// `status/bootservers/<LRN>`: how far a host is.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostStatus {
    /// Target version.
    pub version: String,
    /// The step that the host has announced: everything before it is done.
    pub step: u32,
    /// The update to `version` is complete.
    pub finished: bool,
    /// The update was aborted.
    pub error: bool,
    /// Why.
    pub message: String,
    /// The request that this is about.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// How many steps the update has.
    #[serde(skip_serializing_if = "is_zero_step")]
    pub host_steps_total: u32,
    /// How often the operator had it tried again.
    #[serde(skip_serializing_if = "is_zero_step")]
    pub attempt: u32,
    /// After an error: the version that the host was taken back to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub rolled_back_to: String,
    /// After an error: the host could not be taken back.
    #[serde(skip_serializing_if = "is_false")]
    pub rollback_failed: bool,
    /// Nothing of this request runs on the host any more: it has seen the stop, or that it left the fleet.
    #[serde(skip_serializing_if = "is_false")]
    pub stopped: bool,
    /// When this was written, by the host's clock.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub updated_at: Option<Moment>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// What `finished` and `error` mean together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Neither.
    Running,
    /// Finished without an error.
    Completed,
    /// An error, whatever `finished` says.
    Aborted,
}

impl HostStatus {
    /// What `finished` and `error` mean together.
    #[must_use]
    pub fn condition(&self) -> Condition {
        match (self.finished, self.error) {
            (_, true) => Condition::Aborted,
            (true, false) => Condition::Completed,
            (false, false) => Condition::Running,
        }
    }

    /// The step that the host continues with: the announced one, or the one at which it failed. A host that was taken
    /// back, or was partly, has to run all steps again.
    #[must_use]
    pub fn continues_at(&self) -> u32 {
        if self.was_taken_back() { 1 } else { self.step }
    }

    /// Whether a rollback of this host has ended, with success or without.
    #[must_use]
    pub fn was_taken_back(&self) -> bool {
        self.rollback_failed || !self.rolled_back_to.is_empty()
    }

    /// Whether it is about this request, and not about an earlier one.
    #[must_use]
    pub fn is_about(&self, request: &Request) -> bool {
        self.version == request.version && self.generation == request.generation
    }
}

go_records!(
    Request [
        "version", "servers", "stop", "started_at", "generation", "update_id", "rollback", "stop_reason",
    ],
    HostStatus [
        "version", "step", "finished", "error", "message", "generation", "host_steps_total", "attempt",
        "rolled_back_to", "rollback_failed", "stopped", "updated_at",
    ],
);

/// `status/released`: the step that hosts may run together. A key of its own, because a worker that is older than it
/// takes every second put of `status/current` for a fault, and because a host guards its reports by that key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Released {
    /// The request that it belongs to.
    pub generation: u64,
    /// The step that may run, and every one before it.
    pub step: u32,
    /// A `once` step: the host that does it for all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub only: Option<Lrn>,
    /// A `once` step: that host is done, so that the others go on without doing it.
    #[serde(default, skip_serializing_if = "is_false")]
    pub done: bool,
    /// When it was released.
    pub at: Moment,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `hosts/<LRN>/desired`: what the updater wants of one host in its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Desired {
    /// The request that it belongs to.
    pub generation: u64,
    /// What is wanted.
    #[serde(flatten)]
    pub phase: Phase,
    /// The last step that the host may run by itself.
    pub through: u32,
    /// Grows with every order to try again.
    #[serde(default, skip_serializing_if = "is_zero_step")]
    pub attempt: u32,
    /// Since when it is in this phase.
    pub at: Moment,
    /// Why the host counts as failed, if it does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub failure: Option<String>,
}

impl Phase {
    /// Whether the host is out of service, or may be.
    #[must_use]
    pub fn is_active(&self) -> bool {
        match self {
            Phase::Drain | Phase::Run | Phase::Rollback { .. } | Phase::Return | Phase::Settle => true,
            Phase::Done | Phase::Gone | Phase::Failed => false,
        }
    }
}

/// Where a host is in its slot.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "lowercase")]
pub enum Phase {
    /// Its services move their work away.
    Drain,
    /// It runs the steps up to `through`.
    Run,
    /// It goes back to the version that it keeps.
    Rollback {
        /// That version.
        to: String,
    },
    /// Its services take up work again.
    Return,
    /// Its services work again; the host is watched for a while.
    Settle,
    /// It is through; its slot is free.
    Done,
    /// It had begun or was through, and its worker is gone: it is out of service, and its slot is free.
    Gone,
    /// It failed; its slot is free and it stays drained.
    Failed,
}

/// `hosts/<LRN>/info`: what is known about a host whether it is up or not.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostInfo {
    /// Its name in the kernel, where its services register; without one there is nothing to drain.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub host: Option<HostId>,
    /// What its operator says about it: `zone`, `rack`, `role`.
    pub labels: BTreeMap<String, String>,
    /// The machine that works under this number: the first one that started after the host joined.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub machine: String,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `hosts/<LRN>/lease`: the worker of this host is up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct HostLease {
    /// Names this run of the worker.
    pub boot: String,
    /// The version of the worker.
    pub worker_version: String,
    /// The release that the host has.
    pub release: String,
    /// After how many seconds without a sign of life the worker counts as gone.
    #[serde(skip_serializing_if = "is_zero")]
    pub ttl_seconds: u64,
    /// The highest request that the host has worked for, by its own journal.
    #[serde(skip_serializing_if = "is_zero")]
    pub generation: u64,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// `slots/<GROUP>`: the hosts that may be out of service now. One record per group, so that two reservations at a time
/// cannot both take the last slot.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Slots {
    /// By holder: a host of a rollout, or a machine that asked through FleetLock.
    pub holders: BTreeMap<String, Holder>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// The holder of a slot, and its purpose.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Holder {
    /// Which request it is for; nothing for a reboot that FleetLock was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub generation: Option<u64>,
    /// Since when.
    pub since: Moment,
}

json_records!(Released, Desired, HostInfo, HostLease, Slots);

/// Which rollout slot a host holds in [`Slots`].
#[must_use]
pub fn holder_of(lrn: Lrn) -> String {
    lrn.to_string()
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(crate) fn is_zero(number: &u64) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(crate) fn is_zero_step(number: &u32) -> bool {
    *number == 0
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde asks for a reference")]
pub(crate) fn is_false(flag: &bool) -> bool {
    !*flag
}

#[cfg(test)]
mod tests {
    use capstan_meta::record::Record;

    use super::*;

    #[test]
    fn the_documents_examples_are_written_byte_for_byte() {
        let request = Request {
            version: "1.2.3-1".to_owned(),
            servers: vec![Lrn(1), Lrn(2), Lrn(3)],
            started_at: "2018-11-02T08:23:49.907839312Z".parse().unwrap(),
            ..Request::default()
        };
        let expected = r#"{"version":"1.2.3-1","servers":[1,2,3],"stop":false,"started_at":"2018-11-02T08:23:49.907839312Z"}"#;
        assert_eq!(request.encode().unwrap(), expected);
        assert_eq!(Request::decode(expected.as_bytes()).unwrap(), request);
        let status = HostStatus {
            version: "1.2.3-1".to_owned(),
            step: 2,
            error: true,
            message: "cke update failed".to_owned(),
            ..HostStatus::default()
        };
        let expected =
            r#"{"version":"1.2.3-1","step":2,"finished":false,"error":true,"message":"cke update failed"}"#;
        assert_eq!(status.encode().unwrap(), expected);
        assert_eq!(HostStatus::decode(expected.as_bytes()).unwrap(), status);
    }

    #[test]
    fn what_others_added_survives() {
        let written = br#"{"cond":2,"version":"1","step":1,"Finished":true,"error":false,"message":""}"#;
        let status = HostStatus::decode(written).unwrap();
        assert_eq!(status.condition(), Condition::Completed);
        let again = r#"{"version":"1","step":1,"finished":true,"error":false,"message":"","cond":2}"#;
        assert_eq!(status.encode().unwrap(), again);
    }
}
