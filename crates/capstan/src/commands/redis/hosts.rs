//! The pool: hosts that offer nodes to clusters.

use anyhow::Result;
use capstan_redis::Address;
use capstan_redis::api::{self, HostLine, HostNode};
use capstan_redis::decide::Change;
use serde::Serialize;

use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum HostsCommand {
    /// Offer the nodes behind a proxy to clusters
    Add {
        /// The address of the proxy
        proxy: Address,
        /// The addresses of its nodes
        #[arg(required = true)]
        nodes: Vec<Address>,
    },
    /// Remove a host without nodes in use from the pool
    Remove {
        /// The address of the proxy
        proxy: Address,
    },
    /// List hosts and the users of their nodes
    List,
}

impl HostsCommand {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            HostsCommand::Add { proxy, .. } => {
                Some(OperatorAction::new("added", format!("redis host {proxy}")))
            }
            HostsCommand::Remove { proxy } => {
                Some(OperatorAction::new("removed", format!("redis host {proxy}")))
            }
            HostsCommand::List => None,
        }
    }
}

#[derive(Serialize)]
struct Done<'a> {
    proxy: &'a Address,
    change: &'static str,
}

pub(super) async fn run(command: HostsCommand, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    match command {
        HostsCommand::Add { proxy, nodes } => {
            let change = api::hosts_add(&store, &proxy, &nodes).await?;
            done(context, &proxy, change, "is in the pool", "was in the pool already")
        }
        HostsCommand::Remove { proxy } => {
            let change = api::hosts_remove(&store, &proxy).await?;
            done(context, &proxy, change, "has left the pool", "was not in the pool")
        }
        HostsCommand::List => list(&api::hosts_list(&store).await?, context),
    }
}

fn done(context: &mut Context, proxy: &Address, change: Change, made: &str, already: &str) -> Result<Exit> {
    let (word, text) = match change {
        Change::Made => ("made", made),
        Change::Already => ("already", already),
    };
    match context.out.format {
        Format::Json => context.out.json(&Done { proxy, change: word })?,
        Format::Table => context.out.line(format!("host {proxy} {text}"))?,
    }
    Ok(Exit::Done)
}

fn list(hosts: &[HostLine], context: &mut Context) -> Result<Exit> {
    if context.out.format == Format::Json {
        context.out.json_list("hosts", &hosts)?;
        return Ok(Exit::Done);
    }
    let rows = hosts.iter().flat_map(|host| host.nodes.iter().map(move |node| row(host, node)));
    context.out.table(["PROXY", "STATE", "EPOCH", "NODE", "USED BY"], rows.collect())?;
    Ok(Exit::Done)
}

fn row(host: &HostLine, node: &HostNode) -> [String; 5] {
    let state = match (host.reported_by.len(), host.draining) {
        (0, false) => "up".to_owned(),
        (0, true) => "draining".to_owned(),
        (reports, _) => format!("not reached by {reports}"),
    };
    let used = match (&node.cluster, &node.quarantine) {
        (Some(cluster), _) => cluster.to_string(),
        (None, Some(why)) => format!("none, until it is empty: {why}"),
        (None, None) => "none".to_owned(),
    };
    [host.proxy.to_string(), state, host.epoch.to_string(), node.node.to_string(), used]
}
