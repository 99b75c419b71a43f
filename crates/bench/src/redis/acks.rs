//! What does waiting for a replica cost? The same primary and replica behind two proxies: one acknowledges after the
//! primary has the write, one after the replica.

use std::path::Path;
use std::time::Instant;

use anyhow::{Result, bail, ensure};

use super::client::{Run, drive};
use super::servers::{Node, POLL_EVERY, Running, START_DEADLINE, ask};
use super::{CLIENTS, Size};
use crate::load::median;
use crate::{Row, progress};

/// `SET` with and without waiting for a replica.
pub(super) async fn rows(size: Size, dir: &Path) -> Result<Vec<Row>> {
    let (primary, replica) = (Node::start(dir).await?, Node::start(dir).await?);
    follow(&replica, &primary).await?;
    let plain = front((&primary, &replica), dir, "primary").await?;
    let strict = front((&primary, &replica), dir, "replica").await?;
    let mut rows = Vec::new();
    for pipeline in [1, 16] {
        let run = Run { command: "set", clients: CLIENTS, pipeline, requests: size.requests(pipeline) };
        let (mut by_primary, mut by_replica) = (Vec::new(), Vec::new());
        for round in 0..size.rounds {
            progress(&format!("redis acks, pipeline {pipeline}, round {}", round + 1));
            by_primary.push(drive(plain.port, run).await?);
            by_replica.push(drive(strict.port, run).await?);
        }
        let what = format!("SET with pipeline {pipeline}, acknowledged by a replica");
        let (ours, theirs) = (median(by_replica), median(by_primary));
        rows.push(Row::new(&what, ours, "acknowledged by the primary", theirs, "requests/s"));
    }
    Ok(rows)
}

async fn follow(replica: &Node, primary: &Node) -> Result<()> {
    ask(replica.port, &format!("REPLICAOF 127.0.0.1 {}\r\n", primary.port)).await?;
    let begin = Instant::now();
    while begin.elapsed() < START_DEADLINE {
        if ask(replica.port, "INFO replication\r\n").await?.contains("master_link_status:up") {
            return Ok(());
        }
        tokio::time::sleep(POLL_EVERY).await;
    }
    bail!("the replica is not in sync after {START_DEADLINE:?}")
}

/// A proxy that has what coordinators push: the slots, the settings, and the replica that may be promoted.
async fn front((primary, replica): (&Node, &Node), dir: &Path, acks: &str) -> Result<Running> {
    let proxy = Running::proxy(&format!("acks-{acks}"), dir).await?;
    for message in [
        format!("NMCTL SETDB 1 NOFLAG bench 127.0.0.1:{} 0-16383\r\n", primary.port),
        format!(
            "*6\r\n$5\r\nNMCTL\r\n$7\r\nSETCONF\r\n$1\r\n1\r\n$6\r\nNOFLAG\r\n$5\r\nbench\r\n{}",
            settings(acks)
        ),
        format!("NMCTL SETSYNC 1 NOFLAG bench 127.0.0.1:{} 1 127.0.0.1:{}\r\n", primary.port, replica.port),
    ] {
        let reply = ask(proxy.port, &message).await?;
        ensure!(reply.starts_with("+OK"), "the proxy refused {message:?}: {reply}");
    }
    Ok(proxy)
}

/// As a bulk string: quotes are not part of an inline command.
fn settings(acks: &str) -> String {
    let json = format!("{{\"acks\":\"{acks}\"}}");
    format!("${}\r\n{json}\r\n", json.len())
}
