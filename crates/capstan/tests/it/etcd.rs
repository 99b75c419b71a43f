//! The same processes on a real etcd: hosts and controllers under a prefix, no store of our own.

use capstan_testkit::Etcd;

use crate::binary::{DEADLINE, Daemon, capstan};

const LOOPBACK: [&str; 2] = ["--set", "http.listen=127.0.0.1:0"];

#[tokio::test]
async fn hosts_and_controllers_work_on_a_real_etcd_under_a_prefix() {
    let etcd = Etcd::start().await.unwrap();
    let endpoints = format!("meta.endpoints={}", etcd.endpoint());
    let settings = ["--set", "meta.mode=etcd", "--set", &endpoints, "--set", "meta.prefix=/installation-a"];
    let args = |first: &[&'static str]| [first, &LOOPBACK, &settings].concat();
    let mut host = Daemon::start("etcd-host", &args(&["host", "--set", "host.id=h1"])).await;
    let mut controller =
        Daemon::start("etcd-controller", &args(&["controller", "--set", "host.id=c1"])).await;
    let operate = |command: &[&str]| capstan(host.dir.path(), &[command, &settings].concat());
    assert!(operate(&["status"]).ok().starts_with("green"));
    assert_eq!(operate(&["hosts", "drain", "h1", "--wait", "30s"]).ok(), "host h1 is drained\n");
    assert_eq!(operate(&["hosts", "undrain", "h1", "--wait", "30s"]).ok(), "host h1 has returned\n");
    let keys =
        capstan(host.dir.path(), &["meta", "get", "/", "--prefix", "--keys-only", "--meta", etcd.endpoint()])
            .ok();
    assert!(keys.lines().all(|key| key.starts_with("/installation-a/")), "{keys}");
    assert!(keys.contains("/installation-a/capstan/hosts/h1"), "{keys}");
    assert_eq!(
        host.process.terminate(DEADLINE).await.unwrap().code(),
        Some(0),
        "{}",
        host.process.log_tail()
    );
    assert_eq!(controller.process.terminate(DEADLINE).await.unwrap().code(), Some(0));
}

#[test]
fn up_and_meta_serve_refuse_to_stand_beside_an_etcd() {
    let settings = ["--set", "meta.mode=etcd", "--set", "meta.endpoints=http://127.0.0.1:1"];
    for command in [&["up"][..], &["meta", "serve"]] {
        let run = capstan(".".as_ref(), &[command, &settings].concat());
        assert_eq!(run.code, 1, "{run:#?}");
        assert!(run.stderr.contains("meta.mode is `etcd`"), "{run:#?}");
    }
}
