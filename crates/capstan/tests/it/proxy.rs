//! `capstan redis proxy` as a process of its own: what does a crowd of clients cost it?

use std::net::SocketAddr;
use std::path::Path;

use capstan_testkit::redis::{RedisServer, Wire};
use capstan_testkit::{Port, Process, Ready, TempDir, eventually_blocking};
use nix::sys::resource::{Resource, getrlimit, setrlimit};

use crate::binary::DEADLINE;

/// A proxy with all slots on a redis-server.
struct Running {
    _node: RedisServer,
    _process: Process,
    address: SocketAddr,
}

async fn running(dir: &Path, args: &[&str]) -> Running {
    let node = RedisServer::options().start().await.unwrap();
    let port = Port::reserve().unwrap();
    let address = port.addr();
    let listen = address.to_string();
    let mut process = Process::builder(env!("CARGO_BIN_EXE_capstan"))
        .args(["redis", "proxy", "--log-level", "warn", "--listen", &listen])
        .args(args)
        .spawn(dir.join("log"))
        .unwrap();
    process.ready(&Ready::Port(address.port()), DEADLINE).await.unwrap();
    let told = format!("NMCTL SETDB 1 NOFLAG db {} 0-16383", node.address());
    let proxy = Running { _node: node, _process: process, address };
    assert_eq!(proxy.client().say(&told).unwrap(), "+OK\r\n");
    proxy
}

impl Running {
    fn client(&self) -> Wire {
        Wire::connect(self.address).unwrap()
    }
}

/// Resident bytes, as the proxy says itself.
fn memory(client: &mut Wire) -> u64 {
    let text = client.say("INFO memory").unwrap();
    let line = text.lines().find_map(|line| line.strip_prefix("used_memory_rss:"));
    line.unwrap_or_default().trim().parse().unwrap()
}

/// Ten thousand clients, or fewer where the system allows a process fewer open files.
fn crowd() -> usize {
    /// What this process and the proxy have open beside them.
    const OTHER_FILES: usize = 600;
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    setrlimit(Resource::RLIMIT_NOFILE, hard, hard).unwrap();
    usize::try_from(hard).unwrap().saturating_sub(OTHER_FILES).min(10_000)
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_idle_clients_are_cheap_and_one_more_is_refused() {
    let dir = TempDir::new("idle").unwrap();
    let clients = crowd();
    let proxy = running(dir.path(), &["--max-clients", &clients.to_string()]).await;
    let mut active = proxy.client();
    eventually_blocking("the first client has left", DEADLINE, || {
        let text = active.say("INFO clients").unwrap();
        if text.contains("connected_clients:1\r\n") { Ok(()) } else { Err(text) }
    });
    let before = memory(&mut active);
    let mut idle: Vec<Wire> = (1..clients).map(|_| proxy.client()).collect();
    for one in &mut idle {
        assert_eq!(one.say("GET k").unwrap(), "$-1\r\n");
    }
    let each = memory(&mut active).saturating_sub(before) / idle.len() as u64;
    assert!(each < 8_000, "{each} bytes a connection");
    assert_eq!(proxy.client().rest().unwrap(), b"-ERR max number of clients reached\r\n");
    assert_eq!(active.say("SET k v").unwrap(), "+OK\r\n");
    assert_eq!(idle[0].say("GET k").unwrap(), "$1\r\nv\r\n");
}

/// Redis does the same: `maxclients` is no more than the open files allow, and says so.
#[tokio::test(flavor = "multi_thread")]
async fn no_more_clients_are_promised_than_there_are_files() {
    let dir = TempDir::new("files").unwrap();
    let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE).unwrap();
    let proxy = running(dir.path(), &["--max-clients", &(hard * 2).to_string()]).await;
    let told = proxy.client().say("CONFIG GET maxclients").unwrap();
    let allowed = hard - 512;
    assert!(told.ends_with(&format!("\r\n{allowed}\r\n")), "{told}");
}
