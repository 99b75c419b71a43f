//! The logs of a running cluster: their holders and primaries, and how an operator moves them.

use anyhow::Result;
use capstan_log::{HolderId, LogName};
use capstan_steward::facts::{Facts, HolderFact, LogFact, Seat};
use capstan_steward::{Logs, Policy, StewardError};
use serde::Serialize;

use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum OnlineCommand {
    /// List the logs of the cluster: state, copies, primary
    List,
    /// List the holders of logs: state, copies, leads, free space
    Holders,
    /// Print everything about one log
    Show {
        /// The log
        #[arg(value_name = "LOG")]
        name: LogName,
    },
    /// Move a copy of a log from one holder to another; all copies stay until the new one is complete
    Move {
        /// The log
        #[arg(value_name = "LOG")]
        name: LogName,
        /// The holder that loses its copy
        #[arg(long)]
        from: HolderId,
        /// The holder that gets one
        #[arg(long)]
        to: HolderId,
    },
    /// Elect another complete copy as primary, and prefer it from now on
    Elect {
        /// The log
        #[arg(value_name = "LOG")]
        name: LogName,
        /// The new primary
        holder: HolderId,
    },
    /// Move all copies of a holder elsewhere, permanently
    Retire {
        /// The holder
        holder: HolderId,
        /// Cancel: copies that have not moved stay
        #[arg(long)]
        undo: bool,
    },
}

impl OnlineCommand {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            OnlineCommand::Move { name, from, to } => Some(
                OperatorAction::new("asked to move", format!("log {name}"))
                    .because(&format!("from {from} to {to}")),
            ),
            OnlineCommand::Elect { name, holder } => {
                Some(OperatorAction::new(format!("elected {holder} as primary of"), format!("log {name}")))
            }
            OnlineCommand::Retire { holder, undo } => {
                let action = if *undo { "cancelled the retirement of" } else { "asked to retire" };
                Some(OperatorAction::new(action, format!("holder {holder}")))
            }
            OnlineCommand::List | OnlineCommand::Holders | OnlineCommand::Show { .. } => None,
        }
    }
}

pub(super) async fn run(command: OnlineCommand, context: &mut Context) -> Result<Exit> {
    let logs = Logs::open(context.store().await?, Policy::default()).await?;
    match command {
        OnlineCommand::List => list(&logs.facts(), context),
        OnlineCommand::Holders => holders(&logs.facts(), context),
        OnlineCommand::Show { name } => show(&logs.facts(), name, context),
        OnlineCommand::Move { name: log, from, to } => {
            logs.relocate(&log, &from, &to).await?;
            say(format!(
                "log {log}: {to} copies it, then {from} loses its copy; see `capstan log show {log}`"
            ));
            Ok(Exit::Done)
        }
        OnlineCommand::Elect { name: log, holder } => {
            let config = logs.elect(&log, &holder).await?;
            say(format!("log {log}: {} is the primary in epoch {}", config.primary, config.epoch));
            Ok(Exit::Done)
        }
        OnlineCommand::Retire { holder, undo: false } => {
            logs.retire(&holder).await?;
            say(format!("holder {holder}: its copies are being moved elsewhere; see `capstan log holders`"));
            Ok(Exit::Done)
        }
        OnlineCommand::Retire { holder, undo: true } => {
            logs.keep(&holder).await?;
            say(format!("holder {holder}: its copies stay"));
            Ok(Exit::Done)
        }
    }
}

/// One log, for tables and JSON.
#[derive(Debug, Serialize)]
struct LogLine {
    log: String,
    service: Option<String>,
    state: &'static str,
    epoch: u64,
    primary: String,
    copies: usize,
    min_copies: usize,
    in_sync: Vec<String>,
    holders: Vec<String>,
    learner: Option<String>,
    leaving: Option<String>,
    floor: u64,
    sealed: Option<u64>,
}

impl LogLine {
    fn new(facts: &Facts, log: &LogFact) -> LogLine {
        let id = |seat: Seat| facts.holder(seat).id.to_string();
        let config = &log.config.record;
        LogLine {
            log: log.name.to_string(),
            service: log.wanted.as_ref().map(|seen| seen.record.service.to_string()),
            state: state(facts, log),
            epoch: config.epoch.0,
            primary: id(log.primary),
            copies: log.copies(),
            min_copies: log.min_copies(),
            in_sync: log.in_sync.iter().copied().map(id).collect(),
            holders: log.holders.iter().copied().map(id).collect(),
            learner: log.learner.map(id),
            leaving: log.leaving.map(id),
            floor: config.floor.0,
            sealed: config.sealed.map(|end| end.0),
        }
    }
}

/// The state of a log in a word: the worst that applies.
fn state(facts: &Facts, log: &LogFact) -> &'static str {
    let up = log.in_sync.iter().filter(|seat| facts.holder(**seat).is_up()).count();
    match () {
        () if up == 0 => "down",
        () if !facts.holder(log.primary).is_up() => "electing",
        () if up < log.min_copies() => "waiting",
        () if log.learner.is_some() => "copying",
        () if up < log.copies() => "degraded",
        () if log.config.record.sealed.is_some() => "sealed",
        () => "ok",
    }
}

