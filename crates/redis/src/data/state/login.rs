//! Which database does a connection use, and what may it do there?
//!
//! A user belongs to a database. `AUTH` takes `database/user`, a user's name where only one database has it, or the name
//! of a database, which is its `default` user. With one database and no users, nobody needs to say anything; with several,
//! those who say nothing use the one that is set to be the default.

use std::sync::Arc;

use super::routing::Database;
use crate::keys::ClusterName;
use crate::nmctl::{Rights, User};

/// The user that a connection is which has not said who it is.
const DEFAULT: &str = "default";

/// Who a connection is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The database that it uses.
    pub database: ClusterName,
    /// The name of the user, as `ACL WHOAMI` says it.
    pub user: String,
    /// What it may do.
    pub rights: Rights,
}

/// What a connection may do that has said nothing yet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// It uses the only database there is, or the default one.
    Open(Login),
    /// It has to authenticate, as that database has users.
    Authenticate,
    /// It has to name a database.
    NameDatabase,
    /// There is no database: nobody has told this proxy anything.
    Nothing,
}

/// Why a login is refused. The text is an error line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginRefused {
    /// The name or the password is wrong; which of them is nobody's business.
    #[error("WRONGPASS invalid username-password pair or user is disabled.")]
    WrongPassword,
    /// `AUTH password` where no password is needed.
    #[error(
        "ERR AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?"
    )]
    NoPasswordNeeded,
}

pub(super) fn entrance(databases: &[Arc<Database>]) -> Entrance {
    let chosen = match databases {
        [] => return Entrance::Nothing,
        [only] => only,
        [..] => match default(databases) {
            Some(default) => default,
            None => return Entrance::NameDatabase,
        },
    };
    let users = &chosen.settings().users;
    let open = users.iter().find(|user| user.name == DEFAULT && user.password_sha256.is_empty());
    match open {
        None if !users.is_empty() => Entrance::Authenticate,
        user => Entrance::Open(login(chosen, user)),
    }
}

/// The database of those who name none; with two of that kind it is nobody's guess.
fn default(databases: &[Arc<Database>]) -> Option<&Arc<Database>> {
    let mut found = databases.iter().filter(|database| database.settings().default);
    found.next().filter(|_| found.next().is_none())
}

pub(super) fn log_in(
    databases: &[Arc<Database>],
    user: Option<&[u8]>,
    password: &[u8],
) -> Result<Login, LoginRefused> {
    let named = match user {
        None => return log_in_by_password(databases, password),
        Some(name) => std::str::from_utf8(name).map_err(|_| LoginRefused::WrongPassword)?,
    };
    let found = match named.split_once('/') {
        Some((database, user)) => in_database(databases, database, user, password),
        None => by_name(databases, named, password),
    };
    found.ok_or(LoginRefused::WrongPassword)
}

/// `AUTH password`: the default user, where it is clear of which database.
fn log_in_by_password(databases: &[Arc<Database>], password: &[u8]) -> Result<Login, LoginRefused> {
    match entrance(databases) {
        Entrance::Open(_) | Entrance::Nothing => Err(LoginRefused::NoPasswordNeeded),
        Entrance::Authenticate | Entrance::NameDatabase => {
            let of_default = default(databases)
                .and_then(|database| in_database(databases, database.name().as_str(), DEFAULT, password));
            let found = of_default.or_else(|| by_name(databases, DEFAULT, password));
            found.ok_or(LoginRefused::WrongPassword)
        }
    }
}

fn in_database(databases: &[Arc<Database>], database: &str, user: &str, password: &[u8]) -> Option<Login> {
    let database = databases.iter().find(|known| known.name().as_str() == database)?;
    let users = &database.settings().users;
    match users.iter().find(|known| known.name == user) {
        Some(known) => known.accepts(password).then(|| login(database, Some(known))),
        None => (users.is_empty() && user == DEFAULT).then(|| login(database, None)),
    }
}

/// The name of a database, or of a user that only one database accepts with this password.
fn by_name(databases: &[Arc<Database>], name: &str, password: &[u8]) -> Option<Login> {
    let of_database = in_database(databases, name, DEFAULT, password);
    let same_name = || in_database(databases, name, name, password);
    if let Some(login) = of_database.or_else(same_name) {
        return Some(login);
    }
    let mut found = databases
        .iter()
        .filter_map(|database| in_database(databases, database.name().as_str(), name, password));
    match (found.next(), found.next()) {
        (Some(login), None) => Some(login),
        _ => None,
    }
}

fn login(database: &Database, user: Option<&User>) -> Login {
    Login {
        database: database.name().clone(),
        user: user.map_or(DEFAULT, |user| &user.name).to_owned(),
        rights: user.map_or(Rights::All, |user| user.commands),
    }
}
