//! One file a noun: what each command does.

pub(crate) mod access;
pub(crate) mod action;
mod bar;
pub(crate) mod bench;
pub(crate) mod brokers;
pub(crate) mod certs;
pub(crate) mod completions;
pub(crate) mod config;
pub(crate) mod controller;
pub(crate) mod docs;
pub(crate) mod events;
pub(crate) mod fleet;
pub(crate) mod host;
pub(crate) mod hosts;
pub(crate) mod join;
pub(crate) mod log;
pub(crate) mod meta;
pub(crate) mod namespaces;
pub(crate) mod plan;
pub(crate) mod redis;
pub(crate) mod reference;
mod remote;
pub(crate) mod schemas;
pub(crate) mod status;
pub(crate) mod subscriptions;
pub(crate) mod topics;
pub(crate) mod up;
pub(crate) mod version;
mod wait;

use anyhow::Result;

use self::action::OperatorAction;
use crate::cli::Command;
use crate::context::Context;
use crate::exit::Exit;

/// Carries out a command, and records what it changed as an event.
pub(crate) async fn run(command: Command, context: &mut Context) -> Result<Exit> {
    context.action = OperatorAction::of(&command);
    let exit = perform(command, context).await?;
    if matches!(exit, Exit::Done | Exit::Waiting) {
        context.record_action().await;
    }
    Ok(exit)
}

async fn perform(command: Command, context: &mut Context) -> Result<Exit> {
    match command {
        Command::Up(args) => up::run(args, context).await,
        Command::Host(args) => host::run(args, context).await,
        Command::Controller(args) => controller::run(args, context).await,
        Command::Status(args) => status::run(args, context).await,
        Command::Events(args) => events::run(args, context).await,
        Command::Hosts(command) => hosts::run(command, context).await,
        Command::Redis(command) => redis::run(command, context).await,
        Command::Topics(command) => topics::run(command, context).await,
        Command::Subscriptions(command) => subscriptions::run(command, context).await,
        Command::Namespaces(command) => namespaces::run(command, context).await,
        Command::Brokers(command) => brokers::run(command, context).await,
        Command::Schemas(command) => schemas::run(command, context).await,
        Command::Docs(command) => docs::run(command, context).await,
        Command::Fleet(command) => fleet::run(command, context).await,
        Command::Access(command) => access::run(command, context).await,
        Command::Certs(command) => certs::run(command, context).await,
        Command::Join(args) => join::run(args, context).await,
        Command::Meta(command) => meta::run(command, context).await,
        Command::Plan(args) => {
            let format = context.out.format;
            plan::run(args, format, context.out.writer()).map(|()| Exit::Done)
        }
        Command::Log(args) => log::run(args, context).await,
        Command::Config(command) => config::run(command, context),
        Command::Bench(args) => bench::run(args, context).await,
        Command::Reference(command) => reference::run(command, context),
        Command::Completions(args) => completions::run(args, context),
        Command::Version => version::run(context),
    }
}
