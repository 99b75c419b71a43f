//! Is all well? The one function that combines what every service contributes, and a cache of its last answer.
//!
//! `capstan status`, `/readyz`, `/healthz`, `redis check`, the pages and the metrics read this and nothing else. A
//! service adds itself in [`collect`]: one future that returns findings.

mod docs;
mod fleet;
mod logs;
mod redis;
mod services;
mod topics;

use std::sync::Arc;
use std::time::Duration;

use capstan_control::check::{Facts, META_UNREACHABLE};
use capstan_control::findings::{Finding, Health, Severity};
use capstan_control::report::{Beginnings, now_ms};
use capstan_fleet::Tree;
use capstan_meta::{Store, clock};
use tokio::sync::{Mutex, watch};
use tokio::time::Instant;

/// How long the store may take for one look.
const COLLECT_WITHIN: Duration = Duration::from_secs(3);
/// An answer may be this old.
const FRESH_FOR: Duration = Duration::from_millis(900);

pub use services::ServiceFindings;

/// Looks at everything: metadata of all services, live reports, incidents.
pub async fn collect(store: &Store, fleet: &Tree) -> Health {
    let read = async {
        let kernel = Facts::read(store).await.map_err(|error| error.to_string())?;
        let now = now_ms();
        let mut found = kernel.findings(now);
        let (redis, fleet, logs, topics, docs) = tokio::join!(
            redis::findings(store, &kernel.reports, now),
            fleet::findings(store, fleet),
            logs::findings(store, now / 1000),
            topics::findings(store),
            docs::findings(store)
        );
        found.extend(redis?);
        found.extend(fleet?);
        found.extend(logs?);
        found.extend(topics?);
        found.extend(docs?);
        Ok::<Vec<Finding>, String>(found)
    };
    match tokio::time::timeout(COLLECT_WITHIN, read).await {
        Ok(Ok(found)) => Health::of(found),
        Ok(Err(why)) => Health::of([unreachable(&why)]),
        Err(_) => Health::of([unreachable(&format!("no answer within {} s", COLLECT_WITHIN.as_secs()))]),
    }
}

/// Without the metadata nothing is known, and nothing can be decided.
#[must_use]
pub fn unreachable(why: &str) -> Finding {
    Finding::new(
        META_UNREACHABLE,
        Severity::Critical,
        "metadata store",
        format!("it cannot be read: {why}"),
        "start it, or correct meta.endpoints; `capstan meta status` asks it directly",
    )
}

fn health_is_known(health: &Health) -> bool {
    health.findings.iter().all(|finding| finding.code != META_UNREACHABLE)
}

/// What a process last found, asked again when that is too old. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Findings {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    store: Store,
    fleet: Tree,
    // Held while the store is asked, so that many requests at once are one look.
    last: Mutex<Last>,
    latest: watch::Sender<Option<(Instant, Arc<Health>)>>,
}

#[derive(Debug, Default)]
struct Last {
    at: Option<Instant>,
    health: Arc<Health>,
    since: Beginnings,
}

impl Findings {
    /// Nothing was looked at yet.
    #[must_use]
    pub fn new(store: Store, fleet: Tree) -> Findings {
        Findings {
            inner: Arc::new(Inner { store, fleet, last: Mutex::default(), latest: watch::Sender::default() }),
        }
    }

    /// What was found by the last look that succeeded and when, without asking.
    fn latest(&self) -> Option<(Instant, Arc<Health>)> {
        self.inner.latest.borrow().clone()
    }

    /// Everything that is wrong now.
    pub async fn health(&self) -> Arc<Health> {
        let mut last = self.inner.last.lock().await;
        if last.at.is_none_or(|at| at.elapsed() > FRESH_FOR) {
            let mut health = collect(&self.inner.store, &self.inner.fleet).await;
            last.since.mark(&mut health.findings, clock::since_epoch().as_secs());
            last.health = Arc::new(health);
            last.at = Some(Instant::now());
            // A look that failed says nothing about hosts: the one before counts until it is too old.
            if health_is_known(&last.health) {
                self.inner.latest.send_replace(Some((Instant::now(), last.health.clone())));
            }
        }
        last.health.clone()
    }
}
