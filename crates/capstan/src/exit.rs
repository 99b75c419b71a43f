//! The exit codes of commands, and the code for each error. Scripts may rely on these numbers.

use std::io::ErrorKind;
use std::net::SocketAddr;
use std::process::ExitCode;

use capstan_access::{AccessError, Refused};
use capstan_control::ControlError;
use capstan_control::tasks::Failure;
use capstan_fleet::FleetError;
use capstan_meta::embedded::{OpenError, RestoreError};
use capstan_meta::wire::ServeError;
use capstan_meta::{MetaError, Remedy};
use capstan_redis::error::BrokerError;
use capstan_schemas::SchemaError;
use capstan_topics::TopicsError;

use crate::config;
use crate::daemon::InUse;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Done,
    /// The command worked and the result is negative: not found, not ready, refused.
    Failed,
    /// Invalid command line.
    Usage,
    /// Not yet: in progress.
    Waiting,
    /// The configuration is not valid.
    Config,
    /// The metadata store cannot be reached.
    Unavailable,
    /// An internal error.
    Internal,
    /// An address to listen on is in use.
    AddressInUse,
    /// The data directory is open in another process.
    Locked,
    /// The disk is full or failed, or its data is damaged.
    Storage,
    /// The outcome is unknown.
    Unknown,
    /// The data directory was written by a newer version.
    NewerData,
    /// User, password or permission.
    Denied,
    /// A second signal arrived during shutdown.
    Aborted,
}

impl Exit {
    /// Every way to end, in the order of the codes.
    pub(crate) const ALL: &[Exit] = &[
        Exit::Done,
        Exit::Failed,
        Exit::Usage,
        Exit::Waiting,
        Exit::Config,
        Exit::Unavailable,
        Exit::Internal,
        Exit::AddressInUse,
        Exit::Locked,
        Exit::Storage,
        Exit::Unknown,
        Exit::NewerData,
        Exit::Denied,
        Exit::Aborted,
    ];

    /// The number, after sysexits where it has one that fits.
    pub(crate) fn code(self) -> u8 {
        match self {
            Exit::Done => 0,
            Exit::Failed => 1,
            Exit::Usage => 2,
            Exit::Waiting => 3,
            Exit::Config => 64,
            Exit::Unavailable => 69,
            Exit::Internal => 70,
            Exit::AddressInUse => 71,
            Exit::Locked => 73,
            Exit::Storage => 74,
            Exit::Unknown => 75,
            Exit::NewerData => 76,
            Exit::Denied => 77,
            Exit::Aborted => 130,
        }
    }

    /// What it means, for the help text and the manual.
    pub(crate) fn meaning(self) -> &'static str {
        match self {
            Exit::Done => "done",
            Exit::Failed => "the result is negative: not found, not green, refused",
            Exit::Usage => "invalid command line",
            Exit::Waiting => "not yet: in progress or waiting",
            Exit::Config => "the configuration is not valid; nothing was started",
            Exit::Unavailable => "the metadata store cannot be reached; nothing was changed",
            Exit::Internal => "internal error of Capstan",
            Exit::AddressInUse => "an address to listen on is in use",
            Exit::Locked => "the data directory is open in another process",
            Exit::Storage => "the disk is full or failed, or the data on it is damaged",
            Exit::Unknown => "the outcome is unknown: check the state, then decide",
            Exit::NewerData => "the data directory was written by a newer version",
            Exit::Denied => "user, password or permission",
            Exit::Aborted => "a second signal arrived during shutdown",
        }
    }

    /// The code for an error: decided by the first cause that is known here.
    pub(crate) fn of(error: &anyhow::Error) -> Exit {
        error.chain().find_map(of_cause).unwrap_or(Exit::Failed)
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> ExitCode {
        ExitCode::from(exit.code())
    }
}

/// An address that could not be bound.
#[derive(Debug, thiserror::Error)]
#[error("cannot listen on {address} ({setting}): {cause}{}", advice(.cause, .setting))]
pub(crate) struct CannotListen {
    pub(crate) address: SocketAddr,
    pub(crate) setting: &'static str,
    pub(crate) cause: std::io::Error,
}

fn advice(cause: &std::io::Error, setting: &str) -> String {
    match cause.kind() {
        ErrorKind::AddrInUse => format!(
            "\nAnother process listens there. Stop it, or choose another port with --set {setting}=ip:port (`capstan up`: \
             also --port-base N)."
        ),
        ErrorKind::PermissionDenied => "\nPorts below 1024 need a privileged user.".to_owned(),
        _ => String::new(),
    }
}

