//! A host that can move slots, without a proxy's data path: one node, the moves, and a port for sources.

use std::sync::Arc;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_control::tasks::Supervisor;
use capstan_redis::Address;
use capstan_redis::agent::Nodes;
use capstan_redis::nmctl::{Announcement, Claim, Entry, Message};
use capstan_redis::slots::SlotRange;
use capstan_redis_protocol::resp::{Limits, Parsed, Request, RequestParser, Trust};
use capstan_redis_proxy::gate::Gate;
use capstan_redis_proxy::moves::{Moves, MovesConfig, NotReleased};
use capstan_redis_proxy::state::Move;
use capstan_testkit::redis::RedisServer;
use capstan_testkit::{TempDir, eventually};
use redis::aio::MultiplexedConnection;
use tokio::io::AsyncReadExt;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub(super) const SOON: Duration = Duration::from_secs(60);

pub(super) struct Host {
    pub node: RedisServer,
    pub moves: Moves,
    pub address: Address,
    supervisor: Supervisor,
    dir: Arc<TempDir>,
    port: Arc<TcpListener>,
    _accepting: JoinSet<()>,
    epoch: u64,
}

impl Host {
    pub(super) async fn start() -> Host {
        let port = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let dir = TempDir::new("moves").unwrap();
        Host::on(RedisServer::start().await.unwrap(), Arc::new(port), Arc::new(dir))
    }

    fn on(node: RedisServer, port: Arc<TcpListener>, dir: Arc<TempDir>) -> Host {
        let supervisor = Supervisor::new(1);
        let address: Address = port.local_addr().unwrap().to_string().parse().unwrap();
        let ledger = dir.path().join("moves.json");
        let config = MovesConfig { proxy: address.clone(), admin: None, ledger };
        let moves = Moves::open(config, Nodes::external(None), &supervisor).unwrap();
        let mut accepting = JoinSet::new();
        accepting.spawn(accept(port.clone(), moves.clone()));
        Host { node, moves, address, supervisor, dir, port, _accepting: accepting, epoch: 0 }
    }

    /// The process of the host dies and restarts; its node lives on.
    pub(super) async fn crash(self) -> Host {
        let Host { node, dir, port, supervisor, epoch, .. } = self;
        supervisor.shut_down(Duration::ZERO).await;
        Host { epoch, ..Host::on(node, port, dir) }
    }

    pub(super) fn node_address(&self) -> Address {
        self.node.address().to_string().parse().unwrap()
    }

    pub(super) async fn connection(&self) -> MultiplexedConnection {
        connect(self.node.address()).await
    }

    /// `SETDB` of the next epoch, as a proxy without workers accepts it.
    pub(super) fn set(&mut self, claims: &[Claim]) -> Option<Arc<Gate>> {
        self.epoch += 1;
        let entries: Vec<Entry> = claims.iter().map(|claim| self.entry(claim.clone())).collect();
        let prepared = self.moves.prepare(Epoch(self.epoch), &entries, 0).unwrap();
        let gate = entries.iter().filter_map(Move::of).find_map(|of| prepared.gate(&of));
        prepared.routed();
        gate
    }

    fn entry(&self, claim: Claim) -> Entry {
        Entry { db: "demo".parse().unwrap(), address: self.node_address(), claim }
    }

    pub(super) async fn release(&self, range: SlotRange) -> Result<(), NotReleased> {
        let entries = vec![self.entry(Claim::Stable(range))];
        let message = Announcement { epoch: Epoch(self.epoch), entries, ..Announcement::default() };
        self.moves.releasing(&message).await
    }

    /// Requests the release repeatedly, as coordinators do.
    pub(super) async fn released(&self, range: SlotRange) {
        eventually("the range is released", SOON, async || self.release(range).await).await;
    }
}

pub(super) async fn connect(address: std::net::SocketAddr) -> MultiplexedConnection {
    let client = redis::Client::open(format!("redis://{address}/")).unwrap();
    // A loaded machine is slow; that is not tested here.
    let config = redis::AsyncConnectionConfig::new().set_response_timeout(Some(SOON));
    client.get_multiplexed_async_connection_with_config(&config).await.unwrap()
}

async fn accept(port: Arc<TcpListener>, moves: Moves) {
    let mut greeting = JoinSet::new();
    while let Ok((stream, _)) = port.accept().await {
        greeting.spawn(greet(stream, moves.clone()));
    }
}

/// Reads one request, which must be an import, and hands the connection over.
async fn greet(mut stream: TcpStream, moves: Moves) {
    let (mut input, mut parser) = (Vec::new(), RequestParser::new(Limits::default()));
    let len = loop {
        if stream.read_buf(&mut input).await.unwrap() == 0 {
            return;
        }
        if let Parsed::Complete(len) = parser.parse(&input, Trust::Authenticated).unwrap() {
            break len;
        }
    };
    let request = Request::new(&input, parser.arguments());
    let words: Vec<&[u8]> = request.from(1).collect();
    let Ok(Message::Import(import)) = Message::parse(words) else { panic!("{input:?}") };
    moves.take_import(stream.into_std().unwrap(), &input[len..], import);
}

pub(super) fn range(first: u32, last: u32) -> SlotRange {
    SlotRange::new(first, last).unwrap()
}

pub(super) fn stable(first: u32, last: u32) -> Claim {
    Claim::Stable(range(first, last))
}

pub(super) fn leaving(to: &Host, first: u32, last: u32) -> Claim {
    Claim::Migrating { to: to.address.clone(), range: range(first, last), pairing: None }
}

/// The same claim with this pairing.
pub(super) fn paired(claim: Claim, epoch: u64) -> Claim {
    let pairing = Some(Epoch(epoch));
    match claim {
        Claim::Stable(_) => claim,
        Claim::Migrating { to, range, .. } => Claim::Migrating { to, range, pairing },
        Claim::Importing { from, range, .. } => Claim::Importing { from, range, pairing },
    }
}

pub(super) fn coming(from: &Host, first: u32, last: u32) -> Claim {
    Claim::Importing { from: from.address.clone(), range: range(first, last), pairing: None }
}
