//! Where does a command go? To a node of this host, to another proxy, back to the client, or on hold.

use std::sync::Arc;

use crate::gate::{Admission, Ticket};
use crate::state::{Database, Entrance, Login, Place, Routing};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{ErrorCode, Protocol};
use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::link::{Lane, Remote};
use super::session::{Role, Session, Stall, Standing};
use super::worker::{Taken, Worker};

/// A database, and the links to its places.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) database: Arc<Database>,
    /// For each place, lane and protocol, the pipelined link, once it was needed.
    links: Vec<[[Option<Key>; 2]; Lane::COUNT]>,
}

/// The destination of a command.
#[derive(Debug)]
pub(super) enum Route {
    /// To a node of this host.
    Node {
        /// The shared link.
        link: Key,
        /// Set if the slot is moving away.
        ticket: Option<Ticket>,
    },
    /// To another proxy.
    Peer {
        /// The shared link.
        link: Key,
    },
}

/// Why a command is held, and the client's error when that takes too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Hold {
    /// No known owner for the slot.
    Unserved,
    /// The proxy's lease has expired.
    NoLease,
    /// The slot is being handed over.
    Moving,
}

impl Hold {
    /// The line of the error.
    pub(super) fn error(self) -> String {
        let (code, text) = match self {
            Hold::Unserved => (ErrorCode::ClusterDown, "Hash slot not served"),
            Hold::NoLease => (ErrorCode::ClusterDown, "The proxy has no lease from the coordinators"),
            Hold::Moving => (ErrorCode::TryAgain, "The slot is being moved to another host"),
        };
        format!("{} {text}", code.word())
    }
}

/// The redirection to the proxy that owns a slot.
fn moved(slot: Slot, proxy: &Address) -> String {
    format!("{} {slot} {proxy}", ErrorCode::Moved.word())
}

impl Worker {
    /// Adopts a new routing table.
    pub(super) fn adopt(&mut self, routing: Arc<Routing>) {
        self.table_version += 1;
        let known = |database: &Arc<Database>| Known {
            links: vec![[[None; 2]; Lane::COUNT]; database.places().len()],
            database: Arc::clone(database),
        };
        self.databases = routing.databases().iter().map(known).collect();
        self.routing = routing;
        self.drop_lost_nodes();
        self.join_gates();
        // Slots of held commands may have an owner now.
        let mut held = std::mem::take(&mut self.held);
        self.awake.append(&mut held);
        self.dismiss_sessions();
        self.resubscribe_all();
    }

    /// What a connection may do now.
    pub(super) fn standing(&self, role: &Role) -> Standing {
        let place = |login: &Login| {
            let index = self.databases.iter().position(|known| *known.database.name() == login.database);
            index.map_or(Standing::Nothing, Standing::Uses)
        };
        match role {
            // Its connection is about to be closed.
            Role::Client(Some(login)) if self.is_removed(login) => Standing::MustAuthenticate,
            Role::Client(Some(login)) | Role::Peer(login) => place(login),
            Role::Client(None) | Role::Admin => match self.routing.entrance() {
                Entrance::Open(login) => place(&login),
                Entrance::Authenticate => Standing::MustAuthenticate,
                Entrance::NameDatabase => Standing::MustName,
                Entrance::Nothing => Standing::Nothing,
            },
        }
    }

    /// The database that a session uses.
    pub(super) fn database(&self, session: &Session) -> Option<&Arc<Database>> {
        match session.standing {
            Standing::Uses(index) => self.databases.get(index).map(|known| &known.database),
            Standing::MustAuthenticate | Standing::MustName | Standing::Nothing => None,
        }
    }

    /// The destination of a command for a slot, or the outcome if it is not sent.
    #[inline]
    pub(super) fn route(&mut self, session: &mut Session, slot: Slot, reads: bool) -> Result<Route, Taken> {
        let Standing::Uses(database) = session.standing else {
            return Err(self.hold(session, Hold::Unserved));
        };
        let known = &self.databases[database];
        let place = known.database.place_index(slot);
        match &known.database.places()[place] {
            Place::Unowned => Err(self.hold(session, Hold::Unserved)),
            Place::Own { since, .. } if !self.serving.allows(self.now, *since) => {
                Err(self.hold(session, Hold::NoLease))
            }
            Place::Own { gate, .. } => {
                let ticket = match gate.as_ref().map(|gate| gate.admit()) {
                    None | Some(Admission::Open) => None,
                    Some(Admission::Pass(ticket)) => Some(ticket),
                    Some(Admission::Hold | Admission::Released | Admission::Gone) => {
                        return Err(self.hold(session, Hold::Moving));
                    }
                };
                match self.place_link(session, database, place, None) {
                    Ok(link) => Ok(Route::Node { link, ticket }),
                    Err(taken) => {
                        // The command was never sent.
                        ticket.into_iter().for_each(Ticket::read);
                        Err(taken)
                    }
                }
            }
            Place::Peer { proxy, replica } => match replica {
                Some(replica) if reads && session.content_with_replicas => {
                    let replica = Remote::Node(replica.clone());
                    let link = self.place_link(session, database, place, Some(replica))?;
                    Ok(Route::Node { link, ticket: None })
                }
                _ if known.database.is_single() && !session.is_peer() => {
                    let link = self.place_link(session, database, place, None)?;
                    Ok(Route::Peer { link })
                }
                _ => {
                    let error = moved(slot, proxy);
                    Err(self.object(session, &error))
                }
            },
        }
    }

