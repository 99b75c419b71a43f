//! What may the user of a session do, and what happens to it when the users of its database change?
//!
//! As in Redis: new rules apply to the next command, and a client is disconnected if its user is removed or if it
//! is subscribed to a channel that it may no longer use. A user that is switched off keeps its connections.

use std::sync::Arc;

use capstan_redis_protocol::acl::{ChannelUse, Denied, Rules};
use capstan_redis_protocol::command::{Command, Handling};
use capstan_redis_protocol::resp::Request;

use crate::state::{Entrance, Login, Permission};

use super::arena::Key;
use super::dispatch::ends_transaction;
use super::session::{Role, Session};
use super::subscriptions::Topic;
use super::worker::Worker;

/// Why the rules of a session's user refuse a command. `NMCTL` has a check of its own. Commands that are not
/// allowed in a transaction are refused for that first, as in Redis.
pub(super) fn denial(
    session: &Session,
    rules: &Rules,
    command: &'static Command,
    request: Request<'_>,
) -> Option<Denied> {
    let queued = session.transaction.is_some() && !ends_transaction(command);
    if command.handling() == Handling::Admin || queued && command.outside_transactions() {
        return None;
    }
    rules.check(command, request).err()
}

impl Worker {
    fn permission(&self, login: &Login) -> Option<Permission> {
        self.routing.database(&login.database).map(|database| database.permission(&login.user))
    }

    /// Whether the user of a login no longer exists.
    pub(super) fn is_removed(&self, login: &Login) -> bool {
        self.permission(login) == Some(Permission::NoUser)
    }

    /// The rules that the commands of a connection must pass. Other proxies have checked what they forward.
    pub(super) fn restrictions(&self, role: &Role) -> Option<Arc<Rules>> {
        let of = |login: &Login| match self.permission(login) {
            Some(Permission::Restricted(rules)) => Some(rules),
            // Without a user nothing is permitted.
            Some(Permission::NoUser) => Some(Arc::default()),
            Some(Permission::Everything) | None => None,
        };
        match (role, self.routing.entrance()) {
            (Role::Client(Some(login)), _) => of(login),
            (Role::Client(None), Entrance::Open(login)) => of(&login),
            (Role::Client(None), Entrance::Authenticate | Entrance::NameDatabase | Entrance::Nothing) => None,
            (Role::Admin | Role::Peer(_), _) => None,
        }
    }

    /// Recomputes a session's state after a routing change. Commands that were queued under other rules are not
    /// executed.
    pub(super) fn refresh_standing(&mut self, session: &mut Session) {
        session.standing_as_of = self.table_version;
        session.standing = self.standing(&session.role);
        let restrictions = self.restrictions(&session.role);
        if restrictions != session.restrictions {
            session.restrictions = restrictions;
            if let Some(transaction) = &mut session.transaction {
                transaction.refused = true;
            }
        }
    }

    /// Disconnects the clients that may not stay under the table that was just adopted.
    pub(super) fn dismiss_sessions(&mut self) {
        let gone: Vec<Key> = self
            .sessions
            .iter()
            .filter(|session| self.must_leave(session))
            .map(|session| session.key)
            .collect();
        gone.into_iter().for_each(|key| self.close(key));
    }

    fn must_leave(&self, session: &Session) -> bool {
        match &session.role {
            Role::Client(Some(login)) => self.is_removed(login) || self.must_unsubscribe(session),
            Role::Client(None) => {
                let listens = session.subscriptions.is_some() || session.monitor.is_some();
                listens && (self.is_shut() || self.must_unsubscribe(session))
            }
            Role::Admin | Role::Peer(_) => false,
        }
    }

    /// Whether clients must authenticate.
    fn is_shut(&self) -> bool {
        matches!(self.routing.entrance(), Entrance::Authenticate | Entrance::NameDatabase)
    }

    /// Whether a session is subscribed to a channel that its user may no longer use.
    fn must_unsubscribe(&self, session: &Session) -> bool {
        let Some(subscriptions) = &session.subscriptions else { return false };
        let Some(rules) = self.restrictions(&session.role) else { return false };
        subscriptions.topics().any(|(topic, name)| {
            let usage = match topic {
                Topic::Channel | Topic::Shard => ChannelUse::Named,
                Topic::Pattern => ChannelUse::Pattern,
            };
            !rules.may_use_channel(name, usage)
        })
    }
}
