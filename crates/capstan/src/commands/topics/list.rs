//! `capstan topics list` and `show`.

use anyhow::{Result, bail};
use capstan_meta::view::{View, ViewOptions};
use capstan_topics::facts::Facts;
use capstan_topics::spec::{SubscriptionKind, TopicName};
use serde::Serialize;

use super::client;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, Serialize)]
struct Line {
    topic: String,
    delivery: String,
    /// The broker that serves it.
    broker: Option<u64>,
    address: Option<String>,
    copies: usize,
    in_sync: usize,
}

pub(super) async fn facts(context: &Context) -> Result<Facts> {
    let view = View::open(context.store().await?, Facts::ranges(), ViewOptions::default()).await?;
    let facts = Facts::of(&view.snapshot());
    Ok(facts)
}

fn line(facts: &Facts, name: &TopicName) -> Option<Line> {
    let record = &facts.topics.get(name)?.record;
    let broker = facts.owner(record);
    Some(Line {
        topic: name.to_string(),
        delivery: record.delivery.to_string(),
        broker,
        address: broker.and_then(|id| facts.brokers.get(&id)).map(|broker| broker.connect_url.clone()),
        copies: record.copies,
        in_sync: facts.logs.get(&record.log).map_or(0, |log| log.record.in_sync.len()),
    })
}

pub(super) async fn list(namespace: Option<&str>, context: &mut Context) -> Result<Exit> {
    let facts = facts(context).await?;
    let wanted = |name: &&TopicName| namespace.is_none_or(|wanted| name.namespace.as_str() == wanted);
    let lines: Vec<Line> = facts.topics.keys().filter(wanted).filter_map(|name| line(&facts, name)).collect();
    match context.out.format {
        Format::Json => context.out.json_list("topics", &lines)?,
        Format::Table => {
            let rows = lines.into_iter().map(|line| {
                let broker = line.broker.map_or_else(|| "none".to_owned(), |id| id.to_string());
                let copies = format!("{}/{}", line.in_sync, line.copies);
                [line.topic, line.delivery, broker, line.address.unwrap_or_else(|| "-".to_owned()), copies]
            });
            context.out.table(["TOPIC", "DELIVERY", "BROKER", "ADDRESS", "COPIES"], rows.collect())?;
        }
    }
    Ok(Exit::Done)
}

pub(super) async fn show(name: &TopicName, context: &mut Context) -> Result<Exit> {
    let facts = facts(context).await?;
    let Some(line) = line(&facts, name) else { bail!("there is no topic {name}") };
    let stats = client(context).await?.stats(&line.topic).await?;
    let kind = |number| SubscriptionKind::of(number).map(|kind| kind.to_string()).unwrap_or_default();
    if context.out.format == Format::Json {
        let subscriptions: Vec<_> = stats
            .subscriptions
            .iter()
            .map(|known| {
                serde_json::json!({
                    "name": known.name, "type": kind(known.r#type), "floor": known.floor, "backlog": known.backlog,
                    "in_flight": known.in_flight, "redeliveries": known.redeliveries, "consumers": known.consumers,
                })
            })
            .collect();
        let mut shown = serde_json::to_value(&line)?;
        shown["first_offset"] = stats.start.into();
        shown["next_offset"] = stats.end.into();
        shown["producers"] = stats.producers.into();
        shown["dropped"] = stats.dropped.into();
        shown["subscriptions"] = subscriptions.into();
        context.out.json(&shown)?;
        return Ok(Exit::Done);
    }
    let row = |name: &str, value: String| [name.to_owned(), value];
    let rows = vec![
        row("topic", line.topic.clone()),
        row("delivery", line.delivery),
        row("broker", line.broker.map_or_else(|| "none".to_owned(), |id| id.to_string())),
        row("address", line.address.unwrap_or_else(|| "-".to_owned())),
        row("copies", format!("{} in sync of {}", line.in_sync, line.copies)),
        row("messages", format!("{} to {}", stats.start, stats.end)),
        row("producers", stats.producers.to_string()),
        row("dropped", stats.dropped.to_string()),
    ];
    context.out.table(["FIELD", "VALUE"], rows)?;
    context.out.line("")?;
    let rows = stats.subscriptions.into_iter().map(|known| {
        let numbers =
            [known.floor, known.backlog, known.in_flight, known.redeliveries].map(|n| n.to_string());
        let [floor, backlog, in_flight, again] = numbers;
        [known.name, kind(known.r#type), floor, backlog, in_flight, again, known.consumers.len().to_string()]
    });
    let header = ["SUBSCRIPTION", "TYPE", "FLOOR", "BACKLOG", "IN FLIGHT", "REDELIVERED", "CONSUMERS"];
    context.out.table(header, rows.collect())?;
    Ok(Exit::Done)
}
