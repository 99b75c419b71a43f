//! `capstan log`: the logs of a running cluster, and the inspection, verification and salvage of a log directory. The
//! latter are offline: no process may have the directory open.

mod online;

use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Result, bail};
use capstan_log::Disk;
use capstan_log::disk::inspect::{Depth, DirReport, LogReport, SegmentReport, inspect};
use capstan_log::disk::{Loss, Lost, Options};

use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;

/// Manage the replicated logs of the cluster, or inspect a log directory that no process has open.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LogCommand {
    #[command(flatten)]
    Online(online::OnlineCommand),
    /// Print every log and its segments; changes nothing
    Inspect {
        /// The directory that holds `checkpoint`, `journal` and `segments`
        dir: PathBuf,
    },
    /// Check every checksum; fails if anything is damaged, changes nothing
    Verify {
        /// The directory that holds `checkpoint`, `journal` and `segments`
        dir: PathBuf,
    },
    /// Repair a directory with a damaged journal, keeping everything before the damage
    Salvage {
        /// The directory that holds `checkpoint`, `journal` and `segments`
        dir: PathBuf,
        /// Accept the loss: there is no other holder to catch up from
        #[arg(long)]
        accept_loss: bool,
    },
}

impl LogArgs {
    /// The operator action that it is, for the record of events. Directories that no process has open belong to no cluster.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match &self.command {
            LogCommand::Online(command) => command.action(),
            LogCommand::Inspect { .. } | LogCommand::Verify { .. } | LogCommand::Salvage { .. } => None,
        }
    }
}

/// Carries out the command.
pub(crate) async fn run(args: LogArgs, context: &mut Context) -> Result<Exit> {
    let out = context.out.writer();
    match args.command {
        LogCommand::Online(command) => return online::run(command, context).await,
        LogCommand::Inspect { dir } => print(&inspect(&dir, Depth::Outline)?, out)?,
        LogCommand::Verify { dir } => verify(&dir, out)?,
        LogCommand::Salvage { dir, accept_loss } => {
            let loss = if accept_loss { Loss::Accept } else { Loss::LearnAnew };
            salvage(&dir, loss, out)?;
        }
    }
    Ok(Exit::Done)
}

fn verify(dir: &Path, out: &mut dyn Write) -> Result<()> {
    let report = inspect(dir, Depth::EveryEntry)?;
    print(&report, out)?;
    if report.is_whole() {
        let checked: u64 = segments(&report).filter_map(|segment| segment.entries).sum();
        let groups = report.journal.groups;
        writeln!(
            out,
            "intact: every checksum of {checked} entries and {groups} groups of the journal is valid"
        )?;
        return Ok(());
    }
    let mut advice = format!("{} is damaged", dir.display());
    if segments(&report).any(|segment| segment.damage.is_some()) {
        advice += "\nDamaged entries are repaired from another holder when they are read.";
    }
    if report.journal.lost.is_some() {
        advice += "\nA host does not start with such a journal. If other holders have these logs, run \
                   `capstan log salvage` and start the host: it learns from them what it lacks.";
    }
    bail!(advice)
}

fn segments(report: &DirReport) -> impl Iterator<Item = &SegmentReport> {
    report.logs.iter().flat_map(|log| &log.segments)
}

fn salvage(dir: &Path, loss: Loss, out: &mut dyn Write) -> Result<()> {
    let recovery = Disk::salvage(dir, Options::default(), loss)?;
    let Some(Lost { group, behind, last, .. }) = recovery.replayed.lost else {
        writeln!(out, "nothing is lost: the journal has no hole, and a host can start with this directory")?;
        return Ok(());
    };
    writeln!(out, "kept: everything before group {group} of the journal")?;
    writeln!(out, "dropped: group {group}, which is damaged, and {behind} groups after it, up to {last}")?;
    match loss {
        Loss::LearnAnew => writeln!(
            out,
            "next: start the host; each of its logs leaves the in-sync set, catches up and rejoins"
        )?,
        Loss::Accept => writeln!(out, "next: start the host; what was dropped is lost")?,
    }
    Ok(())
}

fn print(report: &DirReport, out: &mut dyn Write) -> Result<()> {
    for log in &report.logs {
        print_log(log, out)?;
    }
    let bytes: u64 = segments(report).map(|segment| segment.bytes).sum();
    let files = segments(report).count();
    writeln!(out, "in all: {} logs, {files} segments, {bytes} bytes", report.logs.len())?;
    let journal = &report.journal;
    match journal.groups {
        0 => writeln!(out, "journal: nothing to replay at the next start")?,
        groups => writeln!(
            out,
            "journal: {groups} groups, {} bytes, changes of {} logs to replay at the next start",
            journal.bytes, report.changed
        )?,
    }
    if let Some(torn) = &journal.torn {
        writeln!(out, "torn tail: {torn}; it was never acknowledged and is cut at the next start")?;
    }
    if let Some(lost) = &journal.lost {
        writeln!(out, "DAMAGED: {lost}")?;
    }
    Ok(())
}

fn print_log(log: &LogReport, out: &mut dyn Write) -> Result<()> {
    let epochs: Vec<String> =
        log.history.epochs().iter().map(|(epoch, first)| format!("{epoch} from {first}")).collect();
    let epochs = if epochs.is_empty() { "none".to_owned() } else { epochs.join(", ") };
    let end = log.history.end();
    writeln!(out, "{}: offsets {} to {end}, epochs {epochs}", log.name, log.start)?;
    if log.incomplete {
        writeln!(out, "  INCOMPLETE: salvaged; newer entries are fetched from another holder")?;
    }
    log.segments.iter().try_for_each(|segment| print_segment(segment, out))?;
    if log.filled < end {
        writeln!(out, "  journal: offsets {} to {end}", log.filled)?;
    }
    Ok(())
}

fn print_segment(segment: &SegmentReport, out: &mut dyn Write) -> Result<()> {
    let SegmentReport { file, base, end, bytes, entries, damage } = segment;
    let entries = entries.map(|count| format!(", {count} entries checked")).unwrap_or_default();
    let damage = damage.as_ref().map(|what| format!(", DAMAGED: {what}")).unwrap_or_default();
    writeln!(out, "  {file}: offsets {base} to {end}, {bytes} bytes{entries}{damage}")?;
    Ok(())
}
