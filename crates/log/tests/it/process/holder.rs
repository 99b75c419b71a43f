//! The child: one holder in its own process, with a line protocol for its clients.
//!
//! `append TEXT` answers `ok OFFSET` or `no WHY`; `read` answers every committed entry as `OFFSET TEXT` and then `end`.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use capstan_log::disk::Options;
use capstan_log::net::AddressBook;
use capstan_log::replica::Timing;
use capstan_log::{Disk, HolderId, Host, HostOptions, Log, NoSnapshots, Offset};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_meta::session::{Session, SessionOptions, SessionState};
use capstan_meta::{Put, Store};
use capstan_testkit::process;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

pub const TTL: Duration = Duration::from_secs(2);

/// The key by which the test's controller sees that a holder is alive.
pub fn alive_key(holder: &HolderId) -> String {
    format!("/test/alive/{holder}")
}

#[test]
fn child() {
    let Some(arguments) = process::child_arguments("process::holder::child") else { return };
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    runtime.block_on(serve(&arguments));
}

/// Arguments: holder, directory, metadata endpoint, address for holders, address for clients, then `holder=address`.
async fn serve(arguments: &[String]) {
    let [me, dir, endpoint, listen, clients, peers @ ..] = arguments else { panic!("{arguments:?}") };
    let me: HolderId = me.parse().unwrap();
    let store = Store::new(Etcd::connect(EtcdOptions::new([endpoint])).await.unwrap());
    let margin = Duration::from_millis(600);
    let session =
        Session::start(store.clone(), SessionOptions { ttl: TTL, margin, ..SessionOptions::default() });
    let book = AddressBook::default();
    for peer in peers {
        let (holder, address) = peer.split_once('=').unwrap();
        book.set(holder.parse().unwrap(), address.parse().unwrap());
    }
    let timing = Timing {
        heartbeat: Duration::from_millis(50),
        resend: Duration::from_millis(200),
        lag: Duration::from_millis(1_000),
        ..Timing::default()
    };
    let options =
        HostOptions { timing, append_within: Duration::from_secs(2), ..HostOptions::new(me.clone()) };
    let disk = Options { segment_bytes: 256 * 1024, journal_file_bytes: 1 << 20, checkpoint_bytes: 1 << 20 };
    let disk = Disk::open(dir.as_ref(), disk).unwrap();
    let listener = TcpListener::bind(listen).await.unwrap();
    let clients = TcpListener::bind(clients).await.unwrap();
    let state = session.state();
    let host = Host::start(options, disk, store.clone(), state, Some(listener), book).await.unwrap();
    let log = host.open(&super::log_name(), Arc::new(NoSnapshots)).await.unwrap();
    let mut tasks = JoinSet::new();
    tasks.spawn(register(store, session, me));
    process::report_ready("serving");
    loop {
        let (stream, _) = clients.accept().await.unwrap();
        tasks.spawn(client(stream, log.clone()));
    }
}

/// Keeps the key on the present lease.
async fn register(store: Store, session: Session, me: HolderId) {
    let mut state = session.state();
    let mut registered = None;
    loop {
        let seen = *state.borrow_and_update();
        if let SessionState::Live { lease, .. } = seen
            && registered != Some(lease)
            && store.put(Put::new(alive_key(&me), "").lease(lease)).await.is_ok()
        {
            registered = Some(lease);
        }
        if state.changed().await.is_err() {
            return;
        }
    }
}

async fn client(stream: TcpStream, log: Log) {
    let mut stream = BufReader::new(stream);
    let mut line = String::new();
    while stream.read_line(&mut line).await.is_ok_and(|bytes| bytes > 0) {
        let answer = match line.trim_end().split_once(' ') {
            Some(("append", text)) => match log.append(vec![Bytes::from(text.to_owned())]).await {
                Ok((first, _)) => format!("ok {first}\n"),
                Err(error) => format!("no {error}\n"),
            },
            _ => read(&log).await.unwrap_or_else(|error| format!("no {error}\nend\n")),
        };
        if stream.write_all(answer.as_bytes()).await.is_err() {
            return;
        }
        line.clear();
    }
}

async fn read(log: &Log) -> Result<String, capstan_log::LogError> {
    let (mut from, mut answer) = (Offset::ZERO, String::new());
    loop {
        let batch = log.read(from, 1 << 20).await?;
        for entry in &batch.entries {
            answer += &format!("{} {}\n", entry.offset, String::from_utf8_lossy(&entry.data));
        }
        if batch.next == from {
            return Ok(answer + "end\n");
        }
        from = batch.next;
    }
}
