//! The users of a cluster, as the command line prints and changes them.

use capstan_meta::Store;
use serde::Serialize;

use crate::acl::{Rules, SelectorText};
use crate::broker;
use crate::decide::UserChange;
use crate::error::BrokerError;
use crate::facts::{self, Tree};
use crate::keys::{ClusterName, ConfigKey};
use crate::spec::User;

/// Digits of a password's hash that are shown: enough to tell two passwords apart, and of no use to guess one.
const SHOWN_DIGITS: usize = 8;

/// One user. Hashes of passwords are shortened.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct UserPage {
    /// The name.
    pub name: String,
    /// Whether it may authenticate.
    pub on: bool,
    /// Whether any password is valid.
    pub nopass: bool,
    /// The first digits of the SHA-256 of each password.
    pub passwords: Vec<String>,
    /// Rules about commands.
    pub commands: String,
    /// Patterns of keys.
    pub keys: String,
    /// Patterns of channels.
    pub channels: String,
    /// Further selectors, in parentheses.
    pub selectors: Vec<String>,
}

impl UserPage {
    /// What is shown of a user's rules.
    #[must_use]
    pub fn of(name: &str, rules: &Rules) -> UserPage {
        let SelectorText { commands, keys, channels } = rules.root();
        let short = |hash: String| hash.chars().take(SHOWN_DIGITS).collect();
        let selector = |text: SelectorText| {
            let parts = [text.keys, text.channels, text.commands];
            let parts: Vec<String> = parts.into_iter().filter(|part| !part.is_empty()).collect();
            format!("({})", parts.join(" "))
        };
        UserPage {
            name: name.to_owned(),
            on: rules.is_on(),
            nopass: rules.needs_no_password(),
            passwords: rules.passwords().iter().map(ToString::to_string).map(short).collect(),
            commands,
            keys,
            channels,
            selectors: rules.selectors().map(selector).collect(),
        }
    }
}

/// The users of a cluster, by name; none: every client may connect.
pub async fn users(store: &Store, name: &ClusterName) -> Result<Vec<UserPage>, BrokerError> {
    let tree = Tree::read(store).await?;
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    let key = ConfigKey { cluster: name.clone() };
    if facts::is_bad(&tree, &key) {
        return Err(BrokerError::Invalid(format!(
            "the configuration of cluster {name} cannot be read, so no client is admitted; `capstan redis check` shows \
             what is wrong with it"
        )));
    }
    let users =
        cluster.config.as_ref().map(|config| config.record.serving.users.as_slice()).unwrap_or_default();
    let page = |user: &User| {
        let rules = user.rules().map_err(|invalid| BrokerError::Invalid(invalid.to_string()))?;
        Ok(UserPage::of(&user.name, &rules))
    };
    let mut pages: Vec<UserPage> = users.iter().map(page).collect::<Result<_, BrokerError>>()?;
    pages.sort_by(|one, other| one.name.cmp(&other.name));
    Ok(pages)
}

/// One user of a cluster.
pub async fn user(store: &Store, name: &ClusterName, user: &str) -> Result<UserPage, BrokerError> {
    let found = users(store, name).await?.into_iter().find(|page| page.name == user);
    found.ok_or_else(|| BrokerError::NoUser { cluster: name.clone(), user: user.to_owned() })
}

/// Applies ACL rules to a user.
pub async fn user_set(
    store: &Store,
    name: &ClusterName,
    user: &str,
    rules: &str,
) -> Result<UserChange, BrokerError> {
    broker::change_user(store, name, user, rules).await
}

/// Deletes a user; its clients are disconnected.
pub async fn user_delete(store: &Store, name: &ClusterName, user: &str) -> Result<(), BrokerError> {
    broker::delete_user(store, name, user).await
}
