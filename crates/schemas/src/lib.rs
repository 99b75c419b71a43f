//! The schema registry: subjects, versions, compatibility and payload validation.
//!
//! A subject is a list of versions of one schema (Avro, JSON Schema, Protobuf, or a primitive type). Registering a
//! version checks it against earlier ones by the subject's compatibility mode, and is one guarded transaction on the
//! keys that the broker's document names. This crate knows schemas and the metadata store; it must not know topics,
//! brokers or any wire but the HTTP shape in [`confluent`].
//!
//! Read first: [`Definition`] (a parsed schema), [`compat::problems`] (why a new version would break a reader),
//! [`Registry`] (the operations).

pub mod keys;
pub mod spec;

pub mod error;

pub mod format;

pub mod compat;

pub mod api;
pub mod confluent;

pub use api::{Registered, Registry, SubjectSummary, VersionInfo};
pub use compat::{Mode, Problem, Rules};
pub use error::SchemaError;
pub use format::{Definition, SchemaType, Validator};
pub use keys::Subject;
