//! `capstan config`: what is set, by whom, and whether it makes sense. Opens and binds nothing.

use anyhow::Result;
use serde_json::json;

use crate::config::{Config, KEYS, shown};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Check the settings and name every mistake
    Check,
    /// Print every setting with its value and where it came from; secrets are not shown
    Show,
}

pub(crate) fn run(command: ConfigCommand, context: &mut Context) -> Result<Exit> {
    match command {
        ConfigCommand::Check => check(context),
        ConfigCommand::Show => show(context),
    }
}

fn check(context: &mut Context) -> Result<Exit> {
    let checked = Config::of(&context.layers()?);
    match (context.out.format, checked) {
        (Format::Table, Ok(_)) => context.out.line("The configuration is valid.")?,
        (Format::Table, Err(invalid)) => return Err(invalid.into()),
        (Format::Json, Ok(_)) => context.out.json(&json!({ "valid": true, "problems": [] }))?,
        (Format::Json, Err(invalid)) => {
            context.out.json(&json!({ "valid": false, "problems": invalid.0 }))?;
            return Ok(Exit::Config);
        }
    }
    Ok(Exit::Done)
}

/// Prints what holds even if it is wrong: this is what people run when something is wrong.
fn show(context: &mut Context) -> Result<Exit> {
    let layers = context.layers()?;
    let mut rows = Vec::new();
    let mut documents = Vec::new();
    for key in KEYS {
        let Some(setting) = layers.settings.get(key.path) else { continue };
        let hidden = shown(key, &setting.value);
        let text =
            if hidden == setting.value.to_json() { setting.value.to_toml() } else { hidden.to_string() };
        let text = if setting.value.is_unset() { "-".to_owned() } else { text };
        documents.push(json!({ "key": key.path, "value": hidden, "origin": setting.origin.to_string() }));
        rows.push([key.path.to_owned(), text, setting.origin.to_string()]);
    }
    match context.out.format {
        Format::Table => context.out.table(["KEY", "VALUE", "ORIGIN"], rows)?,
        Format::Json => context.out.json(&documents)?,
    }
    match Config::of(&layers) {
        Ok(_) => Ok(Exit::Done),
        Err(invalid) => Err(invalid.into()),
    }
}
