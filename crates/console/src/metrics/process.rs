//! What this process uses: processor time, memory, descriptors. Read from /proc when Prometheus asks, under the names that
//! every exporter uses.

use std::sync::atomic::AtomicU64;

use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

/// Kernel ticks a second; Linux reports 100 to programs on every machine.
const TICKS: f64 = 100.0;

/// What the process uses.
#[derive(Clone, Debug, Default)]
pub(super) struct ProcessMetrics {
    cpu: Counter<f64, AtomicU64>,
    resident: Gauge,
    descriptors: Gauge,
    threads: Gauge,
}

impl ProcessMetrics {
    pub(super) fn register(&self, registry: &mut Registry) {
        let sub = registry.sub_registry_with_prefix("process");
        sub.register_with_unit("cpu", "Processor time used", Unit::Seconds, self.cpu.clone());
        sub.register_with_unit("resident_memory", "Memory in use", Unit::Bytes, self.resident.clone());
        sub.register("open_fds", "Open file descriptors", self.descriptors.clone());
        sub.register("threads", "Threads", self.threads.clone());
    }

    /// Looks again. What cannot be read stays as it was.
    pub(super) fn refresh(&self) {
        if let Some((cpu, threads)) =
            std::fs::read_to_string("/proc/self/stat").ok().and_then(|stat| usage(&stat))
        {
            self.cpu.inner().store(cpu.to_bits(), std::sync::atomic::Ordering::Relaxed);
            self.threads.set(threads);
        }
        let status = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
        if let Some(kilobytes) = resident(&status) {
            self.resident.set(kilobytes * 1024);
        }
        if let Ok(open) = std::fs::read_dir("/proc/self/fd") {
            self.descriptors.set(i64::try_from(open.count()).unwrap_or(i64::MAX));
        }
    }
}

/// Seconds of the processor and threads, from /proc/self/stat. The name in parentheses may hold anything.
fn usage(stat: &str) -> Option<(f64, i64)> {
    let fields: Vec<&str> = stat.rsplit_once(") ")?.1.split(' ').collect();
    let number = |at: usize| fields.get(at)?.parse::<f64>().ok();
    Some(((number(11)? + number(12)?) / TICKS, fields.get(17)?.parse().ok()?))
}

fn resident(status: &str) -> Option<i64> {
    status.lines().find_map(|line| line.strip_prefix("VmRSS:"))?.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_is_understood() {
        let stat = "7 (a) b) S 1 2 3 4 5 6 7 8 9 10 150 50 0 0 20 0 9 0 100 1 2";
        assert_eq!(usage(stat), Some((2.0, 9)));
        assert_eq!(resident("Name:\tx\nVmRSS:\t   1234 kB\n"), Some(1234));
        let metrics = ProcessMetrics::default();
        metrics.refresh();
        assert!(metrics.resident.get() > 0 && metrics.descriptors.get() > 0 && metrics.threads.get() > 0);
    }
}
