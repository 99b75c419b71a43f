//! `capstan redis`: operates Redis clusters.

mod bytes;
mod check;
mod clusters;
mod hosts;
mod map;
mod moves;
mod proxy;
mod shards;
mod users;

use anyhow::Result;
use capstan_redis::ClusterName;
use capstan_redis::status::MoveId;

use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RedisCommand {
    /// Show and change the pool of hosts
    #[command(subcommand)]
    Hosts(hosts::HostsCommand),
    /// Create a cluster
    Create(clusters::CreateArgs),
    /// Delete a cluster and its data
    Delete {
        /// The cluster
        name: ClusterName,
        /// Do not ask for confirmation
        #[arg(long, short)]
        yes: bool,
    },
    /// List the clusters
    List,
    /// Print everything about a cluster, with a map of its slots
    Show {
        /// The cluster
        name: ClusterName,
    },
    /// Change the number of a cluster's nodes, under load
    Scale(clusters::ScaleArgs),
    /// Rebalance a cluster's slots over its nodes
    Rebalance {
        /// The cluster
        name: ClusterName,
    },
    /// Move slots to another node, under load
    Move(moves::MoveArgs),
    /// Show the slots that are moving, and their progress
    Moves {
        /// Continue until all moves are complete
        #[arg(long)]
        watch: bool,
    },
    /// Cancel a move that is not complete
    Cancel {
        /// The cluster
        name: ClusterName,
        /// The move's number, as `moves` shows it
        id: u64,
    },
    /// Show the findings about Redis
    Check,
    /// Repair what `check` finds
    Fix,
    /// Promote an in-sync replica
    Failover(moves::FailoverArgs),
    /// Let a shard continue without data that no reachable node has
    AcceptLoss(shards::AcceptLossArgs),
    /// Restore data that a host set aside
    Recover(shards::RecoverArgs),
    /// Show and change the users of a cluster
    #[command(subcommand)]
    User(users::UserCommand),
    /// Print what a client needs
    Connect {
        /// The cluster
        name: ClusterName,
    },
    /// Run a proxy alone, in front of externally managed redis-servers
    Proxy(proxy::ProxyArgs),
}

impl RedisCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let cluster = |name: &ClusterName| format!("redis cluster {name}");
        match self {
            RedisCommand::Hosts(command) => command.action(),
            RedisCommand::Create(args) => Some(args.action()),
            RedisCommand::Scale(args) => args.action(),
            RedisCommand::Move(args) => args.action(),
            RedisCommand::Failover(args) => Some(args.action()),
            RedisCommand::AcceptLoss(args) => Some(args.action()),
            RedisCommand::Recover(args) => Some(args.action()),
            RedisCommand::User(command) => command.action(),
            RedisCommand::Delete { name, .. } => Some(OperatorAction::new("deleted", cluster(name))),
            RedisCommand::Rebalance { name } => {
                Some(OperatorAction::new("asked to rebalance", cluster(name)))
            }
            RedisCommand::Cancel { name, id } => {
                Some(OperatorAction::new(format!("cancelled move {id} of"), cluster(name)))
            }
            RedisCommand::Fix => Some(OperatorAction::new("repaired", "redis metadata")),
            RedisCommand::List | RedisCommand::Show { .. } | RedisCommand::Moves { .. } => None,
            RedisCommand::Check | RedisCommand::Connect { .. } | RedisCommand::Proxy(_) => None,
        }
    }
}

pub(crate) async fn run(command: RedisCommand, context: &mut Context) -> Result<Exit> {
    match command {
        RedisCommand::Hosts(command) => hosts::run(command, context).await,
        RedisCommand::Create(args) => clusters::create(args, context).await,
        RedisCommand::Delete { name, yes } => clusters::delete(&name, yes, context).await,
        RedisCommand::List => clusters::list(context).await,
        RedisCommand::Show { name } => clusters::show(&name, context).await,
        RedisCommand::Scale(args) => clusters::scale(args, context).await,
        RedisCommand::Rebalance { name } => clusters::rebalance(&name, context).await,
        RedisCommand::Move(args) => moves::begin(args, context).await,
        RedisCommand::Moves { watch } => moves::list(watch, context).await,
        RedisCommand::Cancel { name, id } => moves::cancel(&name, MoveId(id), context).await,
        RedisCommand::Check => check::look(context).await,
        RedisCommand::Fix => check::fix(context).await,
        RedisCommand::Failover(args) => moves::failover(args, context).await,
        RedisCommand::AcceptLoss(args) => shards::accept_loss(args, context).await,
        RedisCommand::Recover(args) => shards::recover(args, context).await,
        RedisCommand::User(command) => users::run(command, context).await,
        RedisCommand::Connect { name } => clusters::connect(&name, context).await,
        RedisCommand::Proxy(args) => proxy::run(args, context).await,
    }
}
