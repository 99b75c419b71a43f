//! `capstan fleet simulate`: what a policy costs and what it saves, before any real host is touched.

use anyhow::{Result, bail};
use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::simulate::table::{Row, TableOptions, table};
use clap::Args;
use std::time::Duration;

use crate::config::span;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// What the simulation was made and tested for.
const MOST_HOSTS: u32 = 10_000;

#[derive(Debug, Args)]
#[command(
    after_help = "Every line is two simulated rollouts by the real decisions: of a good release, and of one that \
    fails on some hosts.\nThe blast radius is the number of hosts that the bad one broke before it was stopped. The \
    same seed gives the same table."
)]
pub(crate) struct SimulateArgs {
    /// How many hosts
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    hosts: u32,
    /// Hosts of a thousand on which the bad release does not work
    #[arg(long, value_name = "COUNT", default_value_t = 100)]
    bad_permille: u32,
    /// Sizes of the first wave, separated by commas
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', default_value = "1,5,20")]
    canary: Vec<u32>,
    /// Hosts at the same time in percent, separated by commas
    #[arg(long, value_name = "PERCENTS", value_delimiter = ',', default_value = "1,5,20")]
    parallelism: Vec<u8>,
    /// How long a wave is watched before the next one begins
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "5m")]
    bake: Duration,
    /// Where all chance comes from
    #[arg(long, value_name = "NUMBER", default_value_t = 1)]
    seed: u64,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| "write a time span such as 500ms, 30s or 10m".to_owned())
}

pub(super) fn run(args: SimulateArgs, context: &mut Context) -> Result<Exit> {
    let options = options(args)?;
    let rows = table(&options)?;
    if context.out.format == Format::Json {
        context.out.json(&rows)?;
        return Ok(Exit::Done);
    }
    let header = ["CANARY", "PARALLELISM", "GOOD RELEASE TAKES", "BAD RELEASE", "AFTER", "BLAST RADIUS"];
    context.out.table(header, rows.iter().map(|row| line(row, options.hosts)).collect())?;
    say(format!("{} hosts, simulated; seed {}", options.hosts, options.seed));
    Ok(Exit::Done)
}

fn options(args: SimulateArgs) -> Result<TableOptions> {
    if !(1..=MOST_HOSTS).contains(&args.hosts) {
        bail!("--hosts {}: from 1 to {MOST_HOSTS}", args.hosts);
    }
    if args.bad_permille > 1_000 {
        bail!("--bad-permille {}: at most 1000", args.bad_permille);
    }
    if args.canary.contains(&0) || args.parallelism.iter().any(|percent| !(1..=100).contains(percent)) {
        bail!("--canary counts are at least 1, --parallelism percents from 1 to 100");
    }
    Ok(TableOptions {
        hosts: args.hosts,
        bad_permille: args.bad_permille,
        canaries: args.canary,
        parallelism: args.parallelism,
        bake: Span(args.bake),
        seed: args.seed,
    })
}

fn line(row: &Row, hosts: u32) -> [String; 6] {
    let ended = match row.bad_outcome {
        None => "still under way",
        Some(Outcome::Succeeded) => "not noticed",
        Some(Outcome::Failed) => "stopped",
        Some(Outcome::TimedOut) => "timed out",
        Some(Outcome::Stopped) => "stopped by an operator",
    };
    [
        row.canary.to_string(),
        format!("{} %", row.parallelism),
        row.good_took.to_string(),
        ended.to_owned(),
        row.bad_took.to_string(),
        format!("{} of {hosts} hosts", row.blast_radius),
    ]
}
