//! What is done to a proxy on purpose: the right error, bounded memory, everyone else unharmed.

mod floods;
mod messages;
mod noise;
