//! Which channels does a command use?

use std::ops::Range;

use super::Command;
use super::flags::PUBSUB;
use crate::resp::Request;

/// The channels of a request that need permission. To unsubscribe needs none.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Channels {
    /// It has none.
    None,
    /// These arguments are channels.
    Named(Range<usize>),
    /// These arguments are patterns of channels.
    Patterns(Range<usize>),
}

impl Command {
    /// The channels that a request subscribes or publishes to.
    #[must_use]
    #[inline]
    pub fn channels(&self, request: Request<'_>) -> Channels {
        if self.flags & PUBSUB == 0 {
            return Channels::None;
        }
        match self.name {
            "publish" | "spublish" => Channels::Named(1..2),
            "subscribe" | "ssubscribe" => Channels::Named(1..request.len()),
            "psubscribe" => Channels::Patterns(1..request.len()),
            _ => Channels::None,
        }
    }
}
