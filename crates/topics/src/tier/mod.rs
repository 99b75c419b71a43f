//! Old messages in object storage: closed files of a topic's log are uploaded, then described in the metadata, then
//! dropped from the log. Readers cross from objects to the log and see no difference.
//!
//! Objects of a topic form a chain: each begins where the one before ended. An object is written before
//! its descriptor; one without a descriptor is an orphan and is deleted. The name of an object holds the epoch in which
//! it was written, and a descriptor is only written in that epoch, so that a broker of the past can neither add an object
//! nor have one deleted that a later broker is about to describe.

pub(crate) mod chain;
pub(crate) mod commit;
pub(crate) mod compact;
pub(crate) mod object;
pub(crate) mod place;
pub(crate) mod store;

pub(crate) use place::TierOfTopic;
pub use store::{Credentials, Tier, TierOptions};
