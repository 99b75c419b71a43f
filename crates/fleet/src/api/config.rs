//! What can be configured, how is it written, and what is refused?

use std::fmt;
use std::str::FromStr;

use capstan_meta::Put;
use capstan_meta::record::{Key, RecordError};
use serde::Serialize;

use super::Fleet;
use crate::encoding::{Nanos, Span, parse_go_duration};
use crate::error::FleetError;
use crate::facts::Settings;
use crate::keys::{GroupName, Tree};
use crate::spec::Policy;

/// A setting.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum ConfigKey {
    /// Where events are told.
    Slack,
    /// Through what the outside is reached.
    Proxy,
    /// How often the source is asked for a newer release.
    CheckUpdateInterval,
    /// How long workers may take.
    WorkerTimeout,
    /// Where releases are found.
    Source,
    /// Whether a newer release is applied without an operator's word.
    AutoUpdate,
}

/// A setting and its value.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct ConfigLine {
    /// Which one.
    pub key: ConfigKey,
    /// Its value as a person writes it, without secrets; nothing if it is not set and has no default.
    pub value: Option<String>,
    /// Whether an operator set it.
    pub set: bool,
}

impl ConfigKey {
    /// All settings, in the order of the document.
    pub const ALL: [ConfigKey; 6] = [
        ConfigKey::Slack,
        ConfigKey::Proxy,
        ConfigKey::CheckUpdateInterval,
        ConfigKey::WorkerTimeout,
        ConfigKey::Source,
        ConfigKey::AutoUpdate,
    ];

    /// Its name on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            ConfigKey::Slack => "slack",
            ConfigKey::Proxy => "proxy",
            ConfigKey::CheckUpdateInterval => "check-update-interval",
            ConfigKey::WorkerTimeout => "worker-timeout",
            ConfigKey::Source => "source",
            ConfigKey::AutoUpdate => "auto-update",
        }
    }

    /// The write of a value, if it can be one.
    pub(super) fn put(self, tree: &Tree, text: &str) -> Result<Put, FleetError> {
        match self {
            ConfigKey::Slack => absolute_url(text).map(|url| tree.slack().put(&url)),
            ConfigKey::Proxy => absolute_url(text).map(|url| tree.proxy().put(&url)),
            ConfigKey::CheckUpdateInterval => span(text).map(|nanos| tree.check_interval().put(&nanos)),
            ConfigKey::WorkerTimeout => span(text).map(|nanos| tree.worker_timeout().put(&nanos)),
            ConfigKey::Source => match text.trim() {
                "" => Err(FleetError::Invalid("a source is a directory or a base URL".to_owned())),
                source => Ok(tree.source().put(&source.to_owned())),
            },
            ConfigKey::AutoUpdate => match text {
                "true" | "false" => Ok(tree.auto_update().put(&text.to_owned())),
                other => Err(FleetError::Invalid(format!("{other:?} is neither true nor false"))),
            },
        }
    }

    fn value(self, settings: &Settings) -> Option<String> {
        match self {
            // A webhook address is a credential, and so are the user and password of a proxy.
            ConfigKey::Slack => settings.slack.as_deref().map(without_path),
            ConfigKey::Proxy => settings.proxy.as_deref().map(without_user),
            ConfigKey::CheckUpdateInterval => Some(Span(settings.check_interval).to_string()),
            ConfigKey::WorkerTimeout => Some(Span(settings.worker_timeout).to_string()),
            ConfigKey::Source => settings.source.clone(),
            ConfigKey::AutoUpdate => Some(settings.auto_update.to_string()),
        }
    }
}

impl fmt::Display for ConfigKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for ConfigKey {
    type Err = FleetError;

    fn from_str(text: &str) -> Result<ConfigKey, FleetError> {
        let known = ConfigKey::ALL.into_iter().find(|key| key.name() == text);
        known.ok_or_else(|| {
            let names: Vec<&str> = ConfigKey::ALL.into_iter().map(ConfigKey::name).collect();
            FleetError::Invalid(format!("{text:?} is not a setting; there are {}", names.join(", ")))
        })
    }
}

/// What stands in place of a secret.
const REDACTED: &str = "<redacted>";

/// A URL without the user and the password in it.
fn without_user(url: &str) -> String {
    let Some((scheme, rest)) = url.split_once("://") else { return REDACTED.to_owned() };
    let end = rest.find(['/', '?', '#']).unwrap_or(rest.len());
    match rest[..end].rfind('@') {
        Some(at) => format!("{scheme}://{REDACTED}@{}", &rest[at + 1..]),
        None => url.to_owned(),
    }
}

/// A URL up to its path: the rest of a webhook is its password.
fn without_path(url: &str) -> String {
    let shown = without_user(url);
    let Some((scheme, rest)) = shown.split_once("://") else { return REDACTED.to_owned() };
    match rest.find(['/', '?', '#']) {
        Some(end) => format!("{scheme}://{}/{REDACTED}", &rest[..end]),
        None => shown,
    }
}

