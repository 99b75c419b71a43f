//! `capstan log`: what a directory of logs holds, and whether it is whole. Offline: nothing is changed.

use std::io::Write;
use std::path::PathBuf;

use anyhow::{Result, bail};
use capstan_log::disk::inspect::{Depth, DirReport, LogReport, SegmentReport, inspect};

/// Look into a directory of logs that no process has open.
#[derive(Debug, clap::Args)]
pub(crate) struct LogArgs {
    #[command(subcommand)]
    command: LogCommand,
}

#[derive(Debug, clap::Subcommand)]
enum LogCommand {
    /// Print every log and its segments
    Inspect {
        /// The directory that holds `checkpoint`, `journal` and `segments`
        dir: PathBuf,
    },
    /// Check every checksum; fails if anything is damaged
    Verify {
        /// The directory that holds `checkpoint`, `journal` and `segments`
        dir: PathBuf,
    },
}

/// Carries out the command.
pub(crate) fn run(args: LogArgs, out: &mut dyn Write) -> Result<()> {
    match args.command {
        LogCommand::Inspect { dir } => print(&inspect(&dir, Depth::Outline)?, out),
        LogCommand::Verify { dir } => {
            let report = inspect(&dir, Depth::EveryEntry)?;
            print(&report, out)?;
            if report.is_whole() {
                writeln!(out, "whole: every checksum is right")?;
                return Ok(());
            }
            bail!(
                "{} is damaged\nEntries of replicated logs are repaired from another holder when they are read; \
                 a damaged journal means that this copy has to be removed and learned anew.",
                dir.display()
            )
        }
    }
}

fn print(report: &DirReport, out: &mut dyn Write) -> Result<()> {
    for log in &report.logs {
        print_log(log, out)?;
    }
    let journal = &report.journal;
    writeln!(
        out,
        "journal: {} groups, {} bytes and {} logs to replay at the next start",
        journal.groups,
        journal.bytes,
        report.pending.len()
    )?;
    if let Some(torn) = &journal.torn {
        writeln!(out, "torn tail, never acknowledged, cut at the next start: {torn}")?;
    }
    if let Some(damage) = &report.damage {
        writeln!(out, "DAMAGED: {damage}")?;
    }
    Ok(())
}

fn print_log(log: &LogReport, out: &mut dyn Write) -> Result<()> {
    let epochs: Vec<String> =
        log.history.epochs().iter().map(|(epoch, first)| format!("{epoch} from {first}")).collect();
    let epochs = if epochs.is_empty() { "none".to_owned() } else { epochs.join(", ") };
    writeln!(out, "{}: offsets {} to {}, epochs {epochs}", log.name, log.start, log.history.end())?;
    log.segments.iter().try_for_each(|segment| print_segment(segment, out))
}

fn print_segment(segment: &SegmentReport, out: &mut dyn Write) -> Result<()> {
    let entries = segment.entries.map(|count| format!(", {count} entries checked")).unwrap_or_default();
    let damage = segment.damage.as_ref().map(|what| format!(", DAMAGED: {what}")).unwrap_or_default();
    writeln!(out, "  {} from {}, {} bytes{entries}{damage}", segment.file, segment.base, segment.bytes)?;
    Ok(())
}
