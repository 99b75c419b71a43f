//! Five holders, logs with three copies, and one fault after the other: holders that stop and return, return empty, are
//! drained and undrained. Acknowledged entries stay at their offsets, and all copies are restored.

use std::collections::BTreeMap;

use bytes::Bytes;
use capstan_control::api::{drain, undrain};
use capstan_log::{HolderId, LogName, Offset};
use capstan_steward::WantedLog;
use capstan_testkit::{eventually, seed};
use rand::RngExt;
use rand::rngs::StdRng;

use crate::cluster::{Cluster, SOON, log, service};

const HOLDERS: [&str; 5] = ["a", "b", "c", "d", "e"];
const LOGS: usize = 8;
/// Appends to each log after each event.
const APPENDS: usize = 3;

struct Chaos {
    cluster: Cluster,
    rng: StdRng,
    drained: Option<String>,
    /// Acknowledged entries, by log and offset.
    acknowledged: BTreeMap<LogName, BTreeMap<u64, String>>,
    appends: usize,
}

impl Chaos {
    async fn start(rng: StdRng) -> Chaos {
        let cluster = Cluster::start(&HOLDERS).await;
        let mut acknowledged = BTreeMap::new();
        for number in 0..LOGS {
            let name = log(&format!("log-{number}"));
            cluster.logs.create(&name, &WantedLog::new(service(), 3)).await.unwrap();
            acknowledged.insert(name, BTreeMap::new());
        }
        Chaos { cluster, rng, drained: None, acknowledged, appends: 0 }
    }

    fn names(&self) -> Vec<LogName> {
        self.acknowledged.keys().cloned().collect()
    }

    async fn append_everywhere(&mut self) {
        for name in self.names() {
            for _ in 0..APPENDS {
                self.appends += 1;
                let text = format!("entry {}", self.appends);
                let offset = self.cluster.append(&name, &text).await;
                let known = self.acknowledged.get_mut(&name).unwrap();
                let last = known.last_key_value().map_or(0, |(last, _)| last + 1);
                assert!(offset >= last, "{name}: offset {offset} was given before");
                known.insert(offset, text);
            }
        }
    }

    async fn all_complete(&self) {
        for name in self.names() {
            self.cluster
                .becomes("all copies are in sync", &name, |config| {
                    config.in_sync.len() == 3
                        && config.holders.len() == 3
                        && config.learner.is_none()
                        && config.leaving.is_none()
                })
                .await;
        }
    }

    /// One fault or recovery. One holder at a time is away, so that every log can commit.
    async fn event(&mut self) -> String {
        let away = HOLDERS.iter().find(|name| !self.cluster.holders.contains_key(&name.parse().unwrap()));
        if let Some(name) = away {
            self.cluster.begin(name).await;
            return format!("{name} comes back");
        }
        if let Some(host) = self.drained.take() {
            undrain(&self.cluster.store, &host.parse().unwrap(), "chaos", "").await.unwrap();
            return format!("{host} is taken back");
        }
        let name = HOLDERS[self.rng.random_range(0..HOLDERS.len())];
        let holder: HolderId = name.parse().unwrap();
        match self.rng.random_range(0..3) {
            0 => {
                self.cluster.end(&holder).await;
                format!("{name} ends")
            }
            1 => {
                self.all_complete().await;
                self.cluster.end(&holder).await;
                self.cluster.empty(name);
                self.cluster.begin(name).await;
                format!("{name} comes back empty")
            }
            _ => {
                let host = name.parse().unwrap();
                drain(&self.cluster.store, &host, "chaos", "", &[service()]).await.unwrap();
                self.drained = Some(name.to_owned());
                format!("{name} is drained")
            }
        }
    }

    /// Checks that everything acknowledged is at its offset, on every copy.
    async fn verify(&self) {
        for (name, known) in &self.acknowledged {
            let config = self.cluster.config(name).await;
            for holder in &config.in_sync {
                eventually("a copy has everything", SOON, async || {
                    // The steward may have taken the copy away meanwhile.
                    if !self.cluster.config(name).await.in_sync.contains(holder) {
                        return Ok(());
                    }
                    let copy = self.cluster.holders[holder].0.opened(name).ok_or("no copy")?;
                    let mut found: BTreeMap<u64, Bytes> = BTreeMap::new();
                    let mut from = Offset::ZERO;
                    loop {
                        let batch = copy.read(from, 1 << 20).await.map_err(|error| error.to_string())?;
                        if batch.next == from {
                            break;
                        }
                        from = batch.next;
                        found.extend(batch.entries.into_iter().map(|entry| (entry.offset.0, entry.data)));
                    }
                    let lacks = known
                        .iter()
                        .find(|(at, text)| found.get(at).is_none_or(|data| data != text.as_bytes()));
                    lacks.map_or(Ok(()), |(at, text)| Err(format!("{name} on {holder}: {at} is not {text}")))
                })
                .await;
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn nothing_acknowledged_is_lost_while_holders_come_and_go() {
    let number = seed::soak(7, rand::random());
    eprintln!("seed {number}");
    let mut chaos = Chaos::start(seed::rng(number)).await;
    for _ in 0..seed::soak(20, 200) {
        let event = chaos.event().await;
        eprintln!("{event}");
        chaos.append_everywhere().await;
    }
    while chaos.drained.is_some() || chaos.cluster.holders.len() < HOLDERS.len() {
        chaos.event().await;
    }
    chaos.append_everywhere().await;
    chaos.all_complete().await;
    chaos.verify().await;
}
