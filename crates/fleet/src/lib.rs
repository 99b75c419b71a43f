//! Service 4: updates of a fleet of hosts, one safe step at a time.
//!
//! It knows nothing about the other services: what it asks of them it asks through drains.
//!
//! Read first: [`release::Manifest`] (what a release is), [`run::Runner`] (who carries a step out on a host).

pub mod artifact;
pub mod journal;
pub mod probe;
pub mod release;
pub mod run;
