//! Who may do what on this wire? Etcd's users, roles and permissions by range.
//!
//! The record of users and roles ([`record`]) is kept by the store beside its keys: it has no key and no revision of theirs.
//! Decisions are made on [`rules`], which are computed once a change. A call shows a token ([`token`], [`jwt`]), which
//! names a user; what the call may touch is checked before the store sees it. A call that is under way holds the
//! [`Gate`](access::Permit) open, so a change of users or roles takes effect between calls and never in the middle of one.
//!
//! The process that serves the store reads and writes it directly and is not asked for a token.
//!
//! Stricter than etcd 3.4, as its later versions are: leases and the member list need a user, compaction and alarms need
//! root, and operations in nested transactions are checked like all others.

mod access;
mod jwt;
mod password;
mod range;
mod record;
mod rules;
mod service;
mod sign;
mod token;

pub(super) use access::{Access, Permit};
pub use jwt::{JwtError, JwtKeys};
pub(super) use record::Refusal;
pub(super) use rules::Access as KeyAccess;
pub use token::TokenKind;
