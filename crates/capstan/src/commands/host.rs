//! `capstan host`: the daemon of one machine of a cluster.

use std::collections::BTreeMap;
use std::path::PathBuf;

use anyhow::Result;

use crate::commands::remote::{Remote, open};
use crate::context::Context;
use crate::daemon;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(after_help = "Example:\n  capstan host --meta http://127.0.0.1:7701 --set host.id=box2 --set \
    http.listen=127.0.0.1:7710")]
pub(crate) struct HostArgs {
    /// Write the endpoints as JSON to this file once the host is registered
    #[arg(long, value_name = "FILE")]
    ready_file: Option<PathBuf>,
}

pub(crate) async fn run(args: HostArgs, context: &mut Context) -> Result<Exit> {
    let config = context.config()?;
    let remote = open(&config, Some(&config.host.id), context).await?;
    let Remote { process, store, session, address, .. } = &remote;
    let addresses = BTreeMap::from([("http".to_owned(), address.to_string())]);
    daemon::start_host(process, store, session, &config.host, &["console"], addresses)?;
    remote.run("host is up", args.ready_file.as_deref()).await
}
