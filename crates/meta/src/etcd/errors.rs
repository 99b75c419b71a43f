//! What an error of etcd (or of the way to it) means to a caller: did it happen, surely not, or who knows.

use std::error::Error as StdError;

use etcd_client::Error;
use tonic::{Code, ConnectError, Status};

use crate::error::MetaError;
use crate::kv::Revision;

/// Etcd puts this in front of its texts.
const TEXT_PREFIX: &str = "etcdserver: ";

/// Why a call failed, by what it says about the request.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Failure {
    /// The server looked at it and refused: it did not happen.
    Refused(MetaError),
    /// It never reached a server that would do it.
    Unsent(String),
    /// It was sent, and then the connection, the server or our patience ended.
    Broken(String),
    /// It was done, and the answer is larger than we take.
    Oversized(String),
}

impl Failure {
    /// Judges an error of the client.
    pub(super) fn of(error: Error) -> Failure {
        match error {
            Error::GRpcStatus(status) => of_status(&status),
            Error::TransportError(error) if never_connected(&error) => Failure::Unsent(error_text(&error)),
            Error::TransportError(error) => Failure::Broken(error_text(&error)),
            Error::IoError(error) => Failure::Broken(error.to_string()),
            Error::LeaseKeepAliveError(text) if text == "lease not found" => {
                Failure::Refused(MetaError::LeaseNotFound)
            }
            Error::LeaseKeepAliveError(text) | Error::WatchError(text) | Error::Internal(text) => {
                Failure::Broken(text)
            }
            error => Failure::Refused(MetaError::Rejected(error.to_string())),
        }
    }

    /// The error of a read: whatever broke, asking again is safe.
    pub(super) fn of_read(self) -> MetaError {
        match self {
            Failure::Refused(error) => error,
            Failure::Unsent(text) | Failure::Broken(text) => MetaError::Unavailable(text),
            Failure::Oversized(text) => MetaError::Rejected(text),
        }
    }

    /// The error of a write: what was sent may have happened.
    pub(super) fn of_write(self) -> MetaError {
        match self {
            Failure::Refused(error) => error,
            Failure::Unsent(text) => MetaError::Unavailable(text),
            Failure::Broken(text) | Failure::Oversized(text) => MetaError::Unknown(text),
        }
    }
}

/// Judges a status. Etcd's texts decide first: its codes are shared by errors of different meaning.
fn of_status(status: &Status) -> Failure {
    let text = status.message();
    if let Some(failure) = of_text(text.strip_prefix(TEXT_PREFIX).unwrap_or(text)) {
        return failure;
    }
    let text = status_text(status);
    match status.code() {
        _ if status.source().is_some_and(never_connected) => Failure::Unsent(text),
        // The channel was closed before the request was handed to it.
        Code::Unknown if text.starts_with("Service was not ready") => Failure::Unsent(text),
        Code::OutOfRange if text.contains("decoded message length too large") => Failure::Oversized(text),
        Code::ResourceExhausted if text.contains("larger than max") => Failure::Refused(MetaError::TooLarge),
        Code::ResourceExhausted => Failure::Refused(MetaError::TooManyRequests),
        Code::PermissionDenied | Code::Unauthenticated => Failure::Refused(MetaError::Denied(text)),
        Code::DataLoss => Failure::Refused(MetaError::Corrupt(text)),
        Code::InvalidArgument
        | Code::NotFound
        | Code::AlreadyExists
        | Code::FailedPrecondition
        | Code::OutOfRange
        | Code::Unimplemented => Failure::Refused(MetaError::Rejected(text)),
        Code::Ok
        | Code::Cancelled
        | Code::Unknown
        | Code::DeadlineExceeded
        | Code::Aborted
        | Code::Internal
        | Code::Unavailable => Failure::Broken(text),
    }
}

/// What etcd's own texts say, without their prefix.
pub(super) fn of_text(text: &str) -> Option<Failure> {
    use MetaError::*;
    let refused = match text {
        // `oldest` is not in the text; whoever reports the error asks for it.
        "mvcc: required revision has been compacted" => Compacted { oldest: Revision::ZERO },
        "mvcc: required revision is a future revision" => FutureRevision,
        "key is not provided" => EmptyKey,
        "key not found" => KeyNotFound,
        "value is provided" => ValueProvided,
        "lease is provided" => LeaseProvided,
        "too many operations in txn request" => TooManyOps,
        "duplicate key given in txn request" => DuplicateKey,
        "invalid sort option" => InvalidSort,
        "request is too large" => TooLarge,
        "requested lease not found" => LeaseNotFound,
        "lease already exists" => LeaseExists,
        "too large lease TTL" => LeaseTtlTooLarge,
        "mvcc: watcher range is empty" => EmptyWatchRange,
        "mvcc: database space exceeded" => NoSpace,
        "too many requests" => TooManyRequests,
        "corrupt cluster" => Corrupt(text.to_owned()),
        "permission denied"
        | "invalid auth token"
        | "authentication failed, invalid user ID or password"
        | "authentication is not enabled"
        | "user name is empty"
        | "user name not found"
        | "root user does not exist"
        | "revision of auth store is old"
        | "auth: revision in header is old" => Denied(text.to_owned()),
        // Said before anything is proposed.
        "no leader" | "not leader" => return Some(Failure::Unsent(text.to_owned())),
        // Said while a proposal was under way: it may still be committed.
        "leader changed" | "server stopped" => return Some(Failure::Broken(text.to_owned())),
        _ if text.starts_with("request timed out") => return Some(Failure::Broken(text.to_owned())),
        _ => return None,
    };
    Some(Failure::Refused(refused))
}

