//! `capstan redis check` and `fix`: findings about Redis, and repair of the metadata.

use anyhow::Result;
use capstan_console::findings::collect;
use capstan_control::check::META_UNREACHABLE;
use capstan_control::findings::{Code, Health};
use capstan_redis::{api, health};
use serde_json::json;

use crate::commands::status;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

pub(super) async fn look(context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let pending = api::check(&store).await?.pending;
    let all = collect(&store, &context.config()?.fleet.tree).await;
    // A finding that hides all others concerns Redis as well.
    let concerns = |code: &Code| *code == META_UNREACHABLE || code.service() == health::SERVICE;
    let found = Health::of(all.findings.into_iter().filter(|finding| concerns(&finding.code)));
    match context.out.format {
        Format::Json => {
            let mut value = found.to_json();
            value["pending"] = json!(pending);
            context.out.json(&value)?;
        }
        Format::Table => {
            status::print(&found, context)?;
            pending.iter().try_for_each(|pending| context.out.line(format!("under way: {pending}")))?;
        }
    }
    Ok(if found.is_green() { Exit::Done } else { Exit::Failed })
}

pub(super) async fn fix(context: &mut Context) -> Result<Exit> {
    let fixed = api::fix(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&fixed)?,
        Format::Table => {
            for done in &fixed.done {
                context.out.line(format!("repaired: {done}"))?;
            }
            for left in &fixed.left {
                context.out.line(format!("needs an operator: {left}"))?;
            }
            if fixed.done.is_empty() && fixed.left.is_empty() {
                context.out.line("nothing to repair")?;
            }
        }
    }
    Ok(if fixed.left.is_empty() { Exit::Done } else { Exit::Failed })
}
