//! What an operator's Prometheus makes of Capstan: Debian's `promtool` and `prometheus`, on a running `capstan up`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

use capstan_console::metrics::catalogue::{ALERTS, PANELS};
use capstan_testkit::{Port, Process, Ready, TempDir, eventually};
use serde_json::Value;

use crate::binary::{DEADLINE, Daemon, finish, http};

/// Enough for a query over the last minute to have two scrapes in it, on a busy machine.
const SCRAPED_WITHIN: Duration = Duration::from_secs(60);

/// A Prometheus that scrapes one process every second and evaluates the rules of this repository, with short waits.
struct Prometheus {
    _process: Process,
    address: SocketAddr,
    _dir: TempDir,
}

impl Prometheus {
    async fn start(target: &str, rules: &str) -> Prometheus {
        let dir = TempDir::new("prometheus").unwrap();
        let port = Port::reserve().unwrap();
        std::fs::write(dir.join("rules.yml"), rules).unwrap();
        let config = format!(
            "global: {{ scrape_interval: 1s, evaluation_interval: 1s }}\nrule_files: [rules.yml]\nscrape_configs:\n  \
             - job_name: capstan\n    static_configs: [{{ targets: ['{target}'] }}]\n"
        );
        std::fs::write(dir.join("prometheus.yml"), config).unwrap();
        let mut process = Process::builder("prometheus")
            .args([format!("--config.file={}", dir.join("prometheus.yml").display())])
            .args([format!("--storage.tsdb.path={}", dir.join("tsdb").display())])
            .args([format!("--web.listen-address={}", port.addr())])
            .spawn(dir.join("log"))
            .unwrap();
        process.ready(&Ready::Port(port.addr().port()), DEADLINE).await.unwrap();
        let prometheus = Prometheus { _process: process, address: port.addr(), _dir: dir };
        // It answers 503 until it has opened its storage, some time after it has bound its port.
        eventually("Prometheus is ready", DEADLINE, async || {
            let answer = prometheus.get("/-/ready");
            if answer.contains("is Ready") { Ok(()) } else { Err(answer) }
        })
        .await;
        prometheus
    }

    /// The body of an answer. In HTTP/1.0, in which bodies are whole.
    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(self.address).unwrap();
        write!(stream, "GET {path} HTTP/1.0\r\n\r\n").unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        answer.split_once("\r\n\r\n").unwrap().1.to_owned()
    }

    fn query(&self, query: &str) -> Value {
        let encoded: String = query.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let body = self.get(&format!("/api/v1/query?query={encoded}"));
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        assert_eq!(answer["status"], "success", "{query}: {answer}");
        answer["data"]["result"].clone()
    }

    fn firing(&self) -> Vec<String> {
        let body = self.get("/api/v1/alerts");
        let answer: Value = serde_json::from_str(&body).unwrap_or_else(|_| panic!("{body}"));
        let alerts = answer["data"]["alerts"].as_array().cloned().unwrap_or_default();
        let firing = alerts.iter().filter(|alert| alert["state"] == "firing");
        firing.filter_map(|alert| alert["labels"]["alertname"].as_str().map(str::to_owned)).collect()
    }
}

