//! `capstan fleet status|why|plan|history`: what is, what would be, what was.

use anyhow::Result;
use capstan_fleet::api::{FleetState, FleetStatus, HistoryLine};
use capstan_fleet::history::Outcome;
use capstan_fleet::lrn::go_list;
use capstan_fleet::plan::estimate::Preview;
use capstan_fleet::status::Condition;
use clap::Args;

use super::members::or_dash;
use super::{fleet, named, screen, watch};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, Args)]
#[command(
    after_help = "Exits with 0 if every host has what the fleet is to have, with 3 while something is under way or a host \
                  is missing, with 1 if it is stopped or held, or a host failed."
)]
pub(crate) struct StatusArgs {
    /// Keep showing it until the update is complete or stopped
    #[arg(long)]
    watch: bool,
}

#[derive(Debug, Args)]
pub(crate) struct HistoryArgs {
    /// How many, the newest first
    #[arg(long, value_name = "COUNT", default_value_t = 20)]
    limit: usize,
}

pub(super) async fn status(args: StatusArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    if args.watch {
        return watch::run(&fleet, context).await;
    }
    let status = fleet.status().await?;
    match context.out.format {
        Format::Json => context.out.json(&status)?,
        Format::Table => {
            for line in screen::lines(&status, usize::MAX) {
                context.out.line(line)?;
            }
        }
    }
    Ok(exit(&status))
}

/// The exit code for the state of the fleet.
pub(super) fn exit(status: &FleetStatus) -> Exit {
    match status.state {
        FleetState::Stopped | FleetState::Held => Exit::Failed,
        FleetState::Completed
            if status.hosts.iter().any(|line| line.condition == Some(Condition::Aborted)) =>
        {
            Exit::Failed
        }
        FleetState::Completed if !status.without.is_empty() => Exit::Waiting,
        FleetState::Clear | FleetState::Completed if is_reached(status) => Exit::Done,
        FleetState::Clear | FleetState::Completed | FleetState::Running | FleetState::Paused => Exit::Waiting,
    }
}

/// Whether the update has ended, even if hosts are still missing.
pub(super) fn is_over(status: &FleetStatus) -> bool {
    status.state == FleetState::Completed && is_reached(status)
}

/// Whether the fleet has reached its target: a target that was just set is not yet a request.
fn is_reached(status: &FleetStatus) -> bool {
    let request = status.request.as_ref().map(|request| &request.version);
    status.target.is_none() || request == status.target.as_ref()
}

pub(super) async fn why(host: &str, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let why = fleet.why(named(&fleet, host).await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&why)?,
        Format::Table => {
            context.out.line(format!("host {}: {}", why.lrn, why.state))?;
            for reason in &why.reasons {
                context.out.line(format!("  because {reason}"))?;
            }
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn plan(release: Option<String>, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let release = fleet.meant(release.as_deref()).await?;
    let preview = fleet.plan(&release).await?;
    match context.out.format {
        Format::Json => context.out.json(&preview)?,
        Format::Table => show_plan(&preview, context)?,
    }
    Ok(Exit::Done)
}

fn show_plan(preview: &Preview, context: &mut Context) -> Result<()> {
    context.out.line(format!(
        "release {} on {} hosts, about {} if nothing fails (a guess); nothing was changed\n",
        preview.version, preview.hosts, preview.estimate
    ))?;
    let waves = preview.groups.iter().flat_map(|group| {
        let last = group.waves.len();
        group.waves.iter().enumerate().map(move |(wave, hosts)| {
            [
                group.group.to_string(),
                format!("{} of {last}", wave + 1),
                hosts.len().to_string(),
                go_list(hosts),
            ]
        })
    });
    context.out.table(["GROUP", "WAVE", "HOSTS", "WHICH"], waves.collect())?;
    context.out.line("")?;
    for why in &preview.why {
        context.out.line(format!("- {why}"))?;
    }
    Ok(())
}

pub(super) async fn history(args: HistoryArgs, context: &mut Context) -> Result<Exit> {
    let mut lines = fleet(context).await?.history().await?;
    lines.truncate(args.limit);
    match context.out.format {
        Format::Json => context.out.json_list("requests", &lines)?,
        Format::Table => {
            let header = ["NUMBER", "RELEASE", "FROM", "OUTCOME", "STARTED", "ENDED", "BY", "REASON"];
            context.out.table(header, lines.iter().map(row).collect())?;
        }
    }
    Ok(Exit::Done)
}

/// How an update ended, in words.
pub(super) fn outcome_text(outcome: Option<Outcome>) -> &'static str {
    match outcome {
        None => "in progress",
        Some(Outcome::Succeeded) => "succeeded",
        Some(Outcome::Failed) => "failed",
        Some(Outcome::TimedOut) => "timed out",
        Some(Outcome::Stopped) => "stopped",
    }
}

fn row(line: &HistoryLine) -> [String; 8] {
    let record = &line.record;
    let without = match record.without.is_empty() {
        true => String::new(),
        false => format!("without hosts {} ", go_list(&record.without)),
    };
    [
        line.generation.to_string(),
        record.version.clone(),
        or_dash(record.from.clone()),
        outcome_text(record.outcome).to_owned(),
        record.started_at.to_seconds_text(),
        or_dash(record.ended_at.map(|at| at.to_seconds_text()).unwrap_or_default()),
        or_dash(record.by.clone()),
        or_dash(format!("{without}{}", record.reason)),
    ]
}
