//! `capstan up` end to end: everything in one process, as a newcomer meets it.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use capstan_testkit::redis::{Wire, write_all};
use capstan_testkit::{PortBlock, eventually, seed};
use nix::sys::signal::Signal;
use serde_json::Value;

use crate::binary::{DEADLINE, Daemon, capstan, http};

async fn up(label: &str) -> Daemon {
    let args = ["up", "--port-base", "0", "--set", "host.id=one", "--set", "up.hosts=0"];
    Daemon::start(label, &args).await
}

/// What `capstan status` prints once it is green: on a busy machine a probe can be late.
async fn green(up: &Daemon) -> String {
    eventually("status is green", DEADLINE, async || {
        let run = up.capstan(&["status"]);
        if run.code == 0 && run.stdout.starts_with("green") {
            Ok(run.stdout)
        } else {
            Err(format!("{run:?}"))
        }
    })
    .await
}

#[tokio::test]
async fn everything_is_there_and_says_so() {
    let up = up("up").await;
    assert_eq!(up.etcdctl(&["put", "/mine", "1"]).ok(), "OK\n");
    assert_eq!(up.capstan(&["meta", "get", "/mine"]).ok(), "1\n");
    let hosts = up.capstan(&["hosts", "list", "-o", "json"]).json();
    assert_eq!(hosts["hosts"][0]["host"], "one");
    assert_eq!(hosts["hosts"][0]["up"], true);
    green(&up).await;
    let said = up.process.log_text();
    for word in [up.endpoint("meta"), up.endpoint("http"), "capstan status".to_owned(), "etcdctl".to_owned()]
    {
        assert!(said.contains(&word), "{word} is not in\n{said}");
    }
}

#[tokio::test]
async fn operators_commands_find_it_by_its_directory() {
    let up = up("found").await;
    green(&up).await;
    let run = capstan(up.dir.path(), &["meta", "status"]);
    assert_eq!(run.code, 0, "{run:#?}");
}

#[tokio::test]
async fn health_metrics_and_api_are_served() {
    let up = up("http").await;
    let base = up.endpoint("http");
    assert_eq!(http("GET", &format!("{base}/livez")), (200, "ok\n".to_owned()));
    let (status, body) = http("GET", &format!("{base}/readyz"));
    let ready: Value = serde_json::from_str(&body).unwrap();
    assert_eq!((status, &ready["ready"]), (200, &Value::Bool(true)), "{body}");
    let (status, metrics) = http("GET", &format!("{base}/metrics"));
    assert_eq!(status, 200);
    for metric in
        ["capstan_meta_revision ", "capstan_build_info{version=\"0.1.0\"} 1", "capstan_hosts{state=\"up\"} 1"]
    {
        assert!(metrics.contains(metric), "{metric} is not in\n{metrics}");
    }
    let (status, host) = http("GET", &format!("{base}/api/v1/hosts/one"));
    let host: Value = serde_json::from_str(&host).unwrap();
    assert_eq!((status, &host["host"]), (200, &"one".into()));
    assert_eq!(http("GET", &format!("{base}/api/v1/hosts/two")).0, 404);
    assert_eq!(http("GET", &format!("{base}/nothing")).0, 404);
    let (status, page) = http("GET", &format!("{base}/"));
    assert!(status == 200 && page.contains("<h1>Capstan</h1>") && page.contains("ready"), "{page}");
}

#[tokio::test]
async fn a_host_is_drained_and_taken_back() {
    let up = up("drain").await;
    let drained = up.capstan(&["hosts", "drain", "one", "--reason", "new kernel", "--wait", "30s"]).ok();
    assert_eq!(drained, "host one is drained\n");
    let status = green(&up).await;
    assert!(status.starts_with("green\n\nnotice host-drained: host one, for"), "{status}");
    assert!(status.contains("it is drained (new kernel)"), "{status}");
    assert!(status.contains("capstan hosts undrain one"), "{status}");
    assert_eq!(up.capstan(&["hosts", "undrain", "one", "--wait", "30s"]).ok(), "host one has returned\n");
    green(&up).await;
    assert_eq!(up.capstan(&["hosts", "undrain", "one"]).ok(), "host one is not being drained\n");
    let unknown = up.capstan(&["hosts", "drain", "two"]);
    assert_eq!(unknown.code, 1);
    assert!(unknown.stderr.contains("host two is not registered"), "{unknown:#?}");
}

