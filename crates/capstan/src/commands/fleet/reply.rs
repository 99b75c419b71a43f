//! The reply of a command that changed something: one sentence, or the same facts as JSON.

use anyhow::Result;
use serde::Serialize;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// What was done, to what, and what comes next.
#[derive(Debug, Serialize)]
pub(super) struct Reply {
    /// The verb.
    pub(super) done: &'static str,
    /// The host, release, group or setting that it was done to.
    #[serde(skip_serializing_if = "String::is_empty")]
    pub(super) object: String,
    /// A sentence.
    pub(super) message: String,
    /// What to type next.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(super) next: Option<String>,
}

impl Reply {
    /// A reply.
    pub(super) fn new(done: &'static str, object: impl ToString, message: impl Into<String>) -> Reply {
        Reply { done, object: object.to_string(), message: message.into(), next: None }
    }

    /// Adds the next command.
    pub(super) fn then(self, next: impl Into<String>) -> Reply {
        Reply { next: Some(next.into()), ..self }
    }

    /// Prints the reply.
    pub(super) fn give(self, context: &mut Context) -> Result<Exit> {
        match context.out.format {
            Format::Json => context.out.json(&self)?,
            Format::Table => {
                context.out.line(&self.message)?;
                if let Some(next) = &self.next {
                    context.out.flush()?;
                    say(format!("Next: {next}"));
                }
            }
        }
        Ok(Exit::Done)
    }
}
