//! The machine that the figures were measured on; every benchmark page shows it.

use std::path::Path;

/// One line per fact: name and value.
pub(crate) fn facts(dir: &Path) -> Vec<(&'static str, String)> {
    vec![
        ("Processor", processor()),
        ("Memory", memory()),
        ("Kernel", kernel()),
        ("Disk", filesystem(dir)),
        ("Load average", load_average()),
        ("Scheduling", scheduling().to_owned()),
        ("Capstan", format!("{} ({})", env!("CARGO_PKG_VERSION"), profile())),
        ("Peers", super::peer::etcd_version().unwrap_or_else(|_| "no etcd".to_owned())),
    ]
}

fn profile() -> &'static str {
    if cfg!(debug_assertions) { "debug build: these figures say nothing" } else { "release build" }
}

fn processor() -> String {
    let cores = std::thread::available_parallelism().map_or(0, usize::from);
    let text = std::fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let model = text.lines().find_map(|line| line.strip_prefix("model name")).unwrap_or("unknown");
    format!("{cores} cores, {}", model.trim_start_matches([' ', '\t', ':']).trim())
}

fn memory() -> String {
    let text = std::fs::read_to_string("/proc/meminfo").unwrap_or_default();
    let kib = text.lines().find_map(|line| line.strip_prefix("MemTotal:")).unwrap_or("0 kB");
    let kib: u64 = kib.trim().trim_end_matches("kB").trim().parse().unwrap_or_default();
    format!("{:.1} GiB", kib as f64 / 1024.0 / 1024.0)
}

fn kernel() -> String {
    let release = std::fs::read_to_string("/proc/sys/kernel/osrelease").unwrap_or_default();
    format!("Linux {}", release.trim())
}

/// The load average: figures of a busy machine include its other load.
fn load_average() -> String {
    let text = std::fs::read_to_string("/proc/loadavg").unwrap_or_default();
    text.split(' ').take(3).collect::<Vec<_>>().join(", ")
}

/// Whether this process, and the servers it starts, run with real-time priority (`chrt -r 10 capstan bench ...`).
fn scheduling() -> &'static str {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The policy is field 41; the name in parentheses (field 2) may contain blanks.
    let after_name = stat.rsplit_once(") ").map_or("", |(_, rest)| rest);
    match after_name.split(' ').nth(41 - 3) {
        Some("0") => "normal",
        Some("1" | "2") => "real-time, for both servers and the client",
        Some(_) | None => "unknown",
    }
}

/// The file system type of the directory: the longest mount point that contains it.
fn filesystem(dir: &Path) -> String {
    let dir = dir.canonicalize().unwrap_or_else(|_| dir.to_owned());
    let mounts = std::fs::read_to_string("/proc/mounts").unwrap_or_default();
    let mounts = mounts.lines().filter_map(|line| {
        let mut fields = line.split(' ').skip(1);
        Some((fields.next()?, fields.next()?))
    });
    let holding = mounts.filter(|(path, _)| dir.starts_with(path)).max_by_key(|(path, _)| path.len());
    holding.map_or_else(|| "unknown".to_owned(), |(_, kind)| kind.to_owned())
}
