//! What a broker does from time to time: reports its load, forgets clients and topics that are gone, drops old messages.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use capstan_meta::record::Extra;

use super::broker::Inner;
use super::retention;
use super::watchdog::Sample;
use crate::data::now_ms;
use crate::data::partition::Partition;
use crate::data::subscription::Subscription;
use crate::keys::{HealthKey, LoadKey, ProducerKey, Topics};
use crate::metrics::Census;
use crate::spec::{Delivery, TopicName};
use crate::status::{BrokerHealth, LoadReport, Problem, ResourceUsage};

/// How often clients and topics are looked at.
const SWEEP: Duration = Duration::from_secs(5);
/// Topics whose subscriptions are loaded in one sweep.
const LOADED_AT_ONCE: usize = 64;
/// Sweeps between two load reports.
const REPORT_EVERY: u32 = 6;

pub(super) async fn run(inner: Arc<Inner>) {
    let mut sweeps: u32 = 0;
    let mut cpu = Cpu::default();
    let mut reported = Vec::new();
    loop {
        if sweeps.is_multiple_of(REPORT_EVERY) {
            inner.session.declare(&LoadKey { broker: inner.id }, &report(&inner, &mut cpu));
        }
        sweep(&inner).await;
        retention::enforce(&inner).await;
        inner.counters().set(inner.id, census(&inner));
        watch(&inner, &mut reported, sweeps.is_multiple_of(REPORT_EVERY)).await;
        sweeps = sweeps.wrapping_add(1);
        tokio::time::sleep(SWEEP).await;
    }
}

async fn sweep(inner: &Inner) {
    for (producer, topic) in inner.clients.forget_silent() {
        let key = ProducerKey { namespace: topic.namespace, topic: topic.local, producer };
        inner.session.withdraw(&key).await;
    }
    for partition in inner.partitions() {
        if partition.is_over() {
            partition.end_now();
            inner.forget(&partition.name);
        }
    }
}

/// Reports what is wrong when it has changed; the numbers in it now and then.
async fn watch(inner: &Arc<Inner>, reported: &mut Vec<Problem>, anew: bool) {
    load_subscriptions(inner).await;
    let now = now_ms();
    let partitions = inner.partitions();
    let problems = {
        let mut watchdog = inner.watchdog();
        watchdog.observe(partitions.iter().flat_map(samples), now);
        watchdog.keep(|topic| partitions.iter().any(|partition| partition.name == *topic));
        watchdog.not_compacted(uncompacted(inner), now);
        watchdog.problems(now)
    };
    let names = |problems: &[Problem]| -> Vec<_> {
        let name = |p: &Problem| (p.kind, p.topic.clone(), p.subscription.clone(), p.since);
        problems.iter().map(name).collect()
    };
    if names(&problems) == names(reported) && !(anew && problems != *reported) {
        return;
    }
    let key = HealthKey { broker: inner.id };
    if problems.is_empty() {
        inner.session.withdraw(&key).await;
    } else {
        inner.session.declare(&key, &BrokerHealth { problems: problems.clone() });
    }
    *reported = problems;
}

/// The topics led here that are to be compacted, if this broker cannot do it.
fn uncompacted(inner: &Inner) -> Vec<TopicName> {
    if inner.tier.is_some() {
        return Vec::new();
    }
    let topics = inner.view.snapshot().list(&Topics {});
    let led = topics.iter().filter(|(_, stored)| {
        stored.record.delivery != Delivery::NonReliable && inner.leading(&stored.record).is_some()
    });
    let to_compact = led.filter_map(|(key, stored)| {
        let name = TopicName { namespace: key.namespace.clone(), local: key.topic.clone() };
        let policy = stored.record.storage.or(inner.policy(&name).storage);
        policy.tombstone_grace().map(|_| name)
    });
    to_compact.collect()
}

/// The subscriptions of a topic whose messages are delivered to nobody are loaded once: their backlog may grow.
async fn load_subscriptions(inner: &Arc<Inner>) {
    let unknown =
        inner.partitions().into_iter().filter(|partition| partition.is_reliable() && partition.grew());
    for partition in unknown.take(LOADED_AT_ONCE) {
        match inner.load_subscriptions(&partition).await {
            Ok(()) => partition.loaded_all.store(true, Ordering::Relaxed),
            Err(error) => {
                tracing::debug!(topic = %partition.text, %error, "subscriptions were not loaded; trying again");
            }
        }
    }
}

fn samples(partition: &Arc<Partition>) -> Vec<Sample> {
    if !partition.is_reliable() {
        return Vec::new();
    }
    let end = partition.end();
    let sample = |subscription: &Arc<Subscription>| {
        let report = subscription.report();
        let acknowledged = report.floor + report.acknowledged;
        Sample {
            topic: partition.name.clone(),
            subscription: subscription.name.clone(),
            backlog: end.saturating_sub(acknowledged),
            acknowledged,
            in_flight: report.in_flight,
        }
    };
    partition.all_subscriptions().iter().map(sample).collect()
}

/// What this broker has at the moment.
fn census(inner: &Inner) -> Census {
    let mut census = Census::default();
    (census.producers, census.consumers) = inner.clients.counts();
    for partition in inner.partitions() {
        census.topics += 1;
        census.missed += partition.dropped.load(Ordering::Relaxed);
        for subscription in partition.all_subscriptions() {
            let report = subscription.report();
            census.subscriptions += 1;
            census.in_flight += report.in_flight;
            let behind = partition.end().saturating_sub(report.floor);
            census.backlog += behind.saturating_sub(report.acknowledged);
        }
    }
    census
}

fn report(inner: &Inner, cpu: &mut Cpu) -> LoadReport {
    let partitions = inner.partitions();
    let topic_list: Vec<String> = partitions.iter().map(|partition| partition.text.clone()).collect();
    let usage = |resource: &str, usage| ResourceUsage { resource: resource.to_owned(), usage };
    LoadReport {
        resources_usage: vec![usage("CPU", cpu.percent()), usage("Memory", memory_percent())],
        topics_len: topic_list.len(),
        topic_list,
        extra: Extra::default(),
    }
}

/// The processor time of the machine, between two looks.
#[derive(Debug, Default)]
struct Cpu {
    busy: u64,
    total: u64,
}

impl Cpu {
    fn percent(&mut self) -> u32 {
        let text = std::fs::read_to_string("/proc/stat").unwrap_or_default();
        let line = text.lines().next().unwrap_or_default();
        let times: Vec<u64> = line.split_whitespace().skip(1).filter_map(|time| time.parse().ok()).collect();
        let (total, idle) = (times.iter().sum::<u64>(), times.iter().skip(3).take(2).sum::<u64>());
        let busy = total.saturating_sub(idle);
        let percent = share(busy.saturating_sub(self.busy), total.saturating_sub(self.total));
        (self.busy, self.total) = (busy, total);
        percent
    }
}

fn memory_percent() -> u32 {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let field = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name))?;
        line.split_whitespace().nth(1)?.parse::<u64>().ok()
    };
    let (Some(total), Some(free)) = (field("MemTotal:"), field("MemAvailable:")) else { return 0 };
    share(total.saturating_sub(free), total)
}

fn share(part: u64, whole: u64) -> u32 {
    u32::try_from(part.saturating_mul(100).checked_div(whole).unwrap_or_default()).unwrap_or(100)
}