#[tokio::test]
async fn a_move_of_slots_can_be_waited_for() {
    let up = Daemon::start("move", &["up", "--port-base", "0", "--set", "host.id=one"]).await;
    green(&up).await;
    let nodes = || up.capstan(&["redis", "show", "demo", "-o", "json"]).json()["nodes"].clone();
    let owner = |nodes: &Value, slots: &str| {
        let mut owners = nodes.as_array().unwrap().iter().filter(|node| {
            node["slots"].as_array().unwrap().iter().any(|range| range.as_str().unwrap().starts_with(slots))
        });
        owners.next().unwrap()["node"].as_str().unwrap().to_owned()
    };
    let before = nodes();
    let source = owner(&before, "0-");
    let to = before.as_array().unwrap().iter().find(|node| node["node"] != source.as_str()).unwrap();
    let to = to["node"].as_str().unwrap();
    up.capstan(&["redis", "move", "demo", "--slots", "0-9", "--to", to, "--wait", "60s"]).ok();
    assert_eq!(owner(&nodes(), "0-9"), to);
    let unknown = ["redis", "move", "demo", "--slots", "0-9", "--to", "127.0.0.1:1", "--wait", "60s"];
    assert_ne!(up.capstan(&unknown).code, 0);
}

#[tokio::test]
async fn sigterm_ends_it_with_zero_and_the_host_is_gone_at_once() {
    let mut up = up("sigterm").await;
    let status = up.process.terminate(DEADLINE).await.unwrap();
    assert_eq!(status.code(), Some(0), "{}", up.process.log_tail());
    assert!(!up.dir.join("data/endpoints.json").exists(), "it still says that it is there");
    let serve = ["meta", "serve", "--listen", "127.0.0.1:0"];
    let store = Daemon::start_in("after", &serve, &up.dir.join("data")).await;
    let left = store.capstan(&["meta", "get", "/capstan/hosts/", "--prefix", "--keys-only"]).ok();
    assert_eq!(left, "", "the host did not leave");
}

#[tokio::test]
async fn kill_9_and_a_restart_keep_everything() {
    let mut up = up("kill9").await;
    for number in 0..20 {
        up.capstan(&["meta", "put", &format!("/kept/{number}"), "value"]).ok();
    }
    up.process.kill9().unwrap();
    up.restart().await;
    let kept = up.capstan(&["meta", "get", "/kept/", "--prefix", "--keys-only"]).ok();
    assert_eq!(kept.lines().count(), 20);
    let meta = up.endpoint("meta");
    let dir = up.dir.path().to_owned();
    eventually("the host is registered again", DEADLINE, async || {
        let run = capstan(&dir, &["status", "--meta", &meta]);
        if run.code == 0 { Ok(()) } else { Err(format!("{run:?}")) }
    })
    .await;
}

#[tokio::test]
async fn ports_in_use_and_a_locked_directory_are_told_apart() {
    let ports = PortBlock::reserve(4).unwrap();
    let base = ports.base().to_string();
    let up = Daemon::start("twice", &["up", "--port-base", &base, "--set", "up.hosts=0"]).await;
    assert_eq!(up.endpoint("http"), format!("http://127.0.0.1:{base}"));
    let same_ports = capstan(up.dir.path(), &["up", "--port-base", &base, "--dir", "other"]);
    assert_eq!(same_ports.code, 71, "{same_ports:#?}");
    assert!(same_ports.stderr.contains("--port-base"), "{same_ports:#?}");
    let same_dir = capstan(up.dir.path(), &["up", "--port-base", "0", "--dir", "data"]);
    assert_eq!(same_dir.code, 73, "{same_dir:#?}");
}

#[tokio::test]
async fn logs_are_json_for_programs() {
    let args = ["up", "--port-base", "0", "--log", "json", "-o", "json", "--set", "up.hosts=0"];
    let up = Daemon::start("json", &args).await;
    let text = up.process.log_text();
    let lines: Vec<Value> = text.lines().filter_map(|line| serde_json::from_str(line).ok()).collect();
    let registered =
        lines.iter().find(|line| line["message"] == "registered").unwrap_or_else(|| panic!("{text}"));
    assert_eq!(registered["level"], "INFO");
    assert!(registered["host"].is_string(), "{registered}");
}

