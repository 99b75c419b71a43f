//! What can go wrong when the fleet is asked for something, and what the caller may do about it.

use capstan_control::ControlError;
use capstan_meta::record::{BadValue, InvalidName, RecordError};
use capstan_meta::settle::Contended;
use capstan_meta::{MetaError, Remedy};

use crate::lrn::Lrn;
use crate::spec::PolicyError;

/// An error of the fleet. Texts say what happened, to which object, and what to do next.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FleetError {
    /// There is no such thing.
    #[error("{0} not found")]
    NotFound(String),
    /// The host has not joined.
    #[error("host {0} not found: it has not joined the fleet; `hosts` shows those that have")]
    UnknownHost(Lrn),
    /// There is nothing under way that could be steered.
    #[error("no update is under way")]
    NothingUnderWay,
    /// Only a stopped request can be cleared away.
    #[error("not stopped: the request for {0} is not stopped; `stop` it first")]
    NotStopped(String),
    /// A host that left has not confirmed that it has stopped.
    #[error(
        "host {0} has left the registry, and its worker has not confirmed that it has stopped; it keeps its slot and \
             its drain until then; `leave` it again later, or end its worker"
    )]
    StillRunning(Lrn),
    /// A rule against accidents says no.
    #[error("refused: {0}")]
    Refused(String),
    /// What was given is not what is wanted.
    #[error("{0}")]
    Invalid(String),
    /// A policy that cannot be one.
    #[error("the policy of group {group} cannot be: {error}")]
    Policy {
        /// The group.
        group: String,
        /// What is wrong with it.
        error: PolicyError,
    },
    /// Others kept changing the same record.
    #[error(transparent)]
    Contended(#[from] Contended),
    /// Another server did not do what was asked.
    #[error("{0}")]
    Elsewhere(String),
    /// The store holds something unreadable.
    #[error(transparent)]
    BadValue(#[from] BadValue),
    /// The store could not do it.
    #[error(transparent)]
    Store(#[from] MetaError),
}

impl FleetError {
    /// Others kept changing `what`.
    pub(crate) fn contended(what: impl Into<String>) -> FleetError {
        FleetError::Contended(Contended { what: what.into() })
    }

    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        match self {
            FleetError::NotFound(_)
            | FleetError::UnknownHost(_)
            | FleetError::NothingUnderWay
            | FleetError::NotStopped(_)
            | FleetError::Refused(_)
            | FleetError::Invalid(_)
            | FleetError::Policy { .. } => Remedy::Reject,
            FleetError::Contended(_) | FleetError::Elsewhere(_) | FleetError::StillRunning(_) => {
                Remedy::Retry
            }
            FleetError::BadValue(_) => Remedy::Report,
            FleetError::Store(error) => error.remedy(),
        }
    }
}

impl From<RecordError> for FleetError {
    fn from(error: RecordError) -> FleetError {
        match error {
            RecordError::Store(error) => FleetError::Store(error),
            RecordError::BadValue(error) => FleetError::BadValue(error),
        }
    }
}

impl From<InvalidName> for FleetError {
    fn from(error: InvalidName) -> FleetError {
        FleetError::Invalid(error.to_string())
    }
}

impl From<ControlError> for FleetError {
    fn from(error: ControlError) -> FleetError {
        match error {
            ControlError::BadValue(error) => FleetError::BadValue(error),
            ControlError::Store(error) => FleetError::Store(error),
            ControlError::Contended { what } => FleetError::contended(what),
            ControlError::UnknownHost(_)
            | ControlError::NothingToDrain(_)
            | ControlError::StillUp(_)
            | ControlError::HoldsData { .. }
            | ControlError::InvalidName(_) => FleetError::Invalid(error.to_string()),
        }
    }
}
