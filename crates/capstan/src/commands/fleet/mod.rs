//! `capstan fleet`: updates of the hosts.

mod release;

use anyhow::Result;
use clap::Subcommand;

use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, Subcommand)]
pub(crate) enum FleetCommand {
    /// Make, sign, check and publish releases
    #[command(subcommand)]
    Release(release::ReleaseCommand),
}

/// Carries out the command.
pub(crate) async fn run(command: FleetCommand, context: &mut Context) -> Result<Exit> {
    match command {
        FleetCommand::Release(command) => release::run(command, context).await,
    }
}