#[tokio::test]
async fn two_signals_in_a_row_do_not_hang() {
    let mut up = up("twice").await;
    up.process.signal(Signal::SIGTERM).unwrap();
    // The second one may come when it is over already.
    let _ = up.process.signal(Signal::SIGINT);
    let status = up.process.exited(Duration::from_secs(30)).await.unwrap();
    assert!(matches!(status.code(), Some(0 | 130)), "{status}");
}

#[tokio::test]
async fn more_hosts_and_controllers_join_over_the_wire() {
    let up = up("join").await;
    let meta = up.endpoint("meta");
    let args = ["host", "--set", "host.id=two", "--set", "http.listen=127.0.0.1:0", "--meta", &meta];
    let mut host = Daemon::start("host", &args).await;
    let ids = |up: &Daemon| {
        let list = up.capstan(&["hosts", "list", "-o", "json"]).json();
        let hosts = list["hosts"].as_array().unwrap().clone();
        hosts.iter().map(|line| line["host"].as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    assert_eq!(ids(&up), ["one", "two"]);
    assert_eq!(up.capstan(&["hosts", "drain", "two", "--wait", "30s"]).ok(), "host two is drained\n");
    assert_eq!(up.capstan(&["hosts", "undrain", "two", "--wait", "30s"]).ok(), "host two has returned\n");
    assert_eq!(host.process.terminate(DEADLINE).await.unwrap().code(), Some(0));
    eventually("the host is remembered as down", DEADLINE, async || {
        let status = up.capstan(&["status"]);
        if status.code == 1 && status.stdout.contains("host-down: host two") {
            Ok(())
        } else {
            Err(status.stdout)
        }
    })
    .await;
    assert_eq!(ids(&up), ["one", "two"]);
    eventually("it is noted since when", DEADLINE, async || {
        let list = up.capstan(&["hosts", "list"]).ok();
        if list.contains("down since 20") { Ok(()) } else { Err(list) }
    })
    .await;
    assert_eq!(up.capstan(&["hosts", "remove", "two"]).ok(), "removed host two\n");
    assert_eq!(ids(&up), ["one"]);
    assert!(up.capstan(&["status"]).ok().starts_with("green"));
    let events = up.capstan(&["events"]).ok();
    for said in ["joined host two", "asked to drain host two", "is down host two", "removed host two"] {
        assert!(events.contains(said), "{said} is not in\n{events}");
    }
}

/// The directory proves that the former process is dead, so that nothing waits for its leases: the first write succeeds
/// within a second on a machine that is not busy with other tests, and before the lease of 30 s ends on any.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn redis_is_served_soon_after_kill_9_and_a_restart() {
    let served_within = Duration::from_secs(seed::soak(25, 1));
    // Its ports are chosen by itself, and are the same after a restart.
    let args = ["up", "--port-base", "0", "--set", "host.id=one", "--set", "host.lease_ttl=30s"];
    let args = [&args[..], &["--set", "redis.listen=127.0.0.1:0"]].concat();
    let mut up = Daemon::start("restarts", &args).await;
    let proxy: SocketAddr = up.endpoint("redis").parse().unwrap();
    let mut took = Vec::new();
    for _ in 0..seed::soak(3, 10) {
        up.process.kill9().unwrap();
        let begun = Instant::now();
        let first = async {
            eventually("a write succeeds", DEADLINE, async || {
                match Wire::follow(proxy, "SET first again").map_err(|error| error.to_string())? {
                    said if said == "+OK\r\n" => Ok(()),
                    said => Err(said),
                }
            })
            .await;
            begun.elapsed()
        };
        // The ready file comes after a write through every proxy.
        let (first, ()) = tokio::join!(first, up.restart());
        took.push(first);
        write_all(proxy, "again").unwrap();
    }
    eprintln!("from the start to the first write: {took:?}");
    assert!(took.iter().all(|took| *took < served_within), "{took:?}");
}
