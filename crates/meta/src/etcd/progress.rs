//! Proof of progress on servers whose own is not ordered with events (etcd before 3.4.25 and 3.5.8): the watched keys
//! are read, and nothing may have changed since the last event that was delivered.
//!
//! If no key was modified after revision L and there are as many keys as at L, then the keys are those of L: whoever
//! applied every event up to L has the state of now. (A key that was put and deleted again in between leaves no trace;
//! its two events still come, and change nothing.)

use std::sync::Arc;

use futures_util::future::BoxFuture;

use super::connection::kv;
use super::{Link, answer, request};
use crate::error::Result;
use crate::kv::{KeyRange, Revision};
use crate::request::{Detail, Range};

/// A revision, and how many of the watched keys there were.
#[derive(Clone, Copy, Debug)]
pub(super) struct Base {
    revision: i64,
    keys: Option<usize>,
}

/// The search for a proof that nothing has changed since a revision.
#[derive(Default)]
pub(super) struct Proof {
    base: Option<Base>,
    wanted: bool,
    running: Option<BoxFuture<'static, Option<Base>>>,
}

impl Proof {
    /// Somebody wants to know.
    pub(super) fn want(&mut self, link: &Arc<Link>, keys: &KeyRange, next: i64) {
        self.wanted = true;
        self.start(link, keys, next);
    }

    /// Events were delivered: whatever is known is about the past.
    pub(super) fn invalidate(&mut self, link: &Arc<Link>, keys: &KeyRange, next: i64) {
        self.base = None;
        self.running = None;
        if self.wanted {
            self.start(link, keys, next);
        }
    }

    fn start(&mut self, link: &Arc<Link>, keys: &KeyRange, next: i64) {
        if self.running.is_none() && next > 0 {
            let base = self.base.unwrap_or(Base { revision: next - 1, keys: None });
            let (link, keys) = (Arc::clone(link), keys.clone());
            self.running = Some(Box::pin(async move { search(&link, keys, base).await.ok().flatten() }));
        }
    }

    /// The revision up to which nothing has changed, when a search has found that out. Cancel-safe.
    pub(super) async fn found(&mut self) -> Option<Revision> {
        let Some(running) = self.running.as_mut() else { return std::future::pending().await };
        let found = running.await;
        self.running = None;
        let base = found?;
        self.wanted = false;
        self.base = Some(base);
        Some(Revision(base.revision))
    }
}

async fn search(link: &Link, keys: KeyRange, base: Base) -> Result<Option<Base>> {
    let count = Range::of(keys.clone()).detail(Detail::CountOnly);
    let before = match base.keys {
        Some(keys) => keys,
        // Before the first write there was nothing, and revision 0 would mean "now".
        None if base.revision <= Revision::FIRST.0 => 0,
        None => read(link, count.at(Revision(base.revision))).await?.count,
    };
    let newer = Range {
        min_mod_revision: Revision(base.revision + 1),
        ..Range::of(keys).detail(Detail::KeysOnly).limit(1)
    };
    let now = read(link, newer).await?;
    let same = now.kvs.is_empty() && now.count == before;
    Ok(same.then_some(Base { revision: now.revision.0, keys: Some(now.count) }))
}

async fn read(link: &Link, range: Range) -> Result<crate::request::RangeResult> {
    let (key, options) = request::range(&link.prefix, &range)?;
    let read = link.read(|client| {
        let (key, options) = (key.clone(), options.clone());
        async move { kv(&client).get(key, Some(options)).await }
    });
    Ok(answer::range(&link.prefix, read.await?))
}
