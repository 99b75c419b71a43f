//! `capstan meta watch`: every change of a prefix, in order and without gaps, until interrupted.

use anyhow::Result;
use capstan_meta::{Event, EventKind, KeyRange, Revision, Watch, WatchMessage};
use serde_json::json;

use super::shown::{document, text, value};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Args)]
pub(crate) struct WatchArgs {
    /// The prefix
    #[arg(default_value = "/")]
    prefix: String,
    /// Start at this revision instead of the next change
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    from: i64,
    /// Stop after this many changes
    #[arg(long, value_name = "COUNT")]
    count: Option<usize>,
}

pub(crate) async fn run(args: WatchArgs, context: &mut Context) -> Result<Exit> {
    tokio::select! {
        result = follow(args, context) => result,
        _ = tokio::signal::ctrl_c() => Ok(Exit::Done),
    }
}

async fn follow(args: WatchArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let mut stream = store.watch(Watch::from(KeyRange::prefix(args.prefix), Revision(args.from))).await?;
    let mut left = args.count.unwrap_or(usize::MAX);
    while left > 0 {
        let events = match stream.next().await? {
            WatchMessage::Events { events, .. } => events,
            WatchMessage::Progress(_) => continue,
        };
        for event in events.iter().take(left) {
            print(event, context)?;
        }
        left -= events.len().min(left);
    }
    Ok(Exit::Done)
}

fn print(event: &Event, context: &mut Context) -> Result<()> {
    let kind = match event.kind() {
        EventKind::Put => "put",
        EventKind::Delete => "delete",
    };
    let out = &mut context.out;
    match out.format {
        Format::Json => {
            let mut line = json!({ "event": kind });
            if let (Some(line), serde_json::Value::Object(kv)) = (line.as_object_mut(), document(&event.kv)) {
                line.extend(kv);
            }
            out.json_line(&line)
        }
        Format::Table => {
            let revision = event.kv.mod_revision;
            out.line(
                format!("{revision:>8} {kind:<6} {} {}", text(&event.kv.key), text(&value(&event.kv)))
                    .trim_end(),
            )?;
            out.flush()
        }
    }
}
