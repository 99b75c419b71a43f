//! How does a range arrive at this host? Sessions of sources, and the relay from a source's connection to the
//! node.
//!
//! The proxy does not own the range yet, so no client writes to it. A session is current as long as the range
//! is importing from that source in the newest `SETDB`, and no newer session has begun. When a session ends,
//! its connections to the node are killed at the node: unread data in their buffers cannot arrive later.

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
use crate::conversation::{Conversation, Credentials, TalkError};
use crate::nodes::{NodeState, Nodes};
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::{Import, OldEpoch};
use capstan_redis_protocol::resp::{Limits, Parsed, ProtocolError, Request, RequestParser, Trust, View};
use capstan_redis_protocol::slots::SlotRange;

/// The reply timeout of a node.
const ANSWER_WITHIN: Duration = Duration::from_secs(20);
/// The read size on a source's connection.
const READ_CHUNK: usize = 256 << 10;
/// Connections of one session: a source has few lanes.
const MAX_CONNECTIONS: usize = 16;

/// Why an import is refused. The text is the reply to the source.
#[derive(Debug, thiserror::Error)]
pub enum ImportError {
    /// The range is not importing from this source in the newest `SETDB`.
    #[error("NOIMPORT {db} {range} is not importing from {from} here")]
    NotImporting {
        /// Which database.
        db: capstan_redis_protocol::ClusterName,
        /// The source.
        from: Address,
        /// Which slots.
        range: SlotRange,
    },
    /// A newer session has begun.
    #[error("NOIMPORT this session is over")]
    SessionOver,
    /// A source with a higher epoch has been accepted.
    #[error("{}", OldEpoch { known: *known })]
    OldEpoch {
        /// The higher epoch.
        known: Epoch,
    },
    /// A session with too many connections.
    #[error("NOIMPORT too many connections in one session")]
    TooMany,
    /// The node is not ready.
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
    /// The source sent an invalid request.
    #[error("ERR {0}")]
    Protocol(#[from] ProtocolError),
    /// A request that is not allowed in an import.
    #[error("ERR an import takes RESTORE, DEL, UNLINK and PING of its own range only")]
    NotForImports,
}

/// The session of a source.
#[derive(Debug)]
struct Session {
    name: String,
    epoch: Epoch,
    stop: CancellationToken,
    /// The node's client ids of the session's connections.
    clients: Vec<i64>,
}

/// The import sessions of this host, for ranges that are importing now.
#[derive(Debug, Default)]
pub(super) struct Imports {
    expected: Mutex<HashMap<ImportId, Option<Session>>>,
    /// Held while a range of any node is emptied or its leftovers are removed: the two must not overlap.
    pub(super) sweeping: tokio::sync::Mutex<()>,
}

/// An import that is no longer expected.
#[derive(Debug)]
pub(super) struct Ended {
    pub id: ImportId,
    clients: Vec<i64>,
}

impl Imports {
    /// Sets the ranges that are importing now. All others end.
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

    /// Serves a source's connection: answers its request, and relays until the connection or the session
    /// ends.
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

    /// The expected import that a request refers to.
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

    /// Begins a session: ends the previous one, and empties the range.
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
        info!(db = %id.db, node = %id.node, range = %id.range, from = %id.from, removed, "import started");
        Ok(name)
    }

    /// Replaces the session, and returns the previous one's connections to the node.
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
    /// Makes sure that none of its data can arrive at the node any more.
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
        // An unknown client id is as good as a killed one.
        node.ask(&["CLIENT", "KILL", "ID", &client.to_string()]).await?;
    }
    Ok(())
}

/// Connects to a node of this host, if it is ready.
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

/// Relays both directions until one of them ends.
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

/// Forwards the requests that are allowed in an import, all that have arrived in one write.
async fn forward(
    mut source: OwnedReadHalf,
    mut input: BytesMut,
    mut node: OwnedWriteHalf,
    range: SlotRange,
) -> Result<(), ImportError> {
    let mut parser = RequestParser::new(Limits::default());
    loop {
        let mut whole = 0;
        while let Parsed::Complete(len) = parser.parse(&input[whole..], Trust::Authenticated)? {
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

/// Whether a request is allowed in an import of this range.
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
    use capstan_redis_protocol::resp::write_request;

    fn is_taken(words: &[&str]) -> bool {
        let mut bytes = Vec::new();
        write_request(&mut bytes, words);
        let mut parser = RequestParser::new(Limits::default());
        assert_eq!(parser.parse(&bytes, Trust::Authenticated), Ok(Parsed::Complete(bytes.len())));
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
        let (db, node, from): (capstan_redis_protocol::ClusterName, Address, Address) =
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
