//! How does a range arrive at this host? Sessions of sources, and the relay from a source's connection to the node.
//!
//! The proxy does not own the range yet, so nobody else writes to it. A session is current as long as the newest
//! `SETDB` has the range as importing from that source, and no newer session has begun. When a session ends, its
//! connections to the node are killed at the node: what lies unread in their buffers cannot arrive later.

use std::collections::HashMap;
use std::io;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use capstan_control::epoch::Epoch;
use rand::RngExt;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio_util::sync::CancellationToken;
use tracing::info;

use super::names::{ImportId, contains};
use super::sweep::empty;
use crate::address::Address;
use crate::agent::{NodeState, Nodes};
use crate::data::conversation::{Conversation, Credentials, TalkError};
use crate::data::resp::{Limits, Parsed, ProtocolError, Request, RequestParser, Trust, View};
use crate::nmctl::Import;
use crate::slots::SlotRange;

/// How long a node may be silent.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// What is read from a source at once.
const READ_CHUNK: usize = 256 << 10;
/// Connections of one session: a source has few lanes.
const MAX_CONNECTIONS: usize = 16;

/// Why a source is sent away. The text is its reply.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The newest `SETDB` does not say so.
    #[error("NOIMPORT {db} {range} is not importing from {from} here")]
    NotImporting {
        /// Which database.
        db: crate::ClusterName,
        /// The source.
        from: Address,
        /// Which slots.
        range: SlotRange,
    },
    /// Another session has begun since.
    #[error("NOIMPORT this session is over")]
    SessionOver,
    /// A newer source has been here.
    #[error("OLD_EPOCH known {known}")]
    OldEpoch {
        /// Its epoch.
        known: Epoch,
    },
    /// A session with too many connections.
    #[error("NOIMPORT too many connections in one session")]
    TooMany,
    /// The node cannot take it.
    #[error("TRYAGAIN node {node} not ready: {why}")]
    NotReady {
        /// Which node.
        node: Address,
        /// Why.
        why: String,
    },
    /// The node failed.
    #[error("TRYAGAIN {0}")]
    Node(#[from] TalkError),
    /// A connection broke.
    #[error("TRYAGAIN {0}")]
    Io(#[from] io::Error),
    /// What the source sent is no request.
    #[error("ERR {0}")]
    Protocol(#[from] ProtocolError),
    /// A request that a session does not take.
    #[error("ERR an import takes RESTORE, DEL, UNLINK and PING of its own range only")]
    NotForImports,
}

/// A session of a source.
#[derive(Debug)]
struct Session {
    name: String,
    epoch: Epoch,
    stop: CancellationToken,
    /// What the node calls the session's connections.
    clients: Vec<i64>,
}

/// The sessions of this host's imports. Only ranges that are importing now are in it.
#[derive(Debug, Default)]
pub(super) struct Imports {
    expected: Mutex<HashMap<ImportId, Option<Session>>>,
    /// Held while a range of any node is emptied or its leftovers are removed: the two must not meet.
    pub(super) sweeping: tokio::sync::Mutex<()>,
}

/// What became of imports that are not expected any more.
#[derive(Debug)]
pub(super) struct Ended {
    pub id: ImportId,
    clients: Vec<i64>,
}

impl Imports {
    /// What is importing now. Everything else ends.
    pub(super) fn expect(&self, coming: &[ImportId]) -> Vec<Ended> {
        let mut expected = self.expected();
        let over: Vec<ImportId> = expected.keys().filter(|id| !coming.contains(id)).cloned().collect();
        let end = |id: ImportId| {
            let clients = expected.remove(&id).flatten().map_or(Vec::new(), Session::end);
            Ended { id, clients }
        };
        let ended = over.into_iter().map(end).collect();
        for id in coming {
            expected.entry(id.clone()).or_default();
        }
        ended
    }

    /// Takes a source's connection: answers its request, and relays until the connection or the session ends.
    pub(super) async fn serve(
        &self,
        mut source: TcpStream,
        early: BytesMut,
        request: Import,
        nodes: &Nodes,
    ) -> Result<(), ImportError> {
        source.set_nodelay(true)?;
        let opened = self.open(&request, nodes).await;
        let (session, stop, node) = match opened {
            Ok(opened) => opened,
            Err(error) => {
                source.write_all(format!("-{error}\r\n").as_bytes()).await?;
                return Err(error);
            }
        };
        source.write_all(format!("+{session}\r\n").as_bytes()).await?;
        let relay = relay(source, early, node, request.range);
        stop.run_until_cancelled(relay).await.unwrap_or(Err(ImportError::SessionOver))
    }

    async fn open(
        &self,
        request: &Import,
        nodes: &Nodes,
    ) -> Result<(String, CancellationToken, TcpStream), ImportError> {
        let id = self.find(request)?;
        let mut node = open_node(&id.node, nodes).await?;
        let session = match &request.session {
            Some(session) => session.clone(),
            None => self.begin(&id, request, &mut node).await?,
        };
        let reply = node.ask(&["CLIENT", "ID"]).await?;
        let client = View::of(&reply).and_then(View::integer).ok_or_else(|| node.unexpected("CLIENT ID"))?;
        let stop = self.join(&id, &session, client)?;
        Ok((session, stop, node.into_stream()))
    }

    /// Which of the expected imports a source means.
    fn find(&self, request: &Import) -> Result<ImportId, ImportError> {
        let Import { db, from, range, pairing, .. } = request;
        let expected = self.expected();
        let mut ids = expected.keys();
        let id =
            ids.find(|id| id.db == *db && id.from == *from && id.range == *range && id.pairing == *pairing);
        id.cloned().ok_or_else(|| ImportError::NotImporting {
            db: db.clone(),
            from: from.clone(),
            range: *range,
        })
    }

    /// Begins a session: ends the one before, and empties the range.
    async fn begin(
        &self,
        id: &ImportId,
        request: &Import,
        node: &mut Conversation,
    ) -> Result<String, ImportError> {
        let name = format!("{:016x}", rand::rng().random::<u64>());
        let before = self.replace(id, request, &name)?;
        let _alone = self.sweeping.lock().await;
        kill_clients(node, &before).await?;
        let removed = empty(node, id.range).await?;
        info!(db = %id.db, node = %id.node, range = %id.range, from = %id.from, removed, "an import begins");
        Ok(name)
    }

    /// Puts the new session in the place of the old one, whose connections to the node are returned.
    fn replace(&self, id: &ImportId, request: &Import, name: &str) -> Result<Vec<i64>, ImportError> {
        let mut expected = self.expected();
        let place = expected.get_mut(id).ok_or(ImportError::SessionOver)?;
        if let Some(session) = place.as_ref().filter(|session| session.epoch > request.epoch) {
            return Err(ImportError::OldEpoch { known: session.epoch });
        }
        let stop = CancellationToken::new();
        let (name, epoch) = (name.to_owned(), request.epoch);
        let before = place.replace(Session { name, epoch, stop, clients: Vec::new() });
        Ok(before.map_or(Vec::new(), Session::end))
    }

    fn join(&self, id: &ImportId, name: &str, client: i64) -> Result<CancellationToken, ImportError> {
        let mut expected = self.expected();
        let session = expected.get_mut(id).and_then(Option::as_mut).filter(|session| session.name == name);
        let session = session.ok_or(ImportError::SessionOver)?;
        if session.clients.len() == MAX_CONNECTIONS {
            return Err(ImportError::TooMany);
        }
        session.clients.push(client);
        Ok(session.stop.clone())
    }

    fn expected(&self) -> MutexGuard<'_, HashMap<ImportId, Option<Session>>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Session {
    fn end(self) -> Vec<i64> {
        self.stop.cancel();
        self.clients
    }
}

impl Ended {
    /// Makes sure that nothing of it arrives at the node any more.
    pub(super) async fn seal(&self, nodes: &Nodes) -> Result<(), ImportError> {
        if self.clients.is_empty() {
            return Ok(());
        }
        let mut node = open_node(&self.id.node, nodes).await?;
        Ok(kill_clients(&mut node, &self.clients).await?)
    }
}

async fn kill_clients(node: &mut Conversation, clients: &[i64]) -> Result<(), TalkError> {
    for client in clients {
        // Nobody with that number is as good as killed.
        node.ask(&["CLIENT", "KILL", "ID", &client.to_string()]).await?;
    }
    Ok(())
}

/// A connection to a node of this host that is ready.
pub(super) async fn open_node(node: &Address, nodes: &Nodes) -> Result<Conversation, ImportError> {
    match nodes.state(node) {
        NodeState::Ready { auth, .. } => {
            let credentials =
                auth.map(|auth| Credentials { user: None, password: auth.password.to_string() });
            Ok(Conversation::open(node, credentials.as_ref(), ANSWER_WITHIN).await?)
        }
        NodeState::NotReady { why } => {
            Err(ImportError::NotReady { node: node.clone(), why: why.to_string() })
        }
    }
}

/// Both directions at once, until one of them ends.
async fn relay(
    source: TcpStream,
    early: BytesMut,
    node: TcpStream,
    range: SlotRange,
) -> Result<(), ImportError> {
    let (from_source, mut to_source) = source.into_split();
    let (mut from_node, to_node) = node.into_split();
    tokio::select! {
        requests = forward(from_source, early, to_node, range) => match requests {
            Err(error @ (ImportError::NotForImports | ImportError::Protocol(_))) => {
                to_source.write_all(format!("-{error}\r\n").as_bytes()).await?;
                Err(error)
            }
            other => other,
        },
        replies = tokio::io::copy(&mut from_node, &mut to_source) => Ok(replies.map(drop)?),
    }
}

/// Passes on requests that an import may make, as many at once as have arrived.
async fn forward(
    mut source: OwnedReadHalf,
    mut input: BytesMut,
    mut node: OwnedWriteHalf,
    range: SlotRange,
) -> Result<(), ImportError> {
    let mut parser = RequestParser::new(Limits::default());
    loop {
        let mut whole = 0;
        while let Parsed::Complete(len) = parser.parse(&input[whole..], Trust::Known)? {
            if !is_import(&Request::new(&input[whole..], parser.arguments()), range) {
                return Err(ImportError::NotForImports);
            }
            whole += len;
        }
        if whole > 0 {
            node.write_all(&input[..whole]).await?;
            input.advance(whole);
        }
        input.reserve(READ_CHUNK);
        if source.read_buf(&mut input).await? == 0 {
            return Ok(());
        }
    }
}

/// Whether a request may be made in an import of this range.
fn is_import(request: &Request<'_>, range: SlotRange) -> bool {
    let command = request.argument(0);
    let is = |name: &str| command.eq_ignore_ascii_case(name.as_bytes());
    if is("RESTORE") {
        request.len() >= 4 && contains(range, request.argument(1))
    } else if is("DEL") || is("UNLINK") {
        request.len() >= 2 && request.from(1).all(|key| contains(range, key))
    } else {
        is("PING") && request.len() == 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::resp::write_request;

    fn is_taken(words: &[&str]) -> bool {
        let mut bytes = Vec::new();
        write_request(&mut bytes, words);
        let mut parser = RequestParser::new(Limits::default());
        assert_eq!(parser.parse(&bytes, Trust::Known), Ok(Parsed::Complete(bytes.len())));
        is_import(&Request::new(&bytes, parser.arguments()), SlotRange::new(12000, 13000).unwrap())
    }

    #[test]
    fn an_import_takes_its_own_keys_only() {
        for (words, taken) in [
            (&["RESTORE", "foo", "0", "x", "REPLACE"][..], true),
            (&["restore", "bar", "0", "x"], false),
            (&["RESTORE", "foo"], false),
            (&["DEL", "foo", "{foo}1"], true),
            (&["UNLINK", "foo", "bar"], false),
            (&["DEL"], false),
            (&["PING"], true),
            (&["FLUSHALL"], false),
            (&["SET", "foo", "1"], false),
        ] {
            assert_eq!(is_taken(words), taken, "{words:?}");
        }
    }

    #[test]
    fn only_what_is_expected_goes_on() {
        let imports = Imports::default();
        let range = SlotRange::new(0, 9).unwrap();
        let (db, node, from): (crate::ClusterName, Address, Address) =
            ("demo".parse().unwrap(), "h:1".parse().unwrap(), "h:2".parse().unwrap());
        let id = ImportId { db: db.clone(), node, from: from.clone(), range, pairing: Some(Epoch(2)) };
        let request = |epoch| Import {
            epoch: Epoch(epoch),
            db: db.clone(),
            from: from.clone(),
            range,
            pairing: Some(Epoch(2)),
            session: None,
        };
        assert!(imports.find(&request(1)).is_err());
        assert!(imports.expect(std::slice::from_ref(&id)).is_empty());
        assert_eq!(imports.find(&request(1)).unwrap(), id);
        assert!(imports.find(&Import { pairing: Some(Epoch(1)), ..request(1) }).is_err(), "another move");
        imports.replace(&id, &request(5), "first").unwrap();
        let first = imports.join(&id, "first", 7).unwrap();
        assert!(matches!(
            imports.replace(&id, &request(4), "late"),
            Err(ImportError::OldEpoch { known: Epoch(5) })
        ));
        assert_eq!(imports.replace(&id, &request(5), "second").unwrap(), [7]);
        assert!(first.is_cancelled() && imports.join(&id, "first", 8).is_err());
        let second = imports.join(&id, "second", 9).unwrap();
        assert!(imports.expect(std::slice::from_ref(&id)).is_empty() && !second.is_cancelled());
        let ended = imports.expect(&[]);
        assert!(second.is_cancelled() && ended[0].id == id && ended[0].clients == [9]);
    }
}
