//! `capstan namespaces`: namespaces of topics and what they allow.

use anyhow::{Result, bail};
use capstan_topics::commit;
use capstan_topics::keys::{Namespace, Policies};
use capstan_topics::spec::{NamespacePolicy, StoragePolicy};

use super::topics::done;
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum NamespacesCommand {
    /// List the namespaces with their policies
    List,
    /// Create a namespace
    Create {
        /// Its name
        namespace: Namespace,
    },
    /// Delete a namespace that has no topics
    Delete {
        /// Its name
        namespace: Namespace,
    },
    /// Set the limits of a namespace; 0: no limit
    Set {
        /// Its name
        namespace: Namespace,
        /// Limits, such as max_message_size=1048576 or forbid_auto_create=1; may be several
        #[arg(value_name = "LIMIT=NUMBER", required = true)]
        limits: Vec<String>,
    },
}

impl NamespacesCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let of = |action: &str, namespace: &Namespace| {
            OperatorAction::new(action, format!("namespace {namespace}"))
        };
        match self {
            NamespacesCommand::Create { namespace } => Some(of("created", namespace)),
            NamespacesCommand::Delete { namespace } => Some(of("deleted", namespace)),
            NamespacesCommand::Set { namespace, limits } => {
                Some(of("set limits of", namespace).because(&limits.join(" ")))
            }
            NamespacesCommand::List => None,
        }
    }
}

pub(crate) async fn run(command: NamespacesCommand, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    match command {
        NamespacesCommand::List => {
            let policies = store.list(&Policies {}).await?;
            match context.out.format {
                Format::Json => {
                    let shown: serde_json::Map<_, _> = policies
                        .iter()
                        .map(|(key, policy)| {
                            Ok((key.namespace.to_string(), serde_json::to_value(&policy.record)?))
                        })
                        .collect::<Result<_>>()?;
                    context.out.json_list("namespaces", &shown)?;
                }
                Format::Table => {
                    let rows = policies
                        .iter()
                        .map(|(key, policy)| [key.namespace.to_string(), limits(&policy.record)]);
                    context.out.table(["NAMESPACE", "LIMITS"], rows.collect())?;
                }
            }
            Ok(Exit::Done)
        }
        NamespacesCommand::Create { namespace } => {
            commit::create_namespace(&store, &namespace, &NamespacePolicy::default()).await?;
            done(context, &format!("created namespace {namespace}"))
        }
        NamespacesCommand::Delete { namespace } => {
            commit::delete_namespace(&store, &namespace).await?;
            done(context, &format!("deleted namespace {namespace}"))
        }
        NamespacesCommand::Set { namespace, limits } => {
            let wanted = parse(&limits)?;
            commit::set_policy(&store, &namespace, |policy| changed(policy, &wanted)).await?;
            done(context, &format!("set the policy of namespace {namespace}"))
        }
    }
}

fn limits(policy: &NamespacePolicy) -> String {
    let Ok(serde_json::Value::Object(fields)) = serde_json::to_value(policy) else { return String::new() };
    let set = fields.into_iter().filter(|(_, value)| value.as_u64() != Some(0));
    set.map(|(name, value)| format!("{name}={value}")).collect::<Vec<_>>().join(" ")
}

/// The limits that can be set.
const LIMITS: [&str; 8] = [
    "forbid_auto_create",
    "max_consumers_per_subscription",
    "max_consumers_per_topic",
    "max_message_size",
    "max_producers_per_topic",
    "max_publish_rate",
    "max_subscription_dispatch_rate",
    "max_subscriptions_per_topic",
];

fn parse(limits: &[String]) -> Result<Vec<(String, u64)>> {
    let mut parsed = Vec::new();
    let known = |name: &str| LIMITS.contains(&name) || StoragePolicy::LIMITS.contains(&name);
    for limit in limits {
        match limit.split_once('=').map(|(name, number)| (name, number.parse::<u64>())) {
            Some((name, Ok(number))) if known(name) => parsed.push((name.to_owned(), number)),
            _ => {
                let names: Vec<&str> = LIMITS.into_iter().chain(StoragePolicy::LIMITS).collect();
                bail!("{limit:?} is not a limit: write LIMIT=NUMBER with one of {}", names.join(", "))
            }
        }
    }
    Ok(parsed)
}

fn changed(policy: &NamespacePolicy, wanted: &[(String, u64)]) -> NamespacePolicy {
    let Ok(mut fields) = serde_json::to_value(policy) else { return policy.clone() };
    for (name, number) in wanted {
        fields[name.as_str()] = (*number).into();
    }
    serde_json::from_value(fields).unwrap_or_else(|_| policy.clone())
}
