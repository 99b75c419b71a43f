//! Which database does a connection use, and what may it do there?
//!
//! A user belongs to a database. `AUTH` accepts `database/user`, a user's name if it is unique, or the name
//! of a database for its `default` user. With one database and no users, no `AUTH` is needed; with several,
//! connections without `AUTH` use the one marked as default.

use std::sync::Arc;

use super::routing::Database;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::nmctl::User;

/// The user of a connection that has not authenticated.
pub(super) const DEFAULT: &str = "default";

/// The identity of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Login {
    /// The database that it uses.
    pub database: ClusterName,
    /// The name of the user, as in `ACL WHOAMI`.
    pub user: String,
}

/// What a connection may do before it authenticates.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entrance {
    /// It uses the only database, or the default one.
    Open(Login),
    /// It has to authenticate, as that database has users.
    Authenticate,
    /// It has to select a database.
    NameDatabase,
    /// There is no database: nothing was pushed to this proxy.
    Nothing,
}

/// Why a login is refused. The text is an error line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LoginRefused {
    /// The name or the password is wrong; the error does not tell which.
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
    let open = users.iter().find(|user| user.name == DEFAULT && user.is_open());
    match open {
        None if !users.is_empty() => Entrance::Authenticate,
        user => Entrance::Open(login(chosen, user)),
    }
}

/// The default database, if exactly one is marked.
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

/// `AUTH password`: the default user, if its database is unambiguous.
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
    Login { database: database.name().clone(), user: user.map_or(DEFAULT, |user| &user.name).to_owned() }
}
