//! `capstan controller`: the stateless deciders of a cluster. Any number of them; one leads.

use std::path::PathBuf;

use anyhow::Result;

use crate::commands::remote::{Remote, open};
use crate::context::Context;
use crate::daemon;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "It ends drains that are over and updates the fleet; the deciders of the other services will run here.\nExample:\n  \
    capstan controller --meta http://127.0.0.1:7701 --set http.listen=127.0.0.1:7720"
)]
pub(crate) struct ControllerArgs {
    /// Write the endpoints as JSON to this file once it stands for election
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: ControllerArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    let remote = open(&config, None, context).await?;
    let Remote { process, store, session, .. } = &remote;
    daemon::start_membership(process, session);
    daemon::start_controller(process, store, session, &config.host.id);
    daemon::start_updater(process, store, &config.fleet.tree, &config.host.id, config.fleet.leader_ttl);
    remote.run("controller is up", args.ready_file.as_deref()).await
}