fn absolute_url(text: &str) -> Result<String, FleetError> {
    let host = text.strip_prefix("https://").or_else(|| text.strip_prefix("http://"));
    let named = host.is_some_and(|rest| !rest.split(['/', '?', '#']).next().unwrap_or("").is_empty());
    match named && !text.contains(char::is_whitespace) {
        true => Ok(text.to_owned()),
        false => Err(FleetError::Invalid(format!("{text:?} is not an absolute URL: http:// or https://"))),
    }
}

fn span(text: &str) -> Result<Nanos, FleetError> {
    let duration = parse_go_duration(text).map_err(|error| FleetError::Invalid(error.to_string()))?;
    let nanos = Nanos::of(duration);
    match nanos.positive() {
        Some(_) => Ok(nanos),
        None => Err(FleetError::Invalid(format!("{text:?} is not more than nothing"))),
    }
}

impl Fleet {
    /// A setting as it is: what an operator set, or the default.
    pub async fn config_get(&self, key: ConfigKey) -> Result<ConfigLine, FleetError> {
        let settings = self.facts().await?.settings;
        let set = self.is_set(key).await?;
        Ok(ConfigLine { key, value: key.value(&settings), set })
    }

    /// All settings.
    pub async fn config(&self) -> Result<Vec<ConfigLine>, FleetError> {
        let settings = self.facts().await?.settings;
        let mut lines = Vec::new();
        for key in ConfigKey::ALL {
            lines.push(ConfigLine { key, value: key.value(&settings), set: self.is_set(key).await? });
        }
        Ok(lines)
    }

    /// Changes a setting. It applies at once; nothing is restarted or aborted.
    pub async fn config_set(&self, key: ConfigKey, value: &str) -> Result<(), FleetError> {
        self.store.put(key.put(&self.tree, value)?).await?;
        Ok(())
    }

    /// Forgets a setting: the default holds again.
    pub async fn config_unset(&self, key: ConfigKey) -> Result<(), FleetError> {
        let tree = &self.tree;
        let delete = match key {
            ConfigKey::Slack => tree.slack().delete(),
            ConfigKey::Proxy => tree.proxy().delete(),
            ConfigKey::CheckUpdateInterval => tree.check_interval().delete(),
            ConfigKey::WorkerTimeout => {
                self.store.delete(tree.short_worker_timeout().delete()).await?;
                tree.worker_timeout().delete()
            }
            ConfigKey::Source => tree.source().delete(),
            ConfigKey::AutoUpdate => tree.auto_update().delete(),
        };
        self.store.delete(delete).await?;
        Ok(())
    }

    async fn is_set(&self, key: ConfigKey) -> Result<bool, FleetError> {
        let tree = &self.tree;
        let found = match key {
            ConfigKey::Slack => self.store.get(tree.slack().bytes()).await?,
            ConfigKey::Proxy => self.store.get(tree.proxy().bytes()).await?,
            ConfigKey::CheckUpdateInterval => self.store.get(tree.check_interval().bytes()).await?,
            ConfigKey::WorkerTimeout => match self.store.get(tree.worker_timeout().bytes()).await? {
                Some(found) => Some(found),
                None => self.store.get(tree.short_worker_timeout().bytes()).await?,
            },
            ConfigKey::Source => self.store.get(tree.source().bytes()).await?,
            ConfigKey::AutoUpdate => self.store.get(tree.auto_update().bytes()).await?,
        };
        Ok(found.is_some())
    }

    /// The rules of a group, if it has its own; else the default ones hold.
    pub async fn own_policy(&self, group: &GroupName) -> Result<Option<Policy>, FleetError> {
        let found = self.store.read(&self.tree.policy(group.clone())).await?;
        Ok(found.map(|seen| seen.record))
    }

    /// The rules of every group that has its own, by name.
    pub async fn policies(&self) -> Result<Vec<(GroupName, Policy)>, FleetError> {
        let listing = self.store.list(&self.tree.policies()).await?;
        if let Some(bad) = listing.bad.into_iter().next() {
            return Err(RecordError::BadValue(bad).into());
        }
        Ok(listing.entries.into_iter().map(|(key, seen)| (key.group, seen.record.clone())).collect())
    }

    /// Checks rules and writes them; they apply at once, also to a rollout under way, except for its waves, which
    /// were settled when it began.
    pub async fn policy_set(&self, group: &GroupName, policy: &Policy) -> Result<(), FleetError> {
        self.policy_check(group, policy)?;
        self.store.put(self.tree.policy(group.clone()).put(policy)).await?;
        Ok(())
    }

    /// Whether rules make sense.
    pub fn policy_check(&self, group: &GroupName, policy: &Policy) -> Result<(), FleetError> {
        policy.check().map_err(|error| FleetError::Policy { group: group.to_string(), error })
    }

    /// Forgets the rules of a group: its hosts are those of others from the next request on.
    pub async fn policy_remove(&self, group: &GroupName) -> Result<(), FleetError> {
        match self.store.delete(self.tree.policy(group.clone()).delete()).await?.deleted {
            0 => Err(FleetError::NotFound(format!("policy of group {group}"))),
            _ => Ok(()),
        }
    }
}