    /// The pipelined link to a place, or to a replica of it.
    fn place_link(
        &mut self,
        session: &mut Session,
        database: usize,
        place: usize,
        replica: Option<Remote>,
    ) -> Result<Key, Taken> {
        let protocol = session.protocol;
        let column = usize::from(protocol == Protocol::Resp3);
        let lane = session.lane as usize;
        let cached =
            if replica.is_none() { self.databases[database].links[place][lane][column] } else { None };
        let link = match cached {
            Some(link) => self.usable(link),
            None => {
                let remote = replica.clone().unwrap_or_else(|| self.remote_of(database, place));
                self.pipeline(&remote, protocol, session.lane)
            }
        };
        let link = match link {
            Ok(link) => link,
            Err(down) if down.is_looked_up() => return Err(self.hold(session, Hold::Unserved)),
            Err(down) => {
                return Err(self.object(session, down.error()));
            }
        };
        if replica.is_none() {
            self.databases[database].links[place][lane][column] = Some(link);
        }
        if self.is_choked(link) { Err(Taken::Not(Stall::Backlog)) } else { Ok(link) }
    }

    /// The remote of a place.
    fn remote_of(&self, database: usize, place: usize) -> Remote {
        let database = &self.databases[database].database;
        match &database.places()[place] {
            Place::Own { node, .. } => Remote::Node(node.clone()),
            Place::Peer { proxy, .. } => Remote::Peer(proxy.clone(), database.name().clone()),
            Place::Unowned => Remote::Node(self.shared.address.clone()),
        }
    }

    /// The owner of a slot: a node of this host or another proxy. For channels, which every proxy serves.
    pub(super) fn owner(&mut self, session: &mut Session, slot: Slot) -> Result<Remote, Taken> {
        let Standing::Uses(index) = session.standing else {
            return Err(self.hold(session, Hold::Unserved));
        };
        let database = &self.databases[index].database;
        match database.place(slot) {
            Place::Unowned => Err(self.hold(session, Hold::Unserved)),
            Place::Own { .. } => Ok(self.remote_of(index, database.place_index(slot))),
            Place::Peer { proxy, .. } if session.is_peer() => {
                let error = moved(slot, proxy);
                Err(self.object(session, &error))
            }
            Place::Peer { .. } => Ok(self.remote_of(index, database.place_index(slot))),
        }
    }

    /// The owner of a slot, if there is one.
    pub(super) fn place_of(&self, standing: Standing, slot: Slot) -> Option<Remote> {
        let Standing::Uses(index) = standing else { return None };
        let database = &self.databases[index].database;
        match database.place(slot) {
            Place::Unowned => None,
            Place::Own { .. } | Place::Peer { .. } => Some(self.remote_of(index, database.place_index(slot))),
        }
    }

    /// The owner of a shard channel's slot: as for a key, clients are redirected to the owner.
    pub(super) fn shard_owner(&mut self, session: &mut Session, slot: Slot) -> Result<Remote, Taken> {
        match self.owner(session, slot)? {
            Remote::Peer(proxy, _)
                if !self.database(session).is_some_and(|database| database.is_single()) =>
            {
                let error = moved(slot, &proxy);
                Err(self.object(session, &error))
            }
            owner => Ok(owner),
        }
    }

    /// Every node of this host with slots, and every other proxy if the session uses the whole database.
    pub(super) fn everywhere(&self, session: &Session, beyond: bool) -> Vec<Remote> {
        let Some(database) = self.database(session) else { return Vec::new() };
        let mut remotes: Vec<Remote> = database.primaries().iter().cloned().map(Remote::Node).collect();
        if beyond && !session.is_peer() {
            let peers = database.topology().shards.iter().map(|shard| &shard.proxy);
            let others = peers.filter(|proxy| **proxy != database.topology().me);
            remotes.extend(others.map(|proxy| Remote::Peer(proxy.clone(), database.name().clone())));
        }
        remotes
    }

    /// Holds a command, or answers it if it was held too long or too many are held.
    pub(super) fn hold(&mut self, session: &mut Session, why: Hold) -> Taken {
        let since = *session.held_since.get_or_insert(self.now);
        let limits = &self.shared.limits;
        if self.now.duration_since(since) >= limits.hold || self.held.len() >= limits.held {
            session.held_since = None;
            return self.object(session, why.error());
        }
        Taken::Not(Stall::Held)
    }
}
