//! `capstan fleet simulate`: what a policy costs and saves, before it is used on real hosts. Needs no cluster.

use anyhow::{Result, bail};
use capstan_fleet::encoding::Span;
use capstan_fleet::history::Outcome;
use capstan_fleet::simulate::table::{Row, TableOptions, table};
use clap::Args;

use super::show::outcome_text;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// The maximum: more hosts take minutes for every line of the table.
const MAX_HOSTS: u32 = 10_000;

/// One host, a few, and enough to see rare failures.
const USUAL_CANARIES: [u32; 3] = [1, 5, 20];

#[derive(Debug, Args)]
pub(crate) struct SimulateArgs {
    /// How many hosts the fleet has
    #[arg(long, value_name = "COUNT", default_value_t = 300, value_parser = clap::value_parser!(u32).range(1..=i64::from(MAX_HOSTS)))]
    hosts: u32,
    /// Sizes of the first wave, separated by commas [default: 1,5,20, limited by --hosts]
    #[arg(long, value_name = "COUNTS", value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..))]
    canary: Vec<u32>,
    /// Hosts at the same time, in percent, separated by commas
    #[arg(long, value_name = "PERCENTS", value_delimiter = ',', default_value = "1,5,20", value_parser = clap::value_parser!(u8).range(1..=100))]
    parallelism: Vec<u8>,
    /// Hosts per thousand on which the bad release does not work
    #[arg(long, value_name = "PERMILLE", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    bad: u32,
    /// How long a wave is watched before the next one
    #[arg(long, value_name = "DURATION", default_value = "5m")]
    bake: Span,
    /// The random seed: the same number gives the same table
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Simulates and shows the table.
pub(super) async fn simulate(args: SimulateArgs, context: &mut Context) -> Result<Exit> {
    let SimulateArgs { hosts, canary, parallelism, bad: bad_permille, bake, seed } = args;
    let canaries = canaries(hosts, canary)?;
    let options = TableOptions { hosts, bad_permille, canaries, parallelism, bake, seed };
    let rows = tokio::task::spawn_blocking(move || table(&options)).await??;
    match context.out.format {
        Format::Json => context.out.json_list("rows", &rows)?,
        Format::Table => {
            let header =
                ["CANARY", "AT ONCE", "GOOD RELEASE", "BAD RELEASE", "STOPPED AFTER", "BROKEN HOSTS"];
            context.out.table(header, rows.iter().map(row).collect())?;
            say(format!(
                "\nSimulated: {hosts} hosts; the bad release does not work on {bad_permille} of 1000 of them."
            ));
        }
    }
    Ok(Exit::Done)
}

fn canaries(hosts: u32, wanted: Vec<u32>) -> Result<Vec<u32>> {
    if wanted.is_empty() {
        return Ok(USUAL_CANARIES.into_iter().filter(|canary| *canary <= hosts).collect());
    }
    if let Some(canary) = wanted.iter().find(|canary| **canary > hosts) {
        bail!("a first wave of {canary} hosts is more than the fleet has: {hosts}");
    }
    Ok(wanted)
}

fn row(row: &Row) -> [String; 6] {
    let stopped = match row.bad_outcome {
        // No affected host was among them, or nothing happened: nothing was stopped.
        Some(Outcome::Succeeded) | None => "-".to_owned(),
        Some(Outcome::Failed | Outcome::TimedOut | Outcome::Stopped) => row.bad_took.to_string(),
    };
    [
        row.canary.to_string(),
        format!("{}%", row.parallelism),
        row.good_took.to_string(),
        outcome_text(row.bad_outcome).to_owned(),
        stopped,
        row.blast_radius.to_string(),
    ]
}
