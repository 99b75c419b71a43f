//! `capstan subscriptions`: the subscriptions of a topic.

use anyhow::Result;
use capstan_topics::spec::{SubscriptionKind, TopicName};

use super::topics::{client, done};
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SubscriptionsCommand {
    /// List the subscriptions of a topic with their backlog
    List {
        /// The topic
        topic: TopicName,
    },
    /// Remove a subscription that has no consumers
    Delete {
        /// The topic
        topic: TopicName,
        /// The subscription
        subscription: String,
    },
}

impl SubscriptionsCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            SubscriptionsCommand::Delete { topic, subscription } => {
                Some(OperatorAction::new("deleted", format!("subscription {subscription} of topic {topic}")))
            }
            SubscriptionsCommand::List { .. } => None,
        }
    }
}

pub(crate) async fn run(command: SubscriptionsCommand, context: &mut Context) -> Result<Exit> {
    let client = client(context).await?;
    match command {
        SubscriptionsCommand::List { topic } => {
            let stats = client.stats(&topic.to_string()).await?;
            let kind = |number| SubscriptionKind::of(number).map(|kind| kind.to_string()).unwrap_or_default();
            match context.out.format {
                Format::Json => {
                    let lines: Vec<_> = stats
                        .subscriptions
                        .iter()
                        .map(|known| {
                            serde_json::json!({
                                "name": known.name, "type": kind(known.r#type), "floor": known.floor,
                                "backlog": known.backlog, "consumers": known.consumers,
                            })
                        })
                        .collect();
                    context.out.json_list("subscriptions", &lines)?;
                }
                Format::Table => {
                    let rows = stats.subscriptions.into_iter().map(|known| {
                        let consumers = known.consumers.join(",");
                        [
                            known.name,
                            kind(known.r#type),
                            known.floor.to_string(),
                            known.backlog.to_string(),
                            consumers,
                        ]
                    });
                    context
                        .out
                        .table(["SUBSCRIPTION", "TYPE", "FLOOR", "BACKLOG", "CONSUMERS"], rows.collect())?;
                }
            }
            Ok(Exit::Done)
        }
        SubscriptionsCommand::Delete { topic, subscription } => {
            client.unsubscribe(&topic.to_string(), &subscription).await?;
            done(context, &format!("deleted subscription {subscription} of topic {topic}"))
        }
    }
}
