//! `capstan redis`: Redis clusters, as an operator runs them.

mod bytes;
mod check;
mod clusters;
mod hosts;
mod map;
mod moves;
mod proxy;

use anyhow::Result;
use capstan_redis::ClusterName;
use capstan_redis::status::MoveId;

use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RedisCommand {
    /// See and change the pool of hosts
    #[command(subcommand)]
    Hosts(hosts::HostsCommand),
    /// Create a cluster
    Create(clusters::CreateArgs),
    /// Delete a cluster and its data
    Delete {
        /// The cluster
        name: ClusterName,
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
    /// Spread a cluster's slots evenly over its nodes
    Rebalance {
        /// The cluster
        name: ClusterName,
    },
    /// Move slots to another node, under load
    Move(moves::MoveArgs),
    /// Show which slots are on their way, and how far
    Moves {
        /// Go on until all have arrived
        #[arg(long)]
        watch: bool,
    },
    /// Take back a move that is not over
    Cancel {
        /// The cluster
        name: ClusterName,
        /// The move's number, as `moves` shows it
        id: u64,
    },
    /// Find what is wrong in the metadata, and explain it
    Check,
    /// Put right what `check` finds
    Fix,
    /// Make a replica the primary
    Failover(moves::FailoverArgs),
    /// Print what a client needs
    Connect {
        /// The cluster
        name: ClusterName,
    },
    /// Run a proxy alone, in front of redis-servers that somebody else runs
    Proxy(proxy::ProxyArgs),
}

pub(crate) async fn run(command: RedisCommand, context: &mut Context) -> Result<Exit> {
    match command {
        RedisCommand::Hosts(command) => hosts::run(command, context).await,
        RedisCommand::Create(args) => clusters::create(args, context).await,
        RedisCommand::Delete { name } => clusters::delete(&name, context).await,
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
        RedisCommand::Connect { name } => clusters::connect(&name, context).await,
        RedisCommand::Proxy(args) => proxy::run(args, context).await,
    }
}
