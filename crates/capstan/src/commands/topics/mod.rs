//! `capstan topics`: create, list, show, delete, unload, produce, consume, peek, seek, set.

mod consume;
mod list;
mod produce;
mod retain;

use anyhow::{Context as _, Result, bail};
use capstan_client::wire::capstan::topics::v1::{Position, SeekRequest, position};
use capstan_client::wire::danube_admin::topic_admin_client::TopicAdminClient;
use capstan_client::wire::danube_admin::{NewTopicRequest, PartitionedTopicRequest, TopicRequest};
use capstan_client::{Access, Client, ClientError, Link};
use capstan_topics::keys::Registrations;
use capstan_topics::spec::{SubscriptionKind, TopicName};
use clap::ValueEnum;

use crate::commands::action::OperatorAction;
use crate::config::Config;
use crate::connect;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum TopicsCommand {
    /// Create a topic
    Create(CreateArgs),
    /// List topics with the brokers that serve them
    List {
        /// Only those of this namespace
        #[arg(long)]
        namespace: Option<String>,
    },
    /// Print everything about one topic
    Show {
        /// The topic
        topic: TopicName,
    },
    /// Delete a topic and its messages
    Delete {
        /// The topic
        topic: TopicName,
    },
    /// Have another broker serve a topic
    Unload {
        /// The topic
        topic: TopicName,
    },
    /// Publish the lines of stdin, one message each
    Produce(produce::ProduceArgs),
    /// Print messages of a subscription and acknowledge them
    Consume(consume::ConsumeArgs),
    /// Print messages without consuming them
    Peek(consume::PeekArgs),
    /// Set the position of a subscription
    Seek(SeekArgs),
    /// Set how long the messages of a topic stay, instead of what its namespace says
    Set(retain::SetArgs),
}

#[derive(Debug, clap::Args)]
pub(crate) struct CreateArgs {
    /// The topic: /namespace/name
    topic: TopicName,
    /// Keep nothing: consumers that are slow or absent miss messages
    #[arg(long)]
    non_reliable: bool,
    /// Create this many partitions
    #[arg(long, value_name = "COUNT")]
    partitions: Option<u32>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SeekArgs {
    /// The topic
    topic: TopicName,
    /// The subscription
    #[arg(long, value_name = "NAME")]
    subscription: String,
    /// Where to: earliest, latest, an offset, or @ and milliseconds since 1970
    #[arg(long, value_name = "PLACE", value_parser = place)]
    to: Position,
}

/// How consumers share a subscription.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Kind {
    Exclusive,
    Shared,
    Failover,
    KeyShared,
}

impl Kind {
    fn wire(self) -> capstan_client::wire::danube::consumer_request::SubscriptionType {
        use capstan_client::wire::danube::consumer_request::SubscriptionType;
        match self {
            Kind::Exclusive => SubscriptionType::Exclusive,
            Kind::Shared => SubscriptionType::Shared,
            Kind::Failover => SubscriptionType::Failover,
            Kind::KeyShared => SubscriptionType::KeyShared,
        }
    }
}

/// A place in a topic, as it is typed.
fn place(text: &str) -> Result<Position, String> {
    let at = match text {
        "earliest" => position::At::Earliest(true),
        "latest" => position::At::Latest(true),
        _ => {
            let wrong = |_| "write earliest, latest, an offset, or @ and milliseconds since 1970".to_owned();
            match text.strip_prefix('@') {
                Some(time) => position::At::Time(time.parse().map_err(wrong)?),
                None => position::At::Offset(text.parse().map_err(wrong)?),
            }
        }
    };
    Ok(Position { at: Some(at) })
}

impl TopicsCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let of =
            |action: &str, topic: &TopicName| Some(OperatorAction::new(action, format!("topic {topic}")));
        match self {
            TopicsCommand::Create(args) => of("created", &args.topic),
            TopicsCommand::Delete { topic } => of("deleted", topic),
            TopicsCommand::Unload { topic } => of("asked to unload", topic),
            TopicsCommand::Seek(args) => {
                of(&format!("moved subscription {} of", args.subscription), &args.topic)
            }
            TopicsCommand::Set(args) => Some(args.action()),
            TopicsCommand::List { .. } | TopicsCommand::Show { .. } | TopicsCommand::Produce(_) => None,
            TopicsCommand::Consume(_) | TopicsCommand::Peek(_) => None,
        }
    }
}