/// Whether the chain of causes says that no connection came about.
fn never_connected(error: &(dyn StdError + 'static)) -> bool {
    causes(error).any(|error| error.is::<ConnectError>())
}

/// An error and what caused it, outermost first.
fn causes<'a>(error: &'a (dyn StdError + 'static)) -> impl Iterator<Item = &'a (dyn StdError + 'static)> {
    std::iter::successors(Some(error), |error| (*error).source())
}

fn status_text(status: &Status) -> String {
    match status.source() {
        Some(source) => error_text(source),
        None => status.message().to_owned(),
    }
}

/// The chain of causes in one line; tonic's outermost text alone is "transport error".
fn error_text(error: &(dyn StdError + 'static)) -> String {
    let mut parts: Vec<String> = Vec::new();
    for cause in causes(error) {
        let text = cause.to_string();
        if parts.last() != Some(&text) {
            parts.push(text);
        }
    }
    parts.join(": ")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Remedy;

    fn write(code: Code, text: &str) -> MetaError {
        Failure::of(Error::GRpcStatus(Status::new(code, text))).of_write()
    }

    fn read(code: Code, text: &str) -> MetaError {
        Failure::of(Error::GRpcStatus(Status::new(code, text))).of_read()
    }

    #[test]
    fn every_text_of_ours_comes_back_as_itself() {
        use MetaError::*;
        for error in [
            Compacted { oldest: Revision::ZERO },
            FutureRevision,
            EmptyKey,
            KeyNotFound,
            ValueProvided,
            LeaseProvided,
            TooManyOps,
            DuplicateKey,
            InvalidSort,
            TooLarge,
            LeaseNotFound,
            LeaseExists,
            LeaseTtlTooLarge,
            EmptyWatchRange,
            NoSpace,
            TooManyRequests,
        ] {
            assert_eq!(write(Code::Unknown, &format!("etcdserver: {error}")), error);
            assert_eq!(read(Code::Unknown, &error.to_string()), error);
        }
    }

    #[test]
    fn a_write_that_may_have_happened_is_unknown_and_a_read_may_be_repeated() {
        for (code, text) in [
            (Code::Unavailable, "etcdserver: leader changed"),
            (Code::Unavailable, "etcdserver: server stopped"),
            (Code::Unavailable, "etcdserver: request timed out"),
            (Code::Unavailable, "etcdserver: request timed out, possibly due to previous leader failure"),
            (Code::Unavailable, "transport is closing"),
            (Code::DeadlineExceeded, "context deadline exceeded"),
            (Code::Cancelled, "operation was canceled"),
            (Code::Unknown, "h2 protocol error: error reading a body from connection"),
            (Code::Internal, "protocol error"),
        ] {
            assert!(matches!(write(code, text), MetaError::Unknown(_)), "{text}");
            assert_eq!(write(code, text).remedy(), Remedy::Refresh, "{text}");
            assert!(matches!(read(code, text), MetaError::Unavailable(_)), "{text}");
        }
    }

    #[test]
    fn what_never_reached_a_leader_may_be_sent_again() {
        for text in ["etcdserver: no leader", "etcdserver: not leader"] {
            assert_eq!(write(Code::Unavailable, text).remedy(), Remedy::Retry, "{text}");
        }
        let refused = std::io::Error::from(std::io::ErrorKind::ConnectionRefused);
        let status = Status::from_error(Box::new(ConnectError(Box::new(refused))));
        let error = Failure::of(Error::GRpcStatus(status)).of_write();
        assert!(matches!(&error, MetaError::Unavailable(text) if text.contains("refused")), "{error}");
    }

    #[test]
    fn a_connection_that_broke_in_the_middle_is_not_a_failed_connect() {
        let reset = std::io::Error::from(std::io::ErrorKind::ConnectionReset);
        let status = Status::from_error(Box::new(reset));
        assert!(matches!(Failure::of(Error::GRpcStatus(status)), Failure::Broken(_)));
    }

    #[test]
    fn refusals_are_told_by_code_where_the_text_is_not_known() {
        let cases = [
            (Code::PermissionDenied, "etcdserver: permission denied", Remedy::Report),
            (Code::Unauthenticated, "some other text", Remedy::Report),
            (Code::InvalidArgument, "etcdserver: user name already exists", Remedy::Reject),
            (Code::ResourceExhausted, "grpc: received message larger than max (3 vs. 2)", Remedy::Reject),
            (Code::ResourceExhausted, "etcdserver: too many requests", Remedy::Retry),
            (Code::Unimplemented, "unknown method", Remedy::Reject),
            (Code::DataLoss, "etcdserver: corrupt cluster", Remedy::Report),
        ];
        for (code, text, remedy) in cases {
            assert_eq!(write(code, text).remedy(), remedy, "{text}");
        }
    }

    #[test]
    fn an_answer_too_large_for_us_ends_a_read_and_says_nothing_about_a_write() {
        let text = "Error, decoded message length too large: found 5 bytes, the limit is: 4 bytes";
        assert!(matches!(write(Code::OutOfRange, text), MetaError::Unknown(_)));
        assert_eq!(read(Code::OutOfRange, text).remedy(), Remedy::Reject);
    }
}
