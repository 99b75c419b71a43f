//! `capstan version`: which build this is.

use anyhow::Result;
use serde_json::json;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// The version of this build.
pub(crate) const VERSION: &str = env!("CARGO_PKG_VERSION");

pub(crate) fn run(context: &mut Context) -> Result<Exit> {
    match context.out.format {
        Format::Table => context.out.line(format!("capstan {VERSION}"))?,
        Format::Json => context.out.json(&json!({ "name": "capstan", "version": VERSION }))?,
    }
    Ok(Exit::Done)
}
