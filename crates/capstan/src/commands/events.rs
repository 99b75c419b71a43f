//! `capstan events`: decisions and actions.

use std::time::Duration;

use anyhow::Result;
use capstan_control::events::{self, EventLine};
use capstan_control::keys::EventId;
use serde_json::json;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// How often new events are read.
const LOOK_EVERY: Duration = Duration::from_millis(500);

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  capstan events\n  capstan events --last 200 -o json\n  capstan events --follow"
)]
pub(crate) struct EventsArgs {
    /// Go on and print events as they come
    #[arg(long, short)]
    follow: bool,
    /// How many of the newest events are printed
    #[arg(long, default_value_t = 20, value_name = "COUNT")]
    last: usize,
}

pub(crate) async fn run(args: EventsArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let mut found = events::list(&store, None).await?;
    found.drain(..found.len().saturating_sub(args.last));
    if !args.follow {
        match context.out.format {
            Format::Json => context.out.json(&json!({ "events": found }))?,
            Format::Table => found.iter().try_for_each(|event| context.out.line(line(event)))?,
        }
        return Ok(Exit::Done);
    }
    let mut newest: Option<EventId> = None;
    loop {
        for event in &found {
            match context.out.format {
                Format::Json => context.out.json_line(event)?,
                Format::Table => context.out.line(line(event))?,
            }
            newest = Some(event.id.clone());
        }
        context.out.flush()?;
        tokio::time::sleep(LOOK_EVERY).await;
        found = events::list(&store, newest.as_ref()).await?;
    }
}

/// An event in one line.
pub(crate) fn line(event: &EventLine) -> String {
    // Seconds are enough in the table; JSON has the full time.
    let at = event.at.split('.').next().unwrap_or_default().trim_end_matches('Z');
    let reason = if event.reason.is_empty() { String::new() } else { format!(" ({})", event.reason) };
    format!("{at}  {}: {} {}{reason}", event.actor, event.action, event.object)
}
