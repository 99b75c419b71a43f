//! `capstan fleet policy` and `capstan fleet config`: by which rules, and with which settings.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context as _, Result, bail};
use capstan_fleet::api::{ConfigKey, ConfigLine};
use capstan_fleet::keys::{GroupName, default_group};
use capstan_fleet::spec::Policy;
use clap::Subcommand;

use super::fleet;
use super::members::or_dash;
use super::reply::Reply;
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// A policy is a page of JSON; what is longer is another file.
const MAX_POLICY_BYTES: u64 = 64 * 1024;

#[derive(Debug, Subcommand)]
pub(crate) enum PolicyCommand {
    /// Print the policy of a group as JSON
    Get {
        /// The group; by default the hosts that no other group takes
        group: Option<String>,
        /// All groups that have their own policy
        #[arg(long, conflicts_with = "group")]
        all: bool,
    },
    /// Check a policy and write it
    Set {
        /// The group
        group: String,
        /// A file with JSON, or - for stdin; missing fields have their defaults
        file: String,
    },
    /// Check a policy without writing it
    Check {
        /// A file with JSON, or - for stdin
        file: String,
    },
    /// Remove the policy of a group
    Remove {
        /// The group
        group: String,
    },
}

#[derive(Debug, Subcommand)]
pub(crate) enum ConfigCommand {
    /// Print one setting, or all
    Get {
        /// The setting
        key: Option<String>,
    },
    /// Change a setting; it applies at once
    Set {
        /// The setting
        key: String,
        /// Its value
        value: String,
    },
    /// Reset a setting to its default
    Unset {
        /// The setting
        key: String,
    },
}

impl PolicyCommand {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            PolicyCommand::Set { group, .. } => {
                Some(OperatorAction::new("set", format!("fleet policy of group {group}")))
            }
            PolicyCommand::Remove { group } => {
                Some(OperatorAction::new("removed", format!("fleet policy of group {group}")))
            }
            PolicyCommand::Get { .. } | PolicyCommand::Check { .. } => None,
        }
    }
}

impl ConfigCommand {
    /// Without the value: some settings are secrets.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            ConfigCommand::Set { key, .. } => {
                Some(OperatorAction::new("set", format!("fleet setting {key}")))
            }
            ConfigCommand::Unset { key } => {
                Some(OperatorAction::new("reset", format!("fleet setting {key}")))
            }
            ConfigCommand::Get { .. } => None,
        }
    }
}

pub(super) async fn policy(command: PolicyCommand, context: &mut Context) -> Result<Exit> {
    match command {
        PolicyCommand::Get { all: true, .. } => {
            let policies = fleet(context).await?.policies().await?;
            let policies: std::collections::BTreeMap<String, Policy> =
                policies.into_iter().map(|(group, policy)| (group.to_string(), policy)).collect();
            context.out.json_list("policies", &policies)?;
        }
        PolicyCommand::Get { group, all: false } => {
            let group = group.map_or_else(|| Ok(default_group()), |name| GroupName::new(&name))?;
            let own = fleet(context).await?.own_policy(&group).await?;
            let is_own = own.is_some();
            // Always JSON: the output can be edited and set again.
            context.out.json(&own.unwrap_or_default())?;
            if !is_own {
                say(format!("Group {group} has no policy of its own; these are the defaults."));
            }
        }
        PolicyCommand::Set { group, file } => {
            let (group, policy) = (GroupName::new(&group)?, read(&file)?);
            fleet(context).await?.policy_set(&group, &policy).await?;
            return Reply::new("policy set", &group, format!("group {group} uses this policy from now on"))
                .give(context);
        }
        PolicyCommand::Check { file } => {
            let policy = read(&file)?;
            policy.check().with_context(|| format!("the policy in {file} is not valid"))?;
            return Reply::new("policy check", file, "the policy is valid").give(context);
        }
        PolicyCommand::Remove { group } => {
            let group = GroupName::new(&group)?;
            fleet(context).await?.policy_remove(&group).await?;
            return Reply::new("policy remove", &group, format!("removed the policy of group {group}"))
                .give(context);
        }
    }
    Ok(Exit::Done)
}

/// Reads a policy from a file. Unknown fields are rejected here, although records of other versions may have more.
fn read(file: &str) -> Result<Policy> {
    let mut text = String::new();
    let unreadable = || format!("cannot read the policy {file}");
    match file {
        "-" => std::io::stdin().take(MAX_POLICY_BYTES).read_to_string(&mut text),
        path => std::fs::File::open(Path::new(path))
            .with_context(unreadable)?
            .take(MAX_POLICY_BYTES)
            .read_to_string(&mut text),
    }
    .with_context(unreadable)?;
    let policy: Policy = serde_json::from_str(&text).with_context(|| format!("{file} is not a policy"))?;
    if let Some((field, _)) = policy.extra.iter().next() {
        bail!(
            "{file}: a policy has no field {field:?}; `capstan fleet policy get` prints one with all fields"
        );
    }
    Ok(policy)
}

pub(super) async fn config(command: ConfigCommand, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    match command {
        ConfigCommand::Get { key: None } => {
            let lines = fleet.config().await?;
            show(&lines, context)
        }
        ConfigCommand::Get { key: Some(key) } => {
            let line = fleet.config_get(key.parse()?).await?;
            match (context.out.format, &line.value) {
                (Format::Json, _) => context.out.json(&line)?,
                (Format::Table, Some(value)) => context.out.line(value)?,
                (Format::Table, None) => {
                    say(format!("capstan: {key} is not set"));
                    return Ok(Exit::Failed);
                }
            }
            Ok(Exit::Done)
        }
        ConfigCommand::Set { key, value } => {
            let setting = key.parse()?;
            fleet.config_set(setting, &value).await?;
            let shown = fleet.config_get(setting).await?.value.unwrap_or_default();
            Reply::new("config set", &key, format!("{key} is {shown} from now on")).give(context)
        }
        ConfigCommand::Unset { key } => {
            fleet.config_unset(key.parse()?).await?;
            Reply::new("config unset", &key, format!("reset {key} to its default")).give(context)
        }
    }
}

fn show(lines: &[ConfigLine], context: &mut Context) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json_list("settings", &lines)?,
        Format::Table => {
            let rows = lines.iter().map(|ConfigLine { key, value, set }| {
                let origin = if *set { "set" } else { "default" };
                [
                    ConfigKey::name(*key).to_owned(),
                    or_dash(value.clone().unwrap_or_default()),
                    origin.to_owned(),
                ]
            });
            context.out.table(["SETTING", "VALUE", "ORIGIN"], rows.collect())?;
        }
    }
    Ok(Exit::Done)
}
