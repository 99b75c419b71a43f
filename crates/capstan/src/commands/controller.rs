//! `capstan controller`: the stateless controllers of a cluster. Any number run; one leads.

use std::path::PathBuf;

use anyhow::Result;

use crate::commands::remote::{Remote, Role, open};
use crate::context::Context;
use crate::daemon::{self, RedisShared, SelfCheck, UpdaterPlace};
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "It ends drains that are over, chooses the holders of replicated logs, updates the fleet and, with redis.secret, coordinates the Redis clusters.\nExample:\n  \
    capstan controller --meta http://127.0.0.1:7701 --set http.listen=127.0.0.1:7720"
)]
pub(crate) struct ControllerArgs {
    /// Write the endpoints as JSON to this file once it is a candidate
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: ControllerArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    let mut serves = vec!["meta", "control", "host", "fleet"];
    serves.extend(config.redis.secret.as_ref().map(|_| "redis"));
    let remote = open(&config, Role { host: None, serves, dir: None }, context).await?;
    let Remote { process, store, session, address, metrics, findings, .. } = &remote;
    daemon::start_membership(process, session);
    let check = SelfCheck::of(&config, format!("controller {}", config.host.id), None, Vec::new());
    daemon::start_self_check(process, session, &config.host.id, check)?;
    daemon::start_controller(process, store, session, &config.host.id);
    daemon::start_steward(process, store, session, &config.host.id)?;
    let (fleet, id) = (&config.fleet, &config.host.id);
    let place = UpdaterPlace { name: id, ttl: fleet.leader_ttl, trust: fleet.trust.as_deref(), findings };
    daemon::start_updater(process, store, &fleet.tree, place)?;
    if let Some(secret) = config.redis.secret.clone() {
        let settings = config.redis.clone();
        let wire = daemon::probing(&secret);
        daemon::start_prober(process, store, session, wire, &config.host.id, metrics)?;
        let shared = RedisShared { store: store.clone(), secret, settings };
        daemon::start_coordinator(process, &shared, &config.host.id, *address)?;
    }
    remote.run("controller is up", args.ready_file.as_deref()).await
}
