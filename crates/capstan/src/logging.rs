//! How the process logs: one line an event on stderr, as text or as JSON.

use std::io::{self, IsTerminal as _};

use anyhow::{Context as _, Result};
use tracing_subscriber::EnvFilter;

use crate::config::{Layers, Value};

/// Form of the log lines: for people or for programs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// Begins to log as the settings say.
pub(crate) fn begin(layers: &Layers) -> Result<()> {
    let text = |path: &str| match layers.settings.get(path).map(|setting| &setting.value) {
        Some(Value::Text(text)) => text.clone(),
        Some(_) | None => String::new(),
    };
    let level = text("log.level");
    let filter =
        EnvFilter::try_new(&level).with_context(|| format!("log.level: \"{level}\" is not a filter"))?;
    let colour =
        io::stderr().is_terminal() && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(io::stderr).with_ansi(colour);
    let started = match text("log.format").as_str() {
        "json" => builder.json().flatten_event(true).try_init(),
        _ => builder.with_target(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot begin to log: {error}"))
}
