//! How does a process check itself? It probes all proxies and reports the results, probes its own proxies to decide
//! whether it is ready, and logs findings that appear and disappear.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::Result;
use capstan_console::{Findings, Metrics};
use capstan_control::events;
use capstan_control::findings::{Code, Finding, Severity};
use capstan_control::keys::HostId;
use capstan_control::report::Reporter;
use capstan_meta::Store;
use capstan_meta::session::Session;
use capstan_meta::view::{View, ViewOptions};
use capstan_redis::Address;
use capstan_redis::coordinator::Wire;
use capstan_redis::facts::Tree;
use capstan_redis::health::{self, Prober, probe_all};
use tokio::time::{Instant, sleep};
use tokio_util::sync::CancellationToken;

use super::process::{LOOP, Process};
use crate::commands::events::line;
use crate::output::say;

/// Timeout of a probe. Longer than a coordinator waits: a slow proxy is not a dead one.
const PROBE_WITHIN: Duration = Duration::from_secs(2);
/// How often a process checks itself: before it is ready, and afterwards.
const LOOK_EVERY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(1));
/// The age at which a finding is logged: transient ones during a start are not.
const LOGGED_AFTER: Duration = Duration::from_secs(3);
/// How long `capstan up` waits to be green before it announces that it is up anyway.
const GREEN_WITHIN: Duration = Duration::from_secs(10);

/// Probes proxies with this secret.
pub(crate) fn probing(secret: &str) -> Arc<Wire> {
    Arc::new(Wire::new(Some(secret.to_owned()), PROBE_WITHIN))
}

/// Probes every proxy of the cluster and reports the results while the process runs.
pub(crate) fn start_prober(
    process: &Process,
    store: &Store,
    session: &Session,
    wire: Arc<Wire>,
    id: &str,
    metrics: &Metrics,
) -> Result<()> {
    // Several processes of one machine may have the same id.
    let reporter: HostId = format!("{id}.{}", std::process::id()).parse()?;
    let (store, session, metrics) = (store.clone(), session.clone(), metrics.clone());
    process.supervisor.start(LOOP, "redis prober", move |stop| {
        let (store, session, wire) = (store.clone(), session.clone(), wire.clone());
        let (reporter, metrics) = (reporter.clone(), metrics.clone());
        async move {
            let view = View::open(store, Tree::ranges(), ViewOptions::default()).await?;
            let reporter = Reporter::new(session, health::SERVICE.parse()?, reporter);
            Prober::new(wire, view, reporter).run(|probed| metrics.redis.set(probed), &stop).await;
            Ok(())
        }
    });
    Ok(())
}

/// The part `redis` of this process is ready while a write through each of its proxies succeeds.
pub(crate) fn watch_proxies(process: &Process, store: &Store, secret: &str, proxies: Vec<Address>) {
    const PART: &str = "redis";
    process.health.waiting(PART, "no write has succeeded yet");
    let (store, wire, health) = (store.clone(), probing(secret), process.health.clone());
    process.supervisor.start(LOOP, "redis readiness", move |stop| {
        let (store, wire, health, proxies) = (store.clone(), wire.clone(), health.clone(), proxies.clone());
        async move {
            let view = View::open(store, Tree::ranges(), ViewOptions::default()).await?;
            while !stop.is_cancelled() {
                let why = trouble(&wire, &Tree::of(&view.snapshot()), &proxies).await;
                let pause = if why.is_some() { LOOK_EVERY.0 } else { LOOK_EVERY.1 };
                match why {
                    Some(why) => health.waiting(PART, why),
                    None => health.ready(PART),
                }
                tokio::select! {
                    () = stop.cancelled() => {}
                    () = sleep(pause) => {}
                }
            }
            Ok(())
        }
    });
}

/// Why these proxies do not serve, if so.
async fn trouble(wire: &Arc<Wire>, tree: &Tree, proxies: &[Address]) -> Option<String> {
    if let Some(absent) = proxies.iter().find(|proxy| tree.host(proxy).is_none()) {
        return Some(format!("proxy {absent} is not registered yet"));
    }
    let probed = probe_all(wire, tree, |proxy| proxies.contains(proxy)).await;
    let bad =
        |finding: &&Finding| finding.severity == Severity::Critical || finding.code == health::PROXY_DOWN;
    let worst = probed.findings.iter().find(bad);
    worst.map(|finding| format!("{}: {}", finding.object, finding.cause))
}

