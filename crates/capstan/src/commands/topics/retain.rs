//! `capstan topics set`: how long the messages of one topic stay.

use anyhow::{Result, bail};
use capstan_topics::commit;
use capstan_topics::spec::{StoragePolicy, TopicName};

use super::done;
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Limits: retention_seconds, retention_bytes, message_ttl_seconds, compact_by_key, tombstone_seconds.\n\n\
    Examples:\n  capstan topics set /default/orders retention_seconds=86400 retention_bytes=1073741824\n  \
    capstan topics set /default/orders message_ttl_seconds=default"
)]
pub(crate) struct SetArgs {
    /// The topic
    topic: TopicName,
    /// Limits; 0: no limit, `default`: as in the namespace; may be several
    #[arg(value_name = "LIMIT=NUMBER", required = true)]
    limits: Vec<String>,
}

impl SetArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("set limits of", format!("topic {}", self.topic)).because(&self.limits.join(" "))
    }
}

pub(super) async fn run(args: SetArgs, context: &mut Context) -> Result<Exit> {
    let wanted = args.limits.iter().map(|limit| parse(limit)).collect::<Result<Vec<_>>>()?;
    let store = context.store().await?;
    let changed = |mut policy: StoragePolicy| {
        for (name, limit) in &wanted {
            policy.set(name, *limit);
        }
        policy
    };
    commit::set_storage(&store, &args.topic, changed).await?;
    done(context, &format!("set the limits of topic {}", args.topic))
}

fn parse(text: &str) -> Result<(String, Option<u64>)> {
    let known = text.split_once('=').filter(|(name, _)| StoragePolicy::LIMITS.contains(name));
    match known.map(|(name, number)| (name.to_owned(), number, number.parse::<u64>())) {
        Some((name, "default", _)) => Ok((name, None)),
        Some((name, _, Ok(number))) => Ok((name, Some(number))),
        Some((_, _, Err(_))) | None => {
            bail!(
                "{text:?} is not a limit: write LIMIT=NUMBER with one of {}",
                StoragePolicy::LIMITS.join(", ")
            )
        }
    }
}
