//! Malicious input to a proxy: the right error, bounded memory, no effect on other clients.

mod floods;
mod messages;
mod noise;
