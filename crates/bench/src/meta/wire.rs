//! Measurements over gRPC: puts, transactions, reads, through the etcd-client crate on one connection.

use anyhow::Result;
use etcd_client::{Client, Compare, CompareOp, GetOptions, Txn, TxnOp};

use super::Size;
use crate::load::{Load, load};

/// Bytes of a value.
pub(super) const VALUE_BYTES: usize = 200;
/// Puts per loading transaction: etcd allows 128.
pub(super) const BATCH: usize = 128;

/// One measurement over gRPC.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cell {
    Put1,
    Put64,
    Txn64,
    Get1,
    Get64,
    Range,
}

impl Cell {
    pub(super) const ALL: &[Cell] =
        &[Cell::Put1, Cell::Put64, Cell::Txn64, Cell::Get1, Cell::Get64, Cell::Range];

    /// Name of its row.
    pub(super) fn name(self, range: usize) -> String {
        match self {
            Cell::Put1 => "wire: put, 1 client".to_owned(),
            Cell::Put64 => "wire: put, 64 clients".to_owned(),
            Cell::Txn64 => "wire: txn (1 compare, 2 puts), 64 clients".to_owned(),
            Cell::Get1 => "wire: linearizable get, 1 client".to_owned(),
            Cell::Get64 => "wire: linearizable get, 64 clients".to_owned(),
            Cell::Range => format!("wire: range of {range} keys, 1 client"),
        }
    }

    /// Answered requests per second.
    pub(super) async fn measure(self, client: Client, size: Size, round: usize) -> Result<f64> {
        let Load { rate, p50_ms, .. } = match self {
            Cell::Put1 => put(client, 1, size, round).await?,
            Cell::Put64 => put(client, 64, size, round).await?,
            Cell::Txn64 => txn(client, size, round).await?,
            Cell::Get1 => get(client, 1, size).await?,
            Cell::Get64 => get(client, 64, size).await?,
            Cell::Range => range(client, size).await?,
        };
        tracing::debug!(cell = ?self, round, rate, p50_ms, "measured");
        Ok(rate)
    }
}

/// A value to write.
pub(super) fn value() -> Vec<u8> {
    vec![b'v'; VALUE_BYTES]
}

/// A key of 31 bytes.
pub(super) fn key(number: usize) -> String {
    format!("/bench/large/keys/{number:013}")
}

async fn put(client: Client, clients: usize, size: Size, round: usize) -> Result<Load> {
    let request = move |who: usize, number: u64| {
        let mut kv = client.kv_client();
        async move {
            let key = format!("/bench/put/{round}/{who:02}/{:06}", number % 1000);
            kv.put(key, value(), None).await?;
            Ok(())
        }
    };
    load(clients, size.cell, request).await
}

/// One guard that always holds and two writes: the shape of a controller's step.
async fn txn(client: Client, size: Size, round: usize) -> Result<Load> {
    let request = move |who: usize, number: u64| {
        let mut kv = client.kv_client();
        async move {
            let guard = Compare::create_revision("/bench/absent", CompareOp::Equal, 0);
            let [one, two] = ["a", "b"].map(|side| {
                TxnOp::put(format!("/bench/txn/{round}/{who:02}/{:06}{side}", number % 1000), value(), None)
            });
            kv.txn(Txn::new().when([guard]).and_then([one, two])).await?;
            Ok(())
        }
    };
    load(64, size.cell, request).await
}

async fn get(client: Client, clients: usize, size: Size) -> Result<Load> {
    let request = move |who: usize, number: u64| {
        let mut kv = client.kv_client();
        let key = key((who + usize::try_from(number).unwrap_or_default() * 64) % size.range);
        async move {
            let found = kv.get(key, None).await?;
            anyhow::ensure!(found.kvs().len() == 1, "a key of the benchmark is missing");
            Ok(())
        }
    };
    load(clients, size.cell, request).await
}

async fn range(client: Client, size: Size) -> Result<Load> {
    let request = move |_: usize, _: u64| {
        let mut kv = client.kv_client();
        async move {
            let found = kv.get("/bench/large/keys/", Some(GetOptions::new().with_prefix())).await?;
            anyhow::ensure!(found.kvs().len() == size.range, "the range is incomplete");
            Ok(())
        }
    };
    load(1, size.cell, request).await
}

/// Writes the keys that are read.
pub(super) async fn prepare(client: &Client, keys: usize) -> Result<()> {
    fill(client, keys, 4).await
}

/// Writes keys 0 to `keys` in large transactions, several concurrently.
pub(super) async fn fill(client: &Client, keys: usize, at_a_time: usize) -> Result<()> {
    let mut tasks = tokio::task::JoinSet::new();
    for first in (0..keys).step_by(BATCH) {
        if tasks.len() >= at_a_time
            && let Some(done) = tasks.join_next().await
        {
            done??;
        }
        let mut kv = client.kv_client();
        let puts: Vec<TxnOp> =
            (first..keys.min(first + BATCH)).map(|number| TxnOp::put(key(number), value(), None)).collect();
        tasks.spawn(async move { kv.txn(Txn::new().and_then(puts)).await.map(drop) });
    }
    while let Some(done) = tasks.join_next().await {
        done??;
    }
    Ok(())
}
