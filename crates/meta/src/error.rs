//! What can go wrong with the store, and what a caller may do about it.

use crate::kv::Revision;

/// What a caller may do about an error. Every error of the product maps to exactly one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Remedy {
    /// Nothing happened; the same request may be sent again after a pause.
    Retry,
    /// It may have happened, or what the caller believed is out of date: read again, then decide anew.
    Refresh,
    /// Somebody else has taken over: stop acting.
    Fenced,
    /// The request is wrong and will stay wrong.
    Reject,
    /// A human must look.
    Report,
}

/// An error of the metadata store. Texts that clients match are etcd's own, without its `etcdserver: ` prefix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MetaError {
    /// The revision asked for has been compacted away; history begins at `oldest`.
    #[error("mvcc: required revision has been compacted")]
    Compacted {
        /// The oldest revision that can still be asked for.
        oldest: Revision,
    },
    /// The revision asked for does not exist yet.
    #[error("mvcc: required revision is a future revision")]
    FutureRevision,
    /// The request names no key.
    #[error("key is not provided")]
    EmptyKey,
    /// `ignore_value` or `ignore_lease` on a key that does not exist, or an operation without content.
    #[error("key not found")]
    KeyNotFound,
    /// `ignore_value` together with a value.
    #[error("value is provided")]
    ValueProvided,
    /// `ignore_lease` together with a lease.
    #[error("lease is provided")]
    LeaseProvided,
    /// More than 128 compares or operations.
    #[error("too many operations in txn request")]
    TooManyOps,
    /// One transaction writes one key twice.
    #[error("duplicate key given in txn request")]
    DuplicateKey,
    /// A sort order or target that does not exist.
    #[error("invalid sort option")]
    InvalidSort,
    /// The request is larger than a request may be.
    #[error("request is too large")]
    TooLarge,
    /// No such lease (any more).
    #[error("requested lease not found")]
    LeaseNotFound,
    /// A lease with this id exists.
    #[error("lease already exists")]
    LeaseExists,
    /// A time to live beyond what the store counts.
    #[error("too large lease TTL")]
    LeaseTtlTooLarge,
    /// A watch of a range that holds no key.
    #[error("mvcc: watcher range is empty")]
    EmptyWatchRange,
    /// The disk (or quota) is full. Reads go on; writes work again when there is room.
    #[error("mvcc: database space exceeded")]
    NoSpace,
    /// More requests are waiting than the store takes.
    #[error("too many requests")]
    TooManyRequests,
    /// User, password or permission.
    #[error("{0}")]
    Denied(String),
    /// The store refused the request for another reason.
    #[error("{0}")]
    Rejected(String),
    /// The store could not be reached and surely did nothing.
    #[error("metadata store unavailable: {0}")]
    Unavailable(String),
    /// The connection broke or timed out after the request was sent: it may or may not have happened.
    #[error("outcome unknown: {0}")]
    Unknown(String),
    /// The store is shutting down.
    #[error("server stopped")]
    Stopped,
    /// What is on disk is not what was written.
    #[error("corrupt data: {0}")]
    Corrupt(String),
    /// The disk failed; nothing is believed any more until a restart.
    #[error("storage failed: {0}")]
    Storage(String),
}

impl MetaError {
    /// What the caller may do about it.
    #[must_use]
    pub fn remedy(&self) -> Remedy {
        use MetaError::*;
        match self {
            Unavailable(_) | TooManyRequests | Stopped => Remedy::Retry,
            Unknown(_) | Compacted { .. } => Remedy::Refresh,
            LeaseNotFound => Remedy::Fenced,
            FutureRevision | EmptyKey | KeyNotFound | ValueProvided | LeaseProvided | TooManyOps
            | DuplicateKey | InvalidSort | TooLarge | LeaseExists | LeaseTtlTooLarge | EmptyWatchRange
            | Rejected(_) => Remedy::Reject,
            NoSpace | Denied(_) | Corrupt(_) | Storage(_) => Remedy::Report,
        }
    }
}

/// Result of a store operation.
pub type Result<T, E = MetaError> = std::result::Result<T, E>;
