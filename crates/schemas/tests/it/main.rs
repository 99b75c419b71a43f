//! The schema registry: compatibility verdicts, the stored records, the HTTP shape.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a panic in a test is a failed test")]

mod avro;
mod cases;
mod http;
mod json;
mod payloads;
mod protobuf;
mod registry;
mod serialisers;