/// `capstan up` announces that it is up when the cluster is green, or after a timeout.
pub(crate) fn await_green(process: &Process, findings: &Findings) {
    const PART: &str = "status";
    process.health.waiting(PART, "not green yet");
    let (findings, health) = (findings.clone(), process.health.clone());
    process.start_once(LOOP, PART, async move |stop| {
        let begun = Instant::now();
        while begun.elapsed() < GREEN_WITHIN && !stop.is_cancelled() && !findings.health().await.is_green() {
            sleep(LOOK_EVERY.0).await;
        }
        health.ready(PART);
        stop.cancelled().await;
        Ok(())
    });
}

/// Logs every finding that persists, and every one that is cleared.
pub(crate) fn log_findings(process: &Process, findings: &Findings) {
    let findings = findings.clone();
    process.start_once(LOOP, "findings", async move |stop| {
        follow(&findings, &stop).await;
        Ok(())
    });
}

async fn follow(findings: &Findings, stop: &CancellationToken) {
    let mut standing: BTreeMap<(Code, String), (Instant, bool)> = BTreeMap::new();
    while !stop.is_cancelled() {
        let health = findings.health().await;
        let name = |finding: &Finding| (finding.code.clone(), finding.object.clone());
        let serious = || health.findings.iter().filter(|finding| finding.severity > Severity::Notice);
        for finding in serious() {
            let (since, logged) = standing.entry(name(finding)).or_insert((Instant::now(), false));
            if !*logged && since.elapsed() >= LOGGED_AFTER {
                *logged = true;
                raise(finding);
            }
        }
        standing.retain(|(code, object), (_, logged)| {
            let stands = serious().any(|finding| finding.code == *code && finding.object == *object);
            if !stands && *logged {
                tracing::info!(%code, object, "finding cleared");
            }
            stands
        });
        tokio::select! {
            () = stop.cancelled() => {}
            () = sleep(LOOK_EVERY.1) => {}
        }
    }
}

/// Prints events and findings on the terminal of `capstan up`: one line for each.
pub(crate) fn show_events(process: &Process, store: &Store, findings: &Findings, greeted: Arc<AtomicBool>) {
    let (store, findings) = (store.clone(), findings.clone());
    process.start_once(LOOP, "screen", async move |stop| {
        let mut newest = None;
        let mut known: Option<Vec<(Code, String)>> = None;
        while !stop.is_cancelled() {
            let events = events::list(&store, newest.as_ref()).await.unwrap_or_default();
            newest = events.last().map(|event| event.id.clone()).or(newest);
            let health = findings.health().await;
            let serious = health.findings.iter().filter(|finding| finding.severity > Severity::Notice);
            let now: Vec<(Code, String)> =
                serious.map(|found| (found.code.clone(), found.object.clone())).collect();
            // Events before the banner belong to the start.
            if let Some(before) = known.replace(now.clone()).filter(|_| greeted.load(Ordering::Acquire)) {
                events.iter().for_each(|event| say(line(event)));
                let came = health.findings.iter().filter(|found| {
                    let name = (found.code.clone(), found.object.clone());
                    now.contains(&name) && !before.contains(&name)
                });
                came.for_each(|found| {
                    say(format!("{}: {}: {}: {}", found.severity, found.code, found.object, found.cause))
                });
                let gone = before.iter().filter(|name| !now.contains(name));
                gone.for_each(|(code, object)| say(format!("cleared: {code}: {object}")));
            }
            tokio::select! {
                () = stop.cancelled() => {}
                () = sleep(LOOK_EVERY.1) => {}
            }
        }
        Ok(())
    });
}

fn raise(finding: &Finding) {
    let Finding { code, object, cause, .. } = finding;
    match finding.severity {
        Severity::Critical => tracing::error!(%code, object, cause, "critical finding"),
        Severity::Degraded | Severity::Notice => tracing::warn!(%code, object, cause, "finding"),
    }
}
