//! Operator decisions for a shard that is down: continue without its data, or restore data that was set aside.

use anyhow::Result;
use capstan_redis::{Address, ClusterName, api};

use super::clusters::done;
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "The shard goes on with the replica that is named, else with one that may lack the last writes, else \
    empty. The data of the\nprimary that leaves is set aside on its host for seven days; `capstan redis recover` brings it back."
)]
pub(crate) struct AcceptLossArgs {
    /// The cluster
    name: ClusterName,
    /// The primary of a shard that is down, as `capstan redis show` prints it
    primary: Address,
    /// The replica to promote; by default one that is in sync
    #[arg(long, value_name = "NODE")]
    with: Option<Address>,
}

impl AcceptLossArgs {
    pub(super) fn action(&self) -> OperatorAction {
        let action = format!("accepted the loss of data of {} in", self.primary);
        OperatorAction::new(action, format!("redis cluster {}", self.name))
    }
}

pub(super) async fn accept_loss(args: AcceptLossArgs, context: &mut Context) -> Result<Exit> {
    let AcceptLossArgs { name, primary, with } = args;
    let store = context.store().await?;
    let next = api::accept_loss(&store, &name, &primary, with.as_ref()).await?;
    let text = match next {
        Some(node) if node == primary => format!("cluster {name}: {primary} continues with the data it has"),
        Some(node) => format!(
            "cluster {name}: {node} leads in place of {primary}; `capstan redis recover {name} {node} --from {primary}` \
             brings the old data back"
        ),
        None => format!("cluster {name}: the slots of {primary} get an owner as soon as a node is free"),
    };
    done(context, &store, &name, "accepted", &text).await
}

#[derive(Debug, clap::Args)]
pub(crate) struct RecoverArgs {
    /// The cluster
    name: ClusterName,
    /// The present primary of the shard, which is replaced
    primary: Address,
    /// The node that had the shard before: its host set the data aside
    #[arg(long, value_name = "NODE")]
    from: Address,
}

impl RecoverArgs {
    pub(super) fn action(&self) -> OperatorAction {
        let action = format!("asked to recover the data of {} in", self.from);
        OperatorAction::new(action, format!("redis cluster {}", self.name))
    }
}

pub(super) async fn recover(args: RecoverArgs, context: &mut Context) -> Result<Exit> {
    let RecoverArgs { name, primary, from } = args;
    let store = context.store().await?;
    let place = api::recover(&store, &name, &primary, &from).await?;
    let text = format!("cluster {name}: {place} restores its data and becomes primary in place of {primary}");
    done(context, &store, &name, "recovering", &text).await
}
