//! Who a request comes from, and what it may do: identities, access keys, roles, grants, and one pure decision.
//!
//! Every listener of Capstan authenticates with a [`Guard`] and asks it for a [`Decision`]. Decisions are made from a
//! view of the metadata, never from the store itself, and are denials unless a grant allows the request. This crate may
//! not know any service: what is protected is an [`Object`], named by text.
//!
//! Read first: [`grant::Grant`] (what a permission says), [`decide()`] (how it is applied), [`Guard`] (how a process uses
//! both).

pub mod api;
pub mod certs;
pub mod decide;
pub mod enroll;
pub mod error;
pub mod grant;
pub mod guard;
pub mod handshake;
pub mod keys;
pub mod limit;
pub mod object;
pub mod password;
pub mod policy;
pub mod secret;
pub mod spec;
pub mod tls;

pub use decide::{Decision, decide};
pub use error::{AccessError, Refused};
pub use grant::{Grant, Verb};
pub use guard::{Anonymous, Credential, Guard};
pub use object::Object;
pub use policy::{Identity, Policy};
pub use secret::Secret;