fn repository(path: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The rules of the repository; what they wait for takes no time.
fn impatient() -> String {
    let rules = std::fs::read_to_string(repository("deploy/alerts.yml")).unwrap();
    let line = |line: &str| match line.trim_start().starts_with("for: ") {
        true => "        for: 0s".to_owned(),
        false => line.to_owned(),
    };
    rules.lines().map(line).collect::<Vec<_>>().join("\n") + "\n"
}

#[test]
fn promtool_accepts_the_rules() {
    let run =
        Command::new("promtool").arg("check").arg("rules").arg(repository("deploy/alerts.yml")).output();
    let run = finish(run.unwrap());
    assert!(run.code == 0 && run.stdout.contains(&format!("{} rules found", ALERTS.len())), "{run:#?}");
}

/// Each rule fires on series that say what it is about, and no rule fires on those of a healthy process: promtool
/// evaluates them at made-up times.
#[test]
fn each_alert_can_fire_and_none_does_on_healthy_series() {
    let dir = TempDir::new("promtool").unwrap();
    let rules = repository("deploy/alerts.yml").canonicalize().unwrap();
    let healthy = [
        "capstan_green",
        "up{job=\"capstan\", instance=\"a\"}",
        "capstan_meta_up",
        "capstan_ready{part=\"host\", instance=\"a\"}",
    ];
    let bad = [
        ("CapstanCritical", "capstan_findings{code=\"x\", severity=\"critical\"}", "1x60"),
        ("CapstanDegraded", "capstan_findings{code=\"x\", severity=\"degraded\"}", "1x60"),
        ("CapstanBlind", "capstan_green", "_x60"),
        ("CapstanProcessDown", "up{job=\"capstan\", instance=\"a\"}", "0x60"),
        ("CapstanMetaDown", "capstan_meta_up", "0x60"),
        ("CapstanNotReady", "capstan_ready{part=\"host\", instance=\"a\"}", "0x60"),
        ("CapstanTasksFailing", "capstan_tasks_failed_total{kind=\"loop\"}", "0+2x60"),
        ("CapstanProbesFailing", "capstan_redis_probes_failed_total", "0+5x60"),
        ("CapstanUpdateStopped", "capstan_fleet_rollout{state=\"stopped\"}", "1x60"),
        ("CapstanDescriptors", "capstan_process_open_fds{instance=\"a\"}", "60000x60"),
    ];
    let named: std::collections::BTreeSet<&str> = bad.iter().map(|(name, ..)| *name).collect();
    assert_eq!(named, ALERTS.iter().map(|alert| alert.name).collect(), "every alert is tried");
    let mut tests = String::new();
    let mut test = |series: Vec<(String, String)>, fires: Option<&str>| {
        tests += "  - interval: 1m\n    input_series:\n";
        for (name, values) in series {
            tests += &format!("      - series: '{name}'\n        values: '{values}'\n");
        }
        tests += "    promql_expr_test:\n";
        for alert in ALERTS {
            let wanted = if fires == Some(alert.name) { 1 } else { 0 };
            let expr =
                format!("count(ALERTS{{alertname=\"{}\", alertstate=\"firing\"}}) or vector(0)", alert.name);
            tests += &format!(
                "      - expr: '{expr}'\n        eval_time: 40m\n        exp_samples: [{{ labels: '{{}}', value: {wanted} }}]\n"
            );
        }
    };
    let well = |without: &str| -> Vec<(String, String)> {
        let kept = healthy.iter().filter(|name| **name != without);
        kept.map(|name| ((*name).to_owned(), "1x60".to_owned())).collect()
    };
    test(well(""), None);
    for (name, series, values) in bad {
        let mut all = well(series);
        all.push((series.to_owned(), values.to_owned()));
        test(all, Some(name));
    }
    let file = dir.join("tests.yml");
    let text = format!("rule_files: ['{}']\nevaluation_interval: 1m\ntests:\n{tests}", rules.display());
    std::fs::write(&file, text).unwrap();
    let run = finish(Command::new("promtool").args(["test", "rules"]).arg(&file).output().unwrap());
    assert_eq!(run.code, 0, "{run:#?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_panel_has_data_and_no_alert_fires_on_a_healthy_process() {
    let mut up = Daemon::start("monitoring", &["up", "--port-base", "0", "--set", "host.id=one"]).await;
    let target = up.endpoint("http").trim_start_matches("http://").to_owned();
    let (status, text) = http("GET", &format!("http://{target}/metrics"));
    assert_eq!(status, 200);
    let mut promtool = Command::new("promtool");
    promtool.args(["check", "metrics"]).stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut child = promtool.stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    let run = finish(child.wait_with_output().unwrap());
    assert!(run.code == 0 && run.stderr.is_empty(), "{run:#?}");

    let prometheus = Prometheus::start(&target, &impatient()).await;
    for panel in PANELS {
        eventually(&format!("panel {} has data", panel.title), SCRAPED_WITHIN, async || {
            match prometheus.query(panel.query).as_array() {
                Some(series) if !series.is_empty() => Ok(()),
                _ => Err(format!("{} returns nothing", panel.query)),
            }
        })
        .await;
    }
    eventually("nothing fires on a healthy process", SCRAPED_WITHIN, async || match prometheus.firing() {
        firing if firing.is_empty() => Ok(()),
        firing => Err(format!("{firing:?}")),
    })
    .await;
    up.process.kill9().unwrap();
    eventually("its end is seen", SCRAPED_WITHIN, async || {
        let firing = prometheus.firing();
        let seen = |name: &str| firing.iter().any(|alert| alert == name);
        if seen("CapstanProcessDown") && seen("CapstanBlind") { Ok(()) } else { Err(format!("{firing:?}")) }
    })
    .await;
}
