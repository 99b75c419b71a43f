//! `capstan redis`: Redis clusters, as an operator runs them.

mod proxy;

use anyhow::Result;

use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RedisCommand {
    /// Run a proxy alone, in front of redis-servers that somebody else runs
    Proxy(proxy::ProxyArgs),
}

pub(crate) async fn run(command: RedisCommand, context: &mut Context) -> Result<Exit> {
    match command {
        RedisCommand::Proxy(args) => proxy::run(args, context).await,
    }
}
