//! The banner of `capstan up`: what serves where, and one command to try for each service. It fits a terminal of 80 columns
//! and 24 lines.

use std::fmt::Write as _;

use crate::commands::version::VERSION;
use crate::daemon::{DEMO, DEMO_TOPIC, Endpoints, SAMPLE_DIR};

/// The banner; `local_hosts` is the number of local hosts.
pub(super) fn banner(endpoints: &Endpoints, local_hosts: usize) -> String {
    let host = endpoints.host.as_deref().unwrap_or_default();
    let with = match local_hosts {
        0 => String::new(),
        count => format!(", with local-1 to local-{count}"),
    };
    let mut text = format!("Capstan {VERSION} is up: host {host}{with}.\n\n");
    for (name, place) in places(endpoints) {
        writeln!(text, "  {name:<10} {place}").ok();
    }
    text += "\nNext, in another terminal:\n\n";
    for command in commands(endpoints, local_hosts) {
        writeln!(text, "  {command}").ok();
    }
    text + "\nCtrl-C stops it; the data stays."
}

fn places(endpoints: &Endpoints) -> Vec<(&'static str, String)> {
    let optional = |name, place: Option<&String>, what: &str| Some((name, format!("{}{what}", place?)));
    let dir = endpoints.dir.as_ref().map(|dir| ("data", dir.display().to_string()));
    let places = [
        optional("console", endpoints.http.as_ref(), ""),
        optional("metadata", Some(&endpoints.meta), " (etcd v3 wire)"),
        optional("redis", endpoints.services.get("redis"), &format!(" (cluster {DEMO})")),
        optional("topics", endpoints.topics.as_ref(), " (gRPC)"),
        optional("documents", endpoints.docs.as_ref(), ""),
        dir,
    ];
    places.into_iter().flatten().collect()
}

/// The command line finds a store whose data directory is `data` below it; elsewhere it is told once, for all commands.
fn commands(endpoints: &Endpoints, local_hosts: usize) -> Vec<String> {
    let is_found = std::path::absolute("data").ok() == endpoints.dir;
    let mut commands = Vec::new();
    if !is_found {
        commands.push(format!("export CAPSTAN_META={}", endpoints.meta));
    }
    commands.push("capstan status".to_owned());
    if local_hosts == 0 {
        commands.push("capstan hosts list".to_owned());
        commands.push("capstan meta tree".to_owned());
        // etcdctl 3.4 takes a scheme for most commands, but not for `endpoint status`.
        let wire = endpoints.meta.trim_start_matches("http://");
        commands.push(format!("ETCDCTL_API=3 etcdctl --endpoints {wire} get / --prefix"));
        return commands;
    }
    if let Some((host, port)) = endpoints.services.get("redis").and_then(|redis| redis.rsplit_once(':')) {
        commands.push(format!("redis-cli -c -h {host} -p {port} set hello world"));
        commands.push(format!("capstan redis scale {DEMO} --nodes {}", local_hosts * 2));
    }
    if endpoints.topics.is_some() {
        commands.push(format!("echo hello | capstan topics produce {DEMO_TOPIC}"));
        commands.push(format!("capstan topics consume {DEMO_TOPIC} --subscription me --from earliest"));
    }
    if endpoints.docs.is_some() {
        commands.push("capstan docs find demo planets '{\"moons\": {\"$gt\": 1}}'".to_owned());
    }
    let sample = endpoints.dir.as_ref().filter(|_| !is_found).map(|dir| dir.join(SAMPLE_DIR));
    let sample = sample.map(|sample| format!(" {}", sample.display())).unwrap_or_default();
    commands.push(format!("capstan fleet release sample{sample}"));
    commands.push("capstan fleet apply".to_owned());
    commands.push("capstan fleet status --watch".to_owned());
    commands
}
