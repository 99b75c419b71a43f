//! `capstan meta`: reads, writes, serves and maintains the metadata.

mod keep;
mod read;
mod serve;
mod shown;
mod tree;
mod watch;
mod write;

use anyhow::Result;
use capstan_bench::Area;

use crate::commands::bench;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum MetaCommand {
    /// Serve an embedded store on the etcd v3 wire
    Serve(serve::ServeArgs),
    /// Print a key, or all keys with a prefix
    Get(read::GetArgs),
    /// Write a key
    Put(write::PutArgs),
    /// Delete a key, or all keys with a prefix
    Del(write::DelArgs),
    /// Print keys as a tree; secrets are hidden
    Tree(tree::TreeArgs),
    /// Print changes as they happen, until interrupted
    Watch(watch::WatchArgs),
    /// Drop history before a revision
    Compact(keep::CompactArgs),
    /// Write a copy of the whole store to a file
    Snapshot(keep::SnapshotArgs),
    /// Create a data directory from a snapshot
    Restore(keep::RestoreArgs),
    /// Print the status of the store
    Status,
    /// Benchmark the store and etcd (the same as `capstan bench meta`)
    Bench(bench::How),
}

pub(crate) async fn run(command: MetaCommand, context: &mut Context) -> Result<Exit> {
    match command {
        MetaCommand::Serve(args) => serve::run(args, context).await,
        MetaCommand::Get(args) => read::get(args, context).await,
        MetaCommand::Put(args) => write::put(args, context).await,
        MetaCommand::Del(args) => write::del(args, context).await,
        MetaCommand::Tree(args) => tree::run(args, context).await,
        MetaCommand::Watch(args) => watch::run(args, context).await,
        MetaCommand::Compact(args) => keep::compact(args, context).await,
        MetaCommand::Snapshot(args) => keep::snapshot(args, context).await,
        MetaCommand::Restore(args) => keep::restore(args, context).await,
        MetaCommand::Status => keep::status(context).await,
        MetaCommand::Bench(how) => bench::run_area(Area::Meta, how, context).await,
    }
}
