//! Which gRPC status does an error become? Here and nowhere else. Clients match code and text byte for byte.

use tonic::{Code, Status};

use super::auth::Refusal;
use crate::error::MetaError;

/// What every text of the server begins with.
const PREFIX: &str = "etcdserver: ";

/// The status that clients of the format expect for this error.
pub(super) fn status(error: MetaError) -> Status {
    use MetaError::*;
    let text = error.to_string();
    match error {
        EmptyKey | KeyNotFound | ValueProvided | LeaseProvided | TooManyOps | DuplicateKey | InvalidSort
        | TooLarge => refuse(Code::InvalidArgument, &text),
        EmptyWatchRange => Status::invalid_argument(text),
        Compacted { .. } | FutureRevision | LeaseTtlTooLarge => refuse(Code::OutOfRange, &text),
        LeaseNotFound => refuse(Code::NotFound, &text),
        LeaseExists | Rejected(_) => refuse(Code::FailedPrecondition, &text),
        NoSpace | TooManyRequests => refuse(Code::ResourceExhausted, &text),
        Denied(_) => refuse(Code::PermissionDenied, &text),
        Unavailable(_) | Stopped => refuse(Code::Unavailable, &text),
        // Clients know the next two by the format's own words; what exactly happened is for the operator.
        Unknown(detail) => {
            tracing::warn!(%detail, "outcome of a request is unknown");
            refuse(Code::Unavailable, "request timed out")
        }
        Corrupt(detail) => {
            tracing::error!(%detail, "store is corrupt");
            refuse(Code::DataLoss, "corrupt cluster")
        }
        Storage(detail) => {
            tracing::error!(%detail, "storage failed");
            refuse(Code::Internal, &text)
        }
    }
}

/// The status of a call or a change of users that is refused.
pub(super) fn refused(refusal: Refusal) -> Status {
    use Refusal::*;
    let code = match refusal {
        RootUserMissing | RootRoleMissing | UserExists | UserNotFound | RoleExists | RoleNotFound
        | RoleNotGranted | PermissionNotGranted | NotEnabled => Code::FailedPrecondition,
        UserEmpty | RoleEmpty | PermissionNotGiven | InvalidManagement | SignInFailed | OldRevision => {
            Code::InvalidArgument
        }
        Denied => Code::PermissionDenied,
        InvalidToken => Code::Unauthenticated,
        TooMany | TooLarge => Code::ResourceExhausted,
    };
    refuse(code, &refusal.to_string())
}

/// A refusal in the format's words.
pub(super) fn refuse(code: Code, text: &str) -> Status {
    Status::new(code, format!("{PREFIX}{text}"))
}

/// The server is going away; every long-lived call ends with this.
pub(super) fn stopped() -> Status {
    status(MetaError::Stopped)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kv::Revision;

    #[test]
    fn clients_find_the_code_and_the_text_that_they_match() {
        let table = [
            (
                MetaError::Compacted { oldest: Revision(3) },
                Code::OutOfRange,
                "etcdserver: mvcc: required revision has been compacted",
            ),
            (
                MetaError::FutureRevision,
                Code::OutOfRange,
                "etcdserver: mvcc: required revision is a future revision",
            ),
            (MetaError::EmptyKey, Code::InvalidArgument, "etcdserver: key is not provided"),
            (MetaError::KeyNotFound, Code::InvalidArgument, "etcdserver: key not found"),
            (MetaError::ValueProvided, Code::InvalidArgument, "etcdserver: value is provided"),
            (MetaError::LeaseProvided, Code::InvalidArgument, "etcdserver: lease is provided"),
            (MetaError::TooManyOps, Code::InvalidArgument, "etcdserver: too many operations in txn request"),
            (
                MetaError::DuplicateKey,
                Code::InvalidArgument,
                "etcdserver: duplicate key given in txn request",
            ),
            (MetaError::InvalidSort, Code::InvalidArgument, "etcdserver: invalid sort option"),
            (MetaError::TooLarge, Code::InvalidArgument, "etcdserver: request is too large"),
            (MetaError::LeaseNotFound, Code::NotFound, "etcdserver: requested lease not found"),
            (MetaError::LeaseExists, Code::FailedPrecondition, "etcdserver: lease already exists"),
            (MetaError::LeaseTtlTooLarge, Code::OutOfRange, "etcdserver: too large lease TTL"),
            (MetaError::NoSpace, Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded"),
            (MetaError::TooManyRequests, Code::ResourceExhausted, "etcdserver: too many requests"),
            (MetaError::Stopped, Code::Unavailable, "etcdserver: server stopped"),
            (MetaError::Unknown("cut".into()), Code::Unavailable, "etcdserver: request timed out"),
            (MetaError::Corrupt("row 7".into()), Code::DataLoss, "etcdserver: corrupt cluster"),
            (MetaError::EmptyWatchRange, Code::InvalidArgument, "mvcc: watcher range is empty"),
        ];
        for (error, code, text) in table {
            let status = status(error);
            assert_eq!((status.code(), status.message()), (code, text));
        }
    }
}
