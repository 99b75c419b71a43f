//! `capstan brokers`: lists, unloads and activates brokers of topics.

use anyhow::{Result, bail};
use capstan_client::wire::danube_admin::broker_admin_client::BrokerAdminClient;
use capstan_client::wire::danube_admin::{ActivateBrokerRequest, Empty, UnloadBrokerRequest};

use super::topics::{channel, done, refused};
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum BrokersCommand {
    /// List the brokers that are up
    List,
    /// Move all topics of a broker to other brokers; it gets no new ones
    Unload {
        /// The number of the broker
        broker: u64,
    },
    /// Let a broker serve topics again
    Activate {
        /// The number of the broker
        broker: u64,
    },
}

impl BrokersCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            BrokersCommand::Unload { broker } => {
                Some(OperatorAction::new("asked to unload", format!("broker {broker}")))
            }
            BrokersCommand::Activate { broker } => {
                Some(OperatorAction::new("activated", format!("broker {broker}")))
            }
            BrokersCommand::List => None,
        }
    }
}

pub(crate) async fn run(command: BrokersCommand, context: &mut Context) -> Result<Exit> {
    let mut admin = BrokerAdminClient::new(channel(context).await?);
    match command {
        BrokersCommand::List => {
            let brokers = admin.list_brokers(Empty {}).await.map_err(refused)?.into_inner().brokers;
            match context.out.format {
                Format::Json => {
                    let lines: Vec<_> = brokers
                        .iter()
                        .map(|broker| {
                            serde_json::json!({
                                "broker": broker.broker_id, "address": broker.broker_addr,
                                "role": broker.broker_role, "state": broker.broker_status,
                            })
                        })
                        .collect();
                    context.out.json_list("brokers", &lines)?;
                }
                Format::Table => {
                    let rows = brokers.into_iter().map(|broker| {
                        let role = if broker.broker_role == "Cluster_Leader" { "leader" } else { "follower" };
                        [broker.broker_id, broker.broker_addr, role.to_owned(), broker.broker_status]
                    });
                    context.out.table(["BROKER", "ADDRESS", "ROLE", "STATE"], rows.collect())?;
                }
            }
            Ok(Exit::Done)
        }
        BrokersCommand::Unload { broker } => {
            let request =
                UnloadBrokerRequest { broker_id: broker.to_string(), ..UnloadBrokerRequest::default() };
            let reply = admin.unload_broker(request).await.map_err(refused)?.into_inner();
            if reply.failed > 0 {
                bail!(
                    "{} of {} topics could not be moved: {}",
                    reply.failed,
                    reply.total,
                    reply.failed_topics.join(", ")
                );
            }
            done(context, &format!("unloaded {} topics of broker {broker}", reply.total))
        }
        BrokersCommand::Activate { broker } => {
            let request = ActivateBrokerRequest { broker_id: broker.to_string(), reason: String::new() };
            admin.activate_broker(request).await.map_err(refused)?;
            done(context, &format!("broker {broker} serves topics again"))
        }
    }
}
