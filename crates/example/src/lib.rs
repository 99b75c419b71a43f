//! A small service on the kernel, complete enough to copy: the code of `docs/write-a-service.md`.
//!
//! A *beacon* is a name that must be lit on a number of hosts. An operator writes how many, the controller chooses the
//! hosts, the agent of each host keeps a file for every beacon that is lit there. This crate does not know other
//! services, and nothing outside depends on it.
//!
//! Read first: [`spec::Spec`] (what is asked for), [`decide::place`] (what happens next), [`agent::Agent`] (what a host
//! does about it).

pub mod keys;
pub mod spec;
pub mod status;

pub mod facts;

pub mod decide;

pub mod commit;
pub mod controller;

pub mod drain;

pub mod agent;

pub mod check;
