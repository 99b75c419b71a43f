//! The query and update language: pure functions over BSON values.
//!
//! Parsing refuses what it does not understand ([`Refusal`]); evaluating never fails on what was parsed, except for
//! updates that a document does not admit. Read first: [`Filter`], [`Update`].

mod filter;
pub(crate) mod json;
mod names;
mod order;
mod path;
mod projection;
pub(crate) mod query_string;
mod sort;
mod update;

pub use filter::{Filter, Range, Test};
pub use json::{from_json, to_json};
pub use names::check_names;
pub use order::{compare, sort_key};
pub(crate) use order::{encoded_len, text_of_key};
pub use path::Path;
pub use projection::Projection;
pub use query_string::parse_query;
pub use sort::Sort;
pub use update::Update;

/// Levels of nesting of a document or a filter: deeper ones are refused, so that no recursion runs out of stack. An update
/// of twice as many levels on its way between nodes has overflowed the 2 MiB of a worker thread in a debug build.
pub const MAX_DEPTH: usize = 32;
/// Conditions of one filter or operators of one update.
pub const MAX_TERMS: usize = 1_000;

/// Why a filter, an update or a document is not accepted. The text is for the client.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Refusal(pub String);

impl Refusal {
    pub(crate) fn new(text: impl Into<String>) -> Refusal {
        Refusal(text.into())
    }
}
