//! The host's side: a pure machine, and the shell that performs its effects.

mod machine;
mod shell;

pub use machine::{Agent, Effect, wanted};
pub use shell::Shell;