pub(crate) async fn run(command: TopicsCommand, context: &mut Context) -> Result<Exit> {
    match command {
        TopicsCommand::Create(args) => create(args, context).await,
        TopicsCommand::List { namespace } => list::list(namespace.as_deref(), context).await,
        TopicsCommand::Show { topic } => list::show(&topic, context).await,
        TopicsCommand::Delete { topic } => {
            admin(context)
                .await?
                .delete_topic(TopicRequest { name: topic.to_string() })
                .await
                .map_err(refused)?;
            done(context, &format!("deleted topic {topic}"))
        }
        TopicsCommand::Unload { topic } => {
            admin(context)
                .await?
                .unload_topic(TopicRequest { name: topic.to_string() })
                .await
                .map_err(refused)?;
            done(context, &format!("unloaded topic {topic}"))
        }
        TopicsCommand::Produce(args) => produce::run(args, context).await,
        TopicsCommand::Consume(args) => consume::run(args, context).await,
        TopicsCommand::Peek(args) => consume::peek(args, context).await,
        TopicsCommand::Seek(args) => seek(args, context).await,
        TopicsCommand::Set(args) => retain::run(args, context).await,
    }
}

/// A broker's error message, without the gRPC prefix.
pub(super) fn refused(status: tonic::Status) -> anyhow::Error {
    ClientError::from(status).into()
}

pub(super) fn done(context: &mut Context, text: &str) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json(&serde_json::json!({ "done": text }))?,
        Format::Table => say(text),
    }
    Ok(Exit::Done)
}

/// A client of the brokers that are up, with the operator's access key.
pub(super) async fn client(context: &Context) -> Result<Client> {
    let brokers = context.store().await?.list(&Registrations {}).await?;
    let urls: Vec<String> = brokers.iter().map(|(_, broker)| broker.record.connect_url.clone()).collect();
    if urls.is_empty() {
        bail!("no broker is up; start one with `capstan up`, or a host with the role topics");
    }
    Ok(Client::new(urls).with_access(access(context)?))
}

/// What brokers are shown, and how they are known.
fn access(context: &Context) -> Result<Access> {
    let layers = context.layers()?;
    let config = Config::of(&layers)?;
    let key = match config.access.key {
        Some(key) => Some(key),
        None => connect::local_key(&layers, &config.meta)?,
    };
    let access = Access::default();
    let access = key.map_or(Ok(access.clone()), |key| access.with_key(key.reveal()))?;
    Ok(match &config.topics.authority {
        Some(path) => access.with_authority(connect::read(path)?),
        None => access,
    })
}

/// The channel to any broker.
pub(super) async fn channel(context: &Context) -> Result<Link> {
    let client = client(context).await?;
    let url = client.any().context("no broker is up")?.to_owned();
    Ok(client.connect(&url).await?)
}

async fn admin(context: &Context) -> Result<TopicAdminClient<Link>> {
    Ok(TopicAdminClient::new(channel(context).await?))
}

async fn create(args: CreateArgs, context: &mut Context) -> Result<Exit> {
    let mut admin = admin(context).await?;
    let strategy = if args.non_reliable { 0 } else { 1 };
    let name = args.topic.to_string();
    match args.partitions {
        None => {
            let request = NewTopicRequest { name, schema_subject: None, dispatch_strategy: strategy };
            admin.create_topic(request).await.map_err(refused)?;
        }
        Some(partitions) => {
            let request = PartitionedTopicRequest {
                base_name: name,
                partitions,
                schema_subject: None,
                dispatch_strategy: strategy,
            };
            admin.create_partitioned_topic(request).await.map_err(refused)?;
        }
    }
    done(context, &format!("created topic {}", args.topic))
}

async fn seek(args: SeekArgs, context: &mut Context) -> Result<Exit> {
    let client = client(context).await?;
    let request = SeekRequest {
        topic: args.topic.to_string(),
        subscription: args.subscription.clone(),
        to: Some(args.to),
        r#type: SubscriptionKind::Shared.number(),
        only_if_new: false,
    };
    let offset = client.seek(request).await?;
    match context.out.format {
        Format::Json => context.out.json(&serde_json::json!({ "offset": offset }))?,
        Format::Table => say(format!("subscription {} continues at offset {offset}", args.subscription)),
    }
    Ok(Exit::Done)
}
