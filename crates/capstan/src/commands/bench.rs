//! `capstan bench`: measures this build and its peers and prints one row per measure.

use std::path::PathBuf;

use anyhow::{Context as _, Result};
use capstan_bench::{Area, Row, Scale, page, page_figure, page_ratio};
use clap::ValueEnum as _;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The ratio says how many times better we are: above 1 is good for us, whether the unit is a rate \
    or a time.\nExamples:\n  capstan bench meta\n  capstan bench all --write docs/benchmarks.md"
)]
pub(crate) struct BenchArgs {
    /// The area: meta, placement, log, redis, redis-move, topics, docs, or all
    #[arg(value_parser = areas, default_value = "all")]
    area: Areas,
    #[command(flatten)]
    how: How,
    /// Write the page with date, machine and versions to this file
    #[arg(long, value_name = "FILE")]
    write: Option<PathBuf>,
}

/// How to measure.
#[derive(Debug, clap::Args)]
pub(crate) struct How {
    /// Take seconds instead of minutes, to see that it works; the figures mean little
    #[arg(long)]
    quick: bool,
    /// Keep the servers' data below this directory, on the disk to be measured
    #[arg(long, value_name = "DIR", default_value = ".")]
    dir: PathBuf,
}

#[derive(Clone, Debug)]
struct Areas(Vec<Area>);

fn areas(word: &str) -> Result<Areas, String> {
    if word == "all" {
        return Ok(Areas(Area::ALL.to_vec()));
    }
    Area::from_str(word, false).map(|area| Areas(vec![area])).map_err(|_| {
        let names: Vec<String> = Area::ALL
            .iter()
            .filter_map(|area| Some(area.to_possible_value()?.get_name().to_owned()))
            .collect();
        format!("the areas are {} and all", names.join(", "))
    })
}

pub(crate) async fn run(args: BenchArgs, context: &mut Context) -> Result<Exit> {
    let measured = measure(&args.area.0, &args.how).await?;
    if let Some(path) = &args.write {
        std::fs::write(path, page(&measured, &args.how.dir))
            .with_context(|| format!("cannot write {}", path.display()))?;
        say(format!("wrote {}", path.display()));
    }
    print(&measured, context)
}

/// One area, for the command of that noun (`capstan meta bench`).
pub(crate) async fn run_area(area: Area, how: How, context: &mut Context) -> Result<Exit> {
    let measured = measure(&[area], &how).await?;
    print(&measured, context)
}

async fn measure(areas: &[Area], how: &How) -> Result<Vec<(Area, Vec<Row>)>> {
    if cfg!(debug_assertions) {
        say("capstan: this is a debug build, its figures are meaningless; use cargo build --release");
    }
    let scale = if how.quick { Scale::Quick } else { Scale::Full };
    let mut measured = Vec::new();
    for area in areas {
        measured.push((*area, area.run(scale, &how.dir).await?));
    }
    Ok(measured)
}

fn print(measured: &[(Area, Vec<Row>)], context: &mut Context) -> Result<Exit> {
    let rows: Vec<&Row> = measured.iter().flat_map(|(_, rows)| rows).collect();
    match context.out.format {
        Format::Json => context.out.json_list("rows", &rows)?,
        Format::Table => {
            let cells = rows.into_iter().map(|row| {
                let (ours, theirs) = (page_figure(row.ours), page_figure(row.theirs));
                [row.row.clone(), ours, theirs, row.unit.clone(), page_ratio(row.ratio()), row.peer.clone()]
            });
            let cells = cells.collect();
            context.out.table(["MEASURE", "OURS", "THEIRS", "UNIT", "RATIO", "PEER"], cells)?;
        }
    }
    Ok(Exit::Done)
}
