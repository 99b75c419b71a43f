//! What this host began and what it finished, so that a crash at any instant resumes instead of doing half a step twice.
//!
//! Before a host acts it writes what it is about to do; when it has done it, it writes that. What is on the disk is
//! decided by [`Journal`], what follows from it by the pure function [`resume`].

mod file;
mod record;
mod resume;

pub(crate) use file::now;
pub use file::{Journal, JournalError, read};
pub use record::{Act, Course, Entry, Event};
pub use resume::{Contradiction, Remaining, Trace, resume};
