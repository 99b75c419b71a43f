//! Slot moves: begin, watch, cancel.

use std::time::Duration;

use anyhow::Result;
use capstan_redis::api::{self, MoveLine};
use capstan_redis::decide::{self, Wish};
use capstan_redis::facts::Tree;
use capstan_redis::status::{MoveId, MoveState};
use capstan_redis::{Address, ClusterName, SlotRange};
use serde::Serialize;
use serde_json::json;

use super::clusters::{attended, done, settled};
use crate::commands::action::OperatorAction;
use crate::commands::wait::WaitArg;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// How often a watched list is refreshed.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  capstan redis move shop --slots 0-1000 --to 127.0.0.1:7723")]
pub(crate) struct MoveArgs {
    /// The cluster
    name: ClusterName,
    /// The slots
    #[arg(long, value_name = "A-B", value_parser = range)]
    slots: SlotRange,
    /// The node that gets them
    #[arg(long, value_name = "NODE")]
    to: Address,
    /// Only show what would move
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArg,
}

impl MoveArgs {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let change = OperatorAction::new("asked to move", format!("redis cluster {}", self.name));
        (!self.dry_run).then(|| change.because(&format!("slots {} to {}", self.slots, self.to)))
    }
}

fn range(text: &str) -> Result<SlotRange, String> {
    let (first, last) = text.split_once('-').unwrap_or((text, text));
    let number = |text: &str| text.trim().parse::<u32>().map_err(|_| "write A-B, such as 0-1000".to_owned());
    SlotRange::new(number(first)?, number(last)?).map_err(|error| error.to_string())
}

#[derive(Serialize)]
struct Begun<'a> {
    cluster: &'a ClusterName,
    moves: Vec<MoveId>,
}

pub(super) async fn begin(args: MoveArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let MoveArgs { name, slots, to, dry_run, wait } = args;
    let wish = Wish { range: slots, target: to };
    if dry_run {
        let tree = Tree::read(&store).await?;
        let (draft, ids) = decide::plan_begin(&tree, &name, std::slice::from_ref(&wish), "dry run", "", 0)?;
        context.out.line(format!("{} move(s) in one transaction: {}", ids.len(), draft.what))?;
        return Ok(Exit::Done);
    }
    let moves = api::move_slots(&store, &name, slots, &wish.target).await?;
    match context.out.format {
        Format::Json => context.out.json(&Begun { cluster: &name, moves })?,
        Format::Table => {
            let ids: Vec<String> = moves.iter().map(ToString::to_string).collect();
            context.out.line(format!(
                "recorded as move {}; `capstan redis moves --watch` shows the progress",
                ids.join(", ")
            ))?;
        }
    }
    let recorded = attended(&store).await?;
    match wait.wait {
        Some(wait) => {
            context.record_action().await;
            settled(&store, &name, wait).await
        }
        None => Ok(recorded),
    }
}

pub(super) async fn cancel(name: &ClusterName, id: MoveId, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    api::cancel(&store, name, id).await?;
    done(
        context,
        &store,
        name,
        "cancelled",
        &format!("cancelled move {id} of cluster {name}; its slots stay on their node"),
    )
    .await
}

/// Prints the moves; with `watch` repeatedly until there are none.
pub(super) async fn list(watch: bool, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let mut lines = api::moves(&store).await?;
    print(&lines, context)?;
    while watch && !lines.is_empty() {
        tokio::time::sleep(LOOK_EVERY).await;
        let now = api::moves(&store).await?;
        if now != lines {
            lines = now;
            print(&lines, context)?;
        }
    }
    Ok(Exit::Done)
}

fn print(lines: &[MoveLine], context: &mut Context) -> Result<()> {
    if context.out.format == Format::Json {
        return context.out.json_line(&json!({ "moves": lines }));
    }
    if lines.is_empty() {
        context.out.line("no slots are moving")?;
        return context.out.flush();
    }
    // 80 columns; bytes, passes and dirty keys are in the JSON.
    let header = ["MOVE", "CLUSTER", "SLOTS", "FROM", "TO", "STATE", "KEYS"];
    context.out.table(header, lines.iter().map(row).collect())?;
    context.out.flush()
}

fn row(line: &MoveLine) -> [String; 7] {
    let progress = line.progress.clone().unwrap_or_default();
    let state = match (line.state, progress.phase.as_str()) {
        (MoveState::Queued, _) => "queued",
        (MoveState::Copying, "") => "copying",
        (MoveState::Copying, phase) => phase,
    };
    [
        line.id.to_string(),
        line.cluster.to_string(),
        format!("{}-{}", line.first, line.last),
        line.source.node.to_string(),
        line.target.node.to_string(),
        state.to_owned(),
        progress.keys.to_string(),
    ]
}

/// Hands a primary's slots over to one of its replicas.
pub(super) async fn failover(args: FailoverArgs, context: &mut Context) -> Result<Exit> {
    let FailoverArgs { name, primary, to } = args;
    let store = context.store().await?;
    let replica = api::failover(&store, &name, &primary, to.as_ref()).await?;
    let text = format!("cluster {name}: promoted {replica} in place of {primary}");
    done(context, &store, &name, "promoted", &text).await
}

#[derive(Debug, clap::Args)]
pub(crate) struct FailoverArgs {
    /// The cluster
    name: ClusterName,
    /// The primary that gives its slots away
    primary: Address,
    /// The replica that gets them; any of them by default
    #[arg(long, value_name = "NODE")]
    to: Option<Address>,
}

impl FailoverArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new(
            format!("asked to replace primary {} of", self.primary),
            format!("redis cluster {}", self.name),
        )
    }
}
