//! Is the metadata sound? Found, explained, put right.

use anyhow::Result;
use capstan_redis::api;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

pub(super) async fn look(context: &mut Context) -> Result<Exit> {
    let report = api::check(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&report)?,
        Format::Table => {
            for finding in &report.findings {
                context.out.line(format!("{}: {}\n  {}", finding.object, finding.problem, finding.remedy))?;
            }
            for pending in &report.pending {
                context.out.line(format!("under way: {pending}"))?;
            }
            if report.findings.is_empty() {
                context.out.line("sound: nothing is wrong")?;
            }
        }
    }
    Ok(if report.findings.is_empty() { Exit::Done } else { Exit::Failed })
}

pub(super) async fn fix(context: &mut Context) -> Result<Exit> {
    let fixed = api::fix(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&fixed)?,
        Format::Table => {
            for done in &fixed.done {
                context.out.line(format!("put right: {done}"))?;
            }
            for left in &fixed.left {
                context.out.line(format!("left for you: {left}"))?;
            }
            if fixed.done.is_empty() && fixed.left.is_empty() {
                context.out.line("nothing was wrong")?;
            }
        }
    }
    Ok(if fixed.left.is_empty() { Exit::Done } else { Exit::Failed })
}
