//! One file a noun: what each command does.

pub(crate) mod bench;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod controller;
pub(crate) mod fleet;
pub(crate) mod host;
pub(crate) mod hosts;
pub(crate) mod log;
pub(crate) mod meta;
pub(crate) mod plan;
pub(crate) mod redis;
pub(crate) mod reference;
mod remote;
pub(crate) mod status;
pub(crate) mod up;
pub(crate) mod version;

use anyhow::Result;

use crate::cli::Command;
use crate::context::Context;
use crate::exit::Exit;

/// Carries out a command.
pub(crate) async fn run(command: Command, context: &mut Context) -> Result<Exit> {
    match command {
        Command::Up(args) => up::run(args, context).await,
        Command::Host(args) => host::run(args, context).await,
        Command::Controller(args) => controller::run(args, context).await,
        Command::Status(args) => status::run(args, context).await,
        Command::Hosts(command) => hosts::run(command, context).await,
        Command::Redis(command) => redis::run(command, context).await,
        Command::Fleet(command) => fleet::run(command, context).await,
        Command::Meta(command) => meta::run(command, context).await,
        Command::Plan(args) => {
            let format = context.out.format;
            plan::run(args, format, context.out.writer()).map(|()| Exit::Done)
        }
        Command::Log(args) => log::run(args, context.out.writer()).map(|()| Exit::Done),
        Command::Config(command) => config::run(command, context),
        Command::Bench(args) => bench::run(args, context).await,
        Command::Reference(command) => reference::run(command, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Version => version::run(context),
    }
}
