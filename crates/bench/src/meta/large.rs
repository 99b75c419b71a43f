//! A large store: how fast it opens after a clean stop and after kill -9, and how much memory it uses.

use std::path::Path;

use anyhow::{Result, ensure};
use etcd_client::GetOptions;

use super::Size;
use super::wire::fill;
use crate::peer::{Kind, Peer};
use crate::{Row, progress};

/// Concurrent loading transactions.
const LOADS_AT_A_TIME: usize = 16;

/// The figures of one server.
struct Figures {
    rss_loaded_mib: f64,
    rss_opened_mib: f64,
    open_ms: f64,
    open_after_kill_ms: f64,
}

pub(super) async fn rows(size: Size, dir: &Path, version: &str) -> Result<Vec<Row>> {
    let ours = measure(Kind::Ours, size, dir).await?;
    let etcd = measure(Kind::Etcd, size, dir).await?;
    let keys = size.keys;
    let row = |name: &str, figure: fn(&Figures) -> f64, unit: &str| {
        Row::new(&format!("{keys} keys: {name}"), figure(&ours), version, figure(&etcd), unit)
    };
    Ok(vec![
        row("open after a clean stop", |figures| figures.open_ms, "ms"),
        row("open after kill -9", |figures| figures.open_after_kill_ms, "ms"),
        row("memory after loading them", |figures| figures.rss_loaded_mib, "MiB"),
        row("memory after opening", |figures| figures.rss_opened_mib, "MiB"),
    ])
}

async fn measure(kind: Kind, size: Size, dir: &Path) -> Result<Figures> {
    let mut peer = Peer::new(kind, &dir.join("large"))?;
    peer.start().await?;
    progress(&format!("{:?}: loading {} keys", kind, size.keys));
    fill(&peer.client().await?, size.keys, LOADS_AT_A_TIME).await?;
    let rss_loaded_mib = peer.rss_mib()?;
    peer.stop().await?;
    progress(&format!("{kind:?}: opening"));
    let open = peer.start().await?;
    check(&peer, size).await?;
    let rss_opened_mib = peer.rss_mib()?;
    peer.kill9().await?;
    let open_after_kill = peer.start().await?;
    check(&peer, size).await?;
    peer.stop().await?;
    Ok(Figures {
        rss_loaded_mib,
        rss_opened_mib,
        open_ms: open.as_secs_f64() * 1e3,
        open_after_kill_ms: open_after_kill.as_secs_f64() * 1e3,
    })
}

/// Checks that all keys are there.
async fn check(peer: &Peer, size: Size) -> Result<()> {
    let options = GetOptions::new().with_prefix().with_count_only();
    let count = peer.client().await?.get("/bench/large/keys/", Some(options)).await?.count();
    ensure!(usize::try_from(count)? == size.keys, "{count} of {} keys are there", size.keys);
    Ok(())
}
