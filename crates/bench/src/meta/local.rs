//! In-process measurements: the embedded store without the network, as `capstan up` uses it.

use std::path::Path;
use std::sync::Arc;

use anyhow::{Result, ensure};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::{Backend as _, Put, Range, Txn};

use super::Size;
use super::wire::{BATCH, key, value};
use crate::load::{load, median};
use crate::{Row, progress};

/// Writers and readers, as many as there are clients over the wire.
const WORKERS: usize = 64;

/// Puts and gets of the embedded store beside etcd's figures over the wire.
pub(super) async fn rows(size: Size, dir: &Path, version: &str, put: f64, get: f64) -> Result<Vec<Row>> {
    let store = Arc::new(Embedded::open(&dir.join("local"), Options::default()).await?);
    fill(&store, size.range).await?;
    let (mut puts, mut gets) = (Vec::new(), Vec::new());
    for round in 0..size.rounds {
        progress(&format!("in process, round {}", round + 1));
        puts.push(put_rate(&store, size, round).await?);
        gets.push(get_rate(&store, size).await?);
    }
    let peer = format!("{version}, over the wire");
    Ok(vec![
        Row::new("in process: put, 64 writers", median(puts), &peer, put, "/s"),
        Row::new("in process: linearizable get, 64 readers", median(gets), &peer, get, "/s"),
    ])
}

async fn fill(store: &Embedded, keys: usize) -> Result<()> {
    for first in (0..keys).step_by(BATCH) {
        let puts = (first..keys.min(first + BATCH)).map(|number| Put::new(key(number), value()));
        store.commit(puts.fold(Txn::new(), Txn::then)).await?;
    }
    Ok(())
}

async fn put_rate(store: &Arc<Embedded>, size: Size, round: usize) -> Result<f64> {
    let store = Arc::clone(store);
    let request = move |who: usize, number: u64| {
        let store = Arc::clone(&store);
        async move {
            let key = format!("/bench/put/{round}/{who:02}/{:06}", number % 1000);
            store.put(Put::new(key, value())).await?;
            Ok(())
        }
    };
    Ok(load(WORKERS, size.cell, request).await?.rate)
}

async fn get_rate(store: &Arc<Embedded>, size: Size) -> Result<f64> {
    let store = Arc::clone(store);
    let request = move |who: usize, number: u64| {
        let store = Arc::clone(&store);
        let key = key((who + usize::try_from(number).unwrap_or_default() * 64) % size.range);
        async move {
            let found = store.range(Range::one(key)).await?;
            ensure!(found.kvs.len() == 1, "a key of the benchmark is missing");
            // A reader that never waits would block its core for the others.
            tokio::task::coop::consume_budget().await;
            Ok(())
        }
    };
    Ok(load(WORKERS, size.cell, request).await?.rate)
}
