//! Users of a cluster: how are their rules changed? In the cluster's configuration, with a push to all its proxies.

use capstan_meta::record::Key;

use super::draft::Draft;
use super::hosts::Change;
use crate::acl::Rules;
use crate::error::BrokerError;
use crate::facts::{ClusterTree, Tree, is_bad};
use crate::keys::*;
use crate::spec::{ClusterConfig, MAX_USER_NAME, MAX_USERS, User};

/// Hosts that are bumped with the change itself, so that their proxies get it at once; the task bumps the others.
const HOSTS_AT_ONCE: usize = 50;

/// The user of connections without `AUTH`.
pub(crate) const DEFAULT_USER: &str = "default";
/// The user of coordinators and other proxies.
const ADMIN: &str = "admin";

/// The result of a change of a user's rules.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UserChange {
    /// Whether something changed.
    pub change: Change,
    /// The rules now.
    pub rules: Rules,
    /// Whether clients may connect without `AUTH`.
    pub is_open: bool,
}

pub(crate) fn changed(change: Change, users: &[User], user: &str) -> Result<UserChange, BrokerError> {
    let found = users.iter().find(|known| known.name == user);
    let rules = found.map_or_else(|| Ok(Rules::new()), User::rules).map_err(invalid)?;
    Ok(UserChange { change, rules, is_open: is_open(users)? })
}

fn invalid(error: crate::acl::InvalidRule) -> BrokerError {
    BrokerError::Invalid(error.to_string())
}

/// Names are words of the protocol: `AUTH cluster/user password`.
pub(crate) fn check_name(user: &str) -> Result<(), BrokerError> {
    let sound = |c: char| !c.is_whitespace() && !c.is_control() && c != '/';
    if user.is_empty() || user.len() > MAX_USER_NAME || !user.chars().all(sound) {
        return Err(BrokerError::Invalid(format!(
            "{user:?} cannot name a user: use at most {MAX_USER_NAME} characters without spaces and slashes"
        )));
    }
    if user == ADMIN {
        let text = "user admin is reserved for coordinators and proxies; choose another name";
        return Err(BrokerError::Invalid(text.to_owned()));
    }
    Ok(())
}

/// The configuration of a cluster. One that cannot be read is not replaced: it admits no client, and nothing is known
/// about its users.
pub(crate) fn configured<'t>(
    tree: &'t Tree,
    name: &ClusterName,
) -> Result<(&'t ClusterTree, &'t ClusterConfig), BrokerError> {
    let cluster = tree.cluster(name).ok_or_else(|| BrokerError::NoCluster(name.clone()))?;
    match &cluster.config {
        Some(config) => Ok((cluster, &config.record)),
        None if is_bad(tree, &ConfigKey { cluster: name.clone() }) => Err(BrokerError::Invalid(format!(
            "the configuration of cluster {name} cannot be read; `capstan redis check` shows what is wrong with it"
        ))),
        None => Err(BrokerError::Invalid(format!(
            "cluster {name} has no configuration; `capstan redis fix` writes one"
        ))),
    }
}

/// Whether clients may connect without `AUTH`.
pub(crate) fn admits_anyone(users: &[User]) -> bool {
    // Rules that cannot be read admit no client.
    is_open(users).unwrap_or(false)
}

fn is_open(users: &[User]) -> Result<bool, BrokerError> {
    let Some(default) = users.iter().find(|user| user.name == DEFAULT_USER) else {
        return Ok(users.is_empty());
    };
    let rules = default.rules().map_err(invalid)?;
    Ok(rules.is_on() && rules.needs_no_password())
}

/// The users after a change of one of them. Pure.
pub(crate) fn with_rules(users: &[User], user: &str, rules: &str) -> Result<Vec<User>, BrokerError> {
    let mut after = users.to_vec();
    if after.is_empty() {
        after.push(User::ruled(DEFAULT_USER, Rules::clone(&Rules::everything())));
    }
    let at = after.iter().position(|known| known.name == user);
    let mut changed = at.map_or_else(|| Ok(Rules::new()), |at| after[at].rules()).map_err(invalid)?;
    let before = at.map(|_| changed.clone());
    changed.apply(rules).map_err(invalid)?;
    match at {
        // Rules that change nothing leave the record as it is, in whichever form it has.
        Some(_) if before.as_ref() == Some(&changed) => return Ok(users.to_vec()),
        Some(at) => after[at] = User::ruled(user, changed),
        None => after.push(User::ruled(user, changed)),
    }
    if after.len() > MAX_USERS {
        return Err(BrokerError::Invalid(format!(
            "a cluster has at most {MAX_USERS} users; delete some first"
        )));
    }
    Ok(after)
}

/// The users without one of them. Pure.
pub(crate) fn without(name: &ClusterName, users: &[User], user: &str) -> Result<Vec<User>, BrokerError> {
    let after: Vec<User> = users.iter().filter(|known| known.name != user).cloned().collect();
    let refused = match (user, after.is_empty()) {
        // Without users every client may connect, as with this one.
        (DEFAULT_USER, true) if is_open(users)? => return Ok(after),
        (_, true) => format!(
            "user {user} is the last one of cluster {name}: without users every client may connect. To allow that, \
             `capstan redis user set {name} default on nopass allkeys allchannels allcommands` first"
        ),
        (DEFAULT_USER, false) => format!(
            "user default cannot be deleted; `capstan redis user set {name} default off` requires AUTH of every client"
        ),
        (_, false) => return Ok(after),
    };
    Err(BrokerError::Invalid(refused))
}

pub(crate) fn plan_users(
    tree: &Tree,
    name: &ClusterName,
    cluster: &ClusterTree,
    config: &ClusterConfig,
    users: Vec<User>,
    now: u64,
) -> Draft {
    let mut after = config.clone();
    after.serving.users = users;
    let key = ConfigKey { cluster: name.clone() };
    let mut draft = Draft::new(format!("change the users of cluster {name}"));
    draft
        .bump_cluster(name, cluster, now)
        .guard(key.as_seen(cluster.config.as_deref()))
        .then(key.put(&after));
    for proxy in cluster.proxies().into_iter().take(HOSTS_AT_ONCE) {
        draft.bump_host(tree, proxy);
    }
    draft
}