fn list(facts: &Facts, context: &mut Context) -> Result<Exit> {
    let lines: Vec<LogLine> = facts.logs.iter().map(|log| LogLine::new(facts, log)).collect();
    match context.out.format {
        Format::Json => context.out.json_list("logs", &lines)?,
        Format::Table => {
            let rows = lines.iter().map(|line| {
                [
                    line.log.clone(),
                    line.service.clone().unwrap_or_else(|| "-".to_owned()),
                    line.state.to_owned(),
                    format!("{} of {}", line.in_sync.len(), line.copies),
                    line.epoch.to_string(),
                    line.primary.clone(),
                ]
            });
            let header = ["LOG", "SERVICE", "STATE", "IN SYNC", "EPOCH", "PRIMARY"];
            context.out.table(header, rows.collect())?;
        }
    }
    problems(facts)
}

fn problems(facts: &Facts) -> Result<Exit> {
    for bad in &facts.bad {
        say(format!("capstan: {bad}"));
    }
    Ok(if facts.bad.is_empty() { Exit::Done } else { Exit::Failed })
}

fn show(facts: &Facts, name: LogName, context: &mut Context) -> Result<Exit> {
    let log = facts.logs.iter().find(|log| log.name == name).ok_or(StewardError::NoSuchLog(name))?;
    let line = LogLine::new(facts, log);
    if context.out.format == Format::Json {
        context.out.json(&line)?;
        return Ok(Exit::Done);
    }
    let mut rows = vec![
        ["log".to_owned(), line.log],
        ["service".to_owned(), line.service.unwrap_or_else(|| "-".to_owned())],
        ["state".to_owned(), line.state.to_owned()],
        ["epoch".to_owned(), line.epoch.to_string()],
        ["copies".to_owned(), format!("{}, commits on {} or more", line.copies, line.min_copies)],
        ["first offset".to_owned(), line.floor.to_string()],
    ];
    rows.extend(line.sealed.map(|end| ["sealed at".to_owned(), end.to_string()]));
    for seat in log.members() {
        rows.push([format!("holder {}", facts.holder(seat).id), part(facts, log, seat)]);
    }
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}

/// The role of a holder in a log.
fn part(facts: &Facts, log: &LogFact, seat: Seat) -> String {
    let mut words = vec![match () {
        () if log.primary == seat => "primary",
        () if log.learner == Some(seat) => "copying",
        () if log.in_sync.contains(&seat) => "in sync",
        () => "behind",
    }];
    words.extend((log.leaving == Some(seat)).then_some("leaving"));
    words.push(holder_state(facts.holder(seat)));
    words.join(", ")
}

fn holder_state(holder: &HolderFact) -> &'static str {
    match () {
        () if !holder.is_up() => "down",
        () if holder.is_waiting() => "waiting",
        () if holder.is_retiring() => "retiring",
        () if holder.draining => "drained",
        () => "up",
    }
}

/// One holder, for tables and JSON.
#[derive(Debug, Serialize)]
struct HolderLine {
    holder: String,
    service: Option<String>,
    host: Option<String>,
    state: &'static str,
    copies: usize,
    leads: usize,
    address: Option<String>,
    free_bytes: Option<u64>,
    down_since: Option<u64>,
}

impl HolderLine {
    fn new(holder: &HolderFact) -> HolderLine {
        let record = holder.record.as_ref().map(|seen| &seen.record);
        let status = holder.status.as_ref().map(|seen| &seen.record);
        HolderLine {
            holder: holder.id.to_string(),
            service: record.map(|record| record.service.to_string()),
            host: record.map(|record| record.host.to_string()),
            state: holder_state(holder),
            copies: holder.copies,
            leads: holder.leads,
            address: status.map(|status| status.address.to_string()),
            free_bytes: status.map(|status| status.free_bytes),
            down_since: holder.down_since(),
        }
    }
}

fn holders(facts: &Facts, context: &mut Context) -> Result<Exit> {
    let lines: Vec<HolderLine> = facts.holders.iter().map(HolderLine::new).collect();
    match context.out.format {
        Format::Json => context.out.json_list("holders", &lines)?,
        Format::Table => {
            let dash = |text: &Option<String>| text.clone().unwrap_or_else(|| "-".to_owned());
            let rows = lines.iter().map(|line| {
                [
                    line.holder.clone(),
                    line.state.to_owned(),
                    line.copies.to_string(),
                    line.leads.to_string(),
                    line.free_bytes.map_or_else(|| "-".to_owned(), |bytes| format!("{} MiB", bytes >> 20)),
                    dash(&line.address),
                ]
            });
            context.out.table(["HOLDER", "STATE", "COPIES", "LEADS", "FREE", "ADDRESS"], rows.collect())?;
        }
    }
    problems(facts)
}
