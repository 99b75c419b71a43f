//! `capstan config`: shows and validates the settings. Opens and binds nothing.

use anyhow::Result;
use serde_json::json;

use crate::config::{Config, Invalid, KEYS, shown};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ConfigCommand {
    /// Validate the settings and list every error
    Check {
        /// Also check that all settings this command needs are set
        #[arg(long, value_name = "COMMAND")]
        role: Option<RoleName>,
    },
    /// Print every setting with its value and origin; secrets are hidden
    Show,
}

/// A command that runs a daemon.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum RoleName {
    Up,
    Host,
    Controller,
}

/// What a daemon needs beyond valid settings.
fn missing(role: RoleName, config: &Config) -> Vec<String> {
    let mut missing = Vec::new();
    if role == RoleName::Controller && config.redis.secret.is_none() {
        missing.push(
            "redis.secret: not set, and a controller without it coordinates no Redis: proxies serve nothing; set the \
             same one as on the hosts"
                .to_owned(),
        );
    }
    if role == RoleName::Host && config.host.roles.is_empty() {
        missing.push("host.roles: not set, and a host without roles runs no service".to_owned());
    }
    missing
}

pub(crate) fn run(command: ConfigCommand, context: &mut Context) -> Result<Exit> {
    match command {
        ConfigCommand::Check { role } => check(role, context),
        ConfigCommand::Show => show(context),
    }
}

fn check(role: Option<RoleName>, context: &mut Context) -> Result<Exit> {
    let checked = Config::of(&context.layers()?).and_then(|config| {
        let missing = role.map(|role| missing(role, &config)).unwrap_or_default();
        if missing.is_empty() { Ok(config) } else { Err(Invalid(missing)) }
    });
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

/// Prints the effective values even if they are invalid, because this command is used to find the error.
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
        Format::Json => context.out.json_list("settings", &documents)?,
    }
    match Config::of(&layers) {
        Ok(_) => Ok(Exit::Done),
        Err(invalid) => Err(invalid.into()),
    }
}
