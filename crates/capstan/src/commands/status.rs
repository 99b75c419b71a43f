//! `capstan status`: green, or the findings, worst first, with what to do.

use anyhow::{Result, bail};
use capstan_console::findings::collect;
use capstan_control::api;
use capstan_control::findings::{Finding, Health, Severity};
use capstan_control::incidents::acknowledge;
use capstan_control::keys::IncidentCode;
use capstan_control::report::now_ms;
use capstan_control::time::ago;
use serde_json::json;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 if all is well (notices do not count), with 1 if something is degraded or critical, with \
    69 if the metadata store cannot be reached. docs/findings.md explains every code.\nExamples:\n  capstan status\n  \
    capstan status ack redis-data-lost"
)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct StatusArgs {
    #[command(subcommand)]
    command: Option<StatusCommand>,
}

#[derive(Debug, clap::Subcommand)]
enum StatusCommand {
    /// Acknowledge an incident, such as a loss of data: it is shown no more
    Ack {
        /// The code of the finding
        code: String,
        /// Only this object; all objects with that code by default
        #[arg(long)]
        object: Option<String>,
    },
}

pub(crate) async fn run(args: StatusArgs, context: &mut Context) -> Result<Exit> {
    match args.command {
        None => show(context).await,
        Some(StatusCommand::Ack { code, object }) => ack(&code, object.as_deref(), context).await,
    }
}

async fn show(context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let revision = store.status().await?.revision;
    let health = collect(&store, &context.config()?.fleet.tree).await;
    let hosts = api::hosts_list(&store).await.map(|list| list.hosts).unwrap_or_default();
    let up = hosts.iter().filter(|line| line.up).count();
    match context.out.format {
        Format::Json => {
            let mut value = health.to_json();
            value["hosts_up"] = up.into();
            value["hosts_known"] = hosts.len().into();
            value["revision"] = json!(revision);
            context.out.json(&value)?;
        }
        Format::Table => {
            print(&health, context)?;
            context.out.line(format!("{up} of {} hosts up, metadata at revision {revision}", hosts.len()))?;
        }
    }
    Ok(if health.is_green() { Exit::Done } else { Exit::Failed })
}

/// The state in one word, then every finding.
pub(crate) fn print(health: &Health, context: &mut Context) -> Result<()> {
    context.out.line(match health.worst() {
        None => "green: nothing to do",
        Some(Severity::Notice) => "green",
        Some(Severity::Degraded) => "degraded",
        Some(Severity::Critical) => "critical",
    })?;
    let now = now_ms() / 1000;
    health.findings.iter().try_for_each(|finding| context.out.line(paragraph(finding, now)))
}

/// A finding in three lines that fit a terminal: code and object, cause, action.
fn paragraph(finding: &Finding, now: u64) -> String {
    let since = finding.since.map(|since| format!(", for {}", ago(since, now))).unwrap_or_default();
    format!(
        "\n{} {}: {}{since}\n    {}\n    do: {}",
        finding.severity, finding.code, finding.object, finding.cause, finding.action
    )
}

async fn ack(code: &str, object: Option<&str>, context: &mut Context) -> Result<Exit> {
    let code: IncidentCode = code.parse()?;
    let done = acknowledge(&context.store().await?, &code, object, &context.operator()).await?;
    if done.is_empty() {
        bail!("no incident {code}; `capstan status` lists the incidents");
    }
    match context.out.format {
        Format::Json => context.out.json(&json!({ "acknowledged": done }))?,
        Format::Table => {
            done.iter().try_for_each(|object| context.out.line(format!("acknowledged: {object}")))?
        }
    }
    Ok(Exit::Done)
}
