//! `beacon`: the example service as processes of its own. `beacon controller` decides, `beacon host` is one host.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use capstan_control::hosts::{self, HostRecord};
use capstan_control::keys::HostId;
use capstan_control::reconcile::{Elected, Pace, Reconciler, run_elected};
use capstan_disk::Os;
use capstan_example::agent::Shell;
use capstan_example::controller::{Beacons, SERVICE};
use capstan_example::facts::Facts;
use capstan_example::keys::{Candidates, TermKey};
use capstan_meta::Store;
use capstan_meta::election::{Ballot, Election};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::session::{Session, SessionOptions};
use capstan_meta::view::{View, ViewOptions};
use clap::Parser;
use tokio_util::sync::CancellationToken;

#[derive(Parser)]
enum Command {
    /// Decide where beacons are lit. Any number may run; the elected one acts.
    Controller {
        /// Endpoint of the metadata store.
        #[arg(long)]
        meta: String,
        /// Name of this process.
        #[arg(long)]
        id: String,
    },
    /// Light beacons on this host.
    Host {
        /// Endpoint of the metadata store.
        #[arg(long)]
        meta: String,
        /// Name of this host.
        #[arg(long)]
        id: HostId,
        /// Where its beacons are kept. One process at a time may use it.
        #[arg(long)]
        dir: PathBuf,
    },
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    match Command::parse() {
        Command::Controller { meta, id } => controller(&meta, &id).await,
        Command::Host { meta, id, dir } => host(&meta, id, dir).await,
    }
}

async fn connect(meta: &str) -> anyhow::Result<(Store, Session, View)> {
    let store = Store::new(Etcd::connect(EtcdOptions::new([meta])).await?);
    let session = Session::start(store.clone(), SessionOptions::default());
    let view = View::open(store.clone(), Facts::ranges(), ViewOptions::default()).await?;
    Ok((store, session, view))
}

async fn controller(meta: &str, id: &str) -> anyhow::Result<()> {
    let (store, session, view) = connect(meta).await?;
    let seed = u64::from(std::process::id());
    let election = Election::new(store.clone(), session, Ballot::queue(&Candidates {}), id, seed);
    let beacons = Beacons { service: SERVICE.parse()? };
    let reconciler = Reconciler::new(beacons, store, Arc::new(view), Pace::default());
    let mut elected = Elected { election, term_key: TermKey {} };
    run_elected(&reconciler, &mut elected, &CancellationToken::new()).await;
    Ok(())
}

async fn host(meta: &str, id: HostId, dir: PathBuf) -> anyhow::Result<()> {
    let (_, session, view) = connect(meta).await?;
    let record = HostRecord {
        boot: std::process::id().to_string(),
        services: vec![SERVICE.parse()?],
        ..HostRecord::default()
    };
    hosts::register(&session, &id, &record).await?;
    let shell = Shell { host: id, dir, disk: Arc::new(Os), session };
    shell.run(&view, &CancellationToken::new()).await.context("the agent failed")
}
