//! Pure: facts in, next steps out.

mod place;

pub use place::{Change, place};
