//! `capstan reference`: pages generated from the code, so that they always match it.

mod monitoring;

use std::fmt::Write as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use capstan_meta::record::{KeyDoc, Lifetime, RecordFormat, Secrecy};
use clap::CommandFactory as _;

use crate::catalogue::CATALOGUES;
use crate::cli::Cli;
use crate::config::{KEYS, Kind};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum ReferenceCommand {
    /// Print docs/metadata.md: every key, its record, who writes it and how long it lives
    Metadata,
    /// Print the reference of all settings, as it stands in docs/operate.md
    Settings,
    /// Print the table of exit codes, as it stands in docs/operate.md
    ExitCodes,
    /// Print docs/metrics.md: every metric, its kind and labels
    Metrics,
    /// Print deploy/alerts.yml: rules for Prometheus
    Alerts,
    /// Print deploy/grafana/capstan.json: a dashboard for Grafana
    Dashboard,
    /// Write a manual page for every command
    Man {
        /// The directory to write to
        dir: PathBuf,
    },
}

pub(crate) fn run(command: ReferenceCommand, context: &mut Context) -> Result<Exit> {
    match command {
        ReferenceCommand::Metadata => match context.out.format {
            Format::Table => context.out.bytes(metadata().as_bytes())?,
            Format::Json => context.out.json(&CATALOGUES.concat())?,
        },
        ReferenceCommand::Settings => context.out.bytes(settings().as_bytes())?,
        ReferenceCommand::ExitCodes => context.out.bytes(exit_codes().as_bytes())?,
        ReferenceCommand::Metrics => context.out.bytes(monitoring::metrics().as_bytes())?,
        ReferenceCommand::Alerts => context.out.bytes(monitoring::alerts().as_bytes())?,
        ReferenceCommand::Dashboard => context.out.json(&monitoring::dashboard())?,
        ReferenceCommand::Man { dir } => {
            std::fs::create_dir_all(&dir).with_context(|| format!("cannot create {}", dir.display()))?;
            clap_mangen::generate_to(Cli::command(), &dir)
                .with_context(|| format!("cannot write manual pages to {}", dir.display()))?;
            say(format!(
                "wrote manual pages to {}; read one with: man -l {}/capstan.1",
                dir.display(),
                dir.display()
            ));
        }
    }
    Ok(Exit::Done)
}

/// The page of all keys.
fn metadata() -> String {
    let mut page = String::from(
        "# Metadata\n\nEvery key that Capstan writes, printed from the declarations in the `keys.rs` files by `capstan reference \
         metadata`; do not edit.\nThe tree is the contract: all of it can be read with `etcdctl get / --prefix` or `capstan \
         meta tree`. With `meta.prefix` set, every key\nbegins with that prefix. `{root}` \
         is the setting `fleet.prefix` without its last slash: `/neco` unless told otherwise.\n\n",
    );
    page.push_str("| key | record | format | written by | lives |\n|---|---|---|---|---|\n");
    for doc in CATALOGUES.iter().copied().flatten() {
        let _ = writeln!(
            page,
            "| `{}` | `{}` | {} | {} | {} |",
            doc.pattern,
            doc.record,
            format_word(doc.format),
            doc.writer,
            lifetime(doc)
        );
    }
    for doc in CATALOGUES.iter().copied().flatten() {
        let _ = write!(page, "\n## `{}`\n\n{}\n", doc.pattern, paragraph(doc.doc));
        if doc.secrecy == Secrecy::Secret {
            page.push_str(
                "\nThe value is a secret: trees, pages and logs show that it is there, never what it is.\n",
            );
        }
    }
    page
}

/// A doc comment without the leading blank of each line.
fn paragraph(doc: &str) -> String {
    doc.lines().map(str::trim).collect::<Vec<_>>().join("\n").trim().to_owned()
}

fn format_word(format: RecordFormat) -> &'static str {
    match format {
        RecordFormat::Json => "JSON",
        RecordFormat::Text => "text",
        RecordFormat::Empty => "empty",
        RecordFormat::Null => "`null`",
    }
}

fn lifetime(doc: &KeyDoc) -> &'static str {
    match doc.lifetime {
        Lifetime::Durable => "until deleted",
        Lifetime::Leased => "with its writer's lease",
    }
}

/// The table of all settings.
fn settings() -> String {
    let mut text = String::from("| setting | variable | default | meaning |\n|---|---|---|---|\n");
    for key in KEYS {
        let default = if key.default.is_empty() { "-".to_owned() } else { format!("`{}`", key.default) };
        let _ = writeln!(
            text,
            "| `{}` | `{}` | {default} | {}{} |",
            key.path,
            key.variable(),
            key.about,
            kind(key.kind)
        );
    }
    text
}

fn kind(kind: Kind) -> String {
    match kind {
        Kind::Choice(words) => format!(" One of `{}`.", words.join("`, `")),
        Kind::Text | Kind::Secret | Kind::Path | Kind::Address | Kind::Flag => String::new(),
        Kind::Count | Kind::Span | Kind::List | Kind::Labels => String::new(),
    }
}

fn exit_codes() -> String {
    let mut text = String::from("| code | meaning |\n|---:|---|\n");
    for exit in Exit::ALL {
        let _ = writeln!(text, "| {} | {} |", exit.code(), exit.meaning());
    }
    text
}