fn of_cause(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if cause.is::<config::Invalid>() {
        return Some(Exit::Config);
    }
    if cause.is::<InUse>() {
        return Some(Exit::Locked);
    }
    if cause.is::<Failure>() {
        return Some(Exit::Internal);
    }
    if let Some(refused) = cause.downcast_ref::<CannotListen>() {
        return Some(if refused.cause.kind() == ErrorKind::AddrInUse {
            Exit::AddressInUse
        } else {
            Exit::Failed
        });
    }
    // Wrapper errors are inspected themselves: what they wrap is not always in the chain.
    match (cause.downcast_ref::<ControlError>(), cause.downcast_ref::<ServeError>()) {
        (Some(error), _) => return Some(of_control(error)),
        (_, Some(ServeError::Store(error))) => return Some(of_meta(error)),
        (None, Some(ServeError::Socket(_)) | None) => {}
    }
    if let Some(error) = cause.downcast_ref::<FleetError>() {
        return Some(of_fleet(error));
    }
    if let Some(error) = cause.downcast_ref::<RestoreError>() {
        return Some(of_restore(error));
    }
    if let Some(error) = cause.downcast_ref::<BrokerError>() {
        return Some(of_broker(error));
    }
    if let Some(error) = cause.downcast_ref::<AccessError>() {
        return Some(of_access(error));
    }
    if cause.is::<Refused>() {
        return Some(Exit::Denied);
    }
    let remedy = cause.downcast_ref::<SchemaError>().map(SchemaError::remedy);
    if let Some(remedy) = remedy.or_else(|| cause.downcast_ref::<TopicsError>().map(TopicsError::remedy)) {
        return Some(of_remedy(remedy));
    }
    cause.downcast_ref::<OpenError>().map(of_open).or_else(|| cause.downcast_ref::<MetaError>().map(of_meta))
}

/// What a service's error means to a script, where nothing more is known than what to do about it.
fn of_remedy(remedy: Remedy) -> Exit {
    match remedy {
        Remedy::Reject | Remedy::Refresh | Remedy::Fenced => Exit::Failed,
        Remedy::Retry => Exit::Unavailable,
        Remedy::Report => Exit::Internal,
    }
}

fn of_control(error: &ControlError) -> Exit {
    match error {
        ControlError::Store(error) => of_meta(error),
        ControlError::BadValue(_) => Exit::Storage,
        ControlError::UnknownHost(_)
        | ControlError::NothingToDrain(_)
        | ControlError::StillUp(_)
        | ControlError::HoldsData { .. }
        | ControlError::Contended { .. }
        | ControlError::InvalidName(_) => Exit::Failed,
    }
}

fn of_fleet(error: &FleetError) -> Exit {
    match error {
        FleetError::Store(error) => of_meta(error),
        FleetError::BadValue(_) => Exit::Storage,
        FleetError::StillRunning(_) => Exit::Waiting,
        FleetError::NotFound(_)
        | FleetError::UnknownHost(_)
        | FleetError::NothingUnderWay
        | FleetError::NotStopped(_)
        | FleetError::Refused(_)
        | FleetError::Invalid(_)
        | FleetError::Policy { .. }
        | FleetError::Contended(_)
        | FleetError::Elsewhere(_) => Exit::Failed,
    }
}

/// A rejection by the broker is a result; errors of the store keep their own code.
fn of_broker(error: &BrokerError) -> Exit {
    match error {
        BrokerError::Store(error) => of_meta(error),
        BrokerError::BadValue(_) => Exit::Storage,
        refused => match refused.remedy() {
            Remedy::Retry | Remedy::Refresh | Remedy::Fenced | Remedy::Reject => Exit::Failed,
            Remedy::Report => Exit::Internal,
        },
    }
}

fn of_access(error: &AccessError) -> Exit {
    match error {
        AccessError::Store(error) => of_meta(error),
        AccessError::BadValue(_) => Exit::Storage,
        AccessError::Refused(_) => Exit::Denied,
        AccessError::NotFound(_)
        | AccessError::Exists(_)
        | AccessError::Invalid(_)
        | AccessError::Unenrolled(_)
        | AccessError::Contended(_) => Exit::Failed,
    }
}

fn of_open(error: &OpenError) -> Exit {
    match error {
        OpenError::Locked(_) => Exit::Locked,
        OpenError::Newer { .. } => Exit::NewerData,
        OpenError::Corrupt { .. } | OpenError::Unusable { .. } | OpenError::Unfinished(_) => Exit::Storage,
        OpenError::NotEmpty(_) => Exit::Failed,
    }
}

fn of_restore(error: &RestoreError) -> Exit {
    match error {
        RestoreError::Open(error) => of_open(error),
        RestoreError::Damaged(_) | RestoreError::Io(_) => Exit::Storage,
    }
}

fn of_meta(error: &MetaError) -> Exit {
    use MetaError::*;
    match error {
        Unavailable(_) | TooManyRequests | Stopped => Exit::Unavailable,
        Unknown(_) => Exit::Unknown,
        Denied(_) => Exit::Denied,
        NoSpace | Corrupt(_) | Storage(_) => Exit::Storage,
        Compacted { .. }
        | FutureRevision
        | EmptyKey
        | KeyNotFound
        | ValueProvided
        | LeaseProvided
        | TooManyOps
        | DuplicateKey
        | InvalidSort
        | TooLarge
        | LeaseNotFound
        | LeaseExists
        | LeaseTtlTooLarge
        | EmptyWatchRange
        | Rejected(_) => Exit::Failed,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn codes_are_distinct_and_in_order() {
        assert!(Exit::ALL.windows(2).all(|pair| pair[0].code() < pair[1].code()));
    }

    #[test]
    fn context_does_not_hide_the_cause() {
        let error =
            anyhow::Error::new(MetaError::Unavailable("refused".to_owned())).context("cannot list hosts");
        assert_eq!(Exit::of(&error), Exit::Unavailable);
        assert_eq!(Exit::of(&anyhow::anyhow!("something")), Exit::Failed);
    }
}
