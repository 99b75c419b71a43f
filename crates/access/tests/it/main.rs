//! Access as its users see it: credentials, sessions, decisions.

#![allow(clippy::unwrap_used, reason = "a panic is how a test reports")]

mod certs;
mod credentials;
mod decisions;
mod enroll;
