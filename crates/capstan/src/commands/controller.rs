//! `capstan controller`: the stateless deciders of a cluster. Any number of them; one leads.

use std::path::PathBuf;

use anyhow::Result;

use crate::commands::remote::{Remote, open};
use crate::context::Context;
use crate::daemon::{self, RedisShared};
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "It ends drains that are over, updates the fleet and, with redis.secret, coordinates the Redis clusters.\nExample:\n  \
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
    let Remote { process, store, session, address, .. } = &remote;
    daemon::start_membership(process, session);
    daemon::start_controller(process, store, session, &config.host.id);
    daemon::start_updater(process, store, &config.fleet.tree, &config.host.id, config.fleet.leader_ttl);
    if let Some(secret) = config.redis.secret.clone() {
        let settings = config.redis.clone();
        let shared = RedisShared { store: store.clone(), secret, settings };
        daemon::start_coordinator(process, &shared, *address)?;
    }
    remote.run("controller is up", args.ready_file.as_deref()).await
}
