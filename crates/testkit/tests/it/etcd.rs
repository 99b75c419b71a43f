use capstan_testkit::etcd::etcdctl;
use capstan_testkit::process::owns_port;
use capstan_testkit::{Etcd, Proxy};

#[tokio::test]
async fn a_real_etcd_serves_and_keeps_its_data_over_kill9_and_stop() {
    let mut etcd = Etcd::start().await.unwrap();
    assert!(owns_port(etcd.process().pid(), etcd.port().number()).unwrap());
    etcd.ctl(&["put", "color", "green"]).unwrap();

    etcd.kill9().unwrap();
    etcd.ctl(&["get", "color", "--command-timeout=200ms"]).unwrap_err();
    etcd.restart().await.unwrap();
    assert_eq!(etcd.ctl(&["get", "color", "--print-value-only"]).unwrap().trim(), "green");

    etcd.stop().await.unwrap();
    etcd.restart().await.unwrap();
    assert_eq!(etcd.ctl(&["get", "color", "--print-value-only"]).unwrap().trim(), "green");
}

#[tokio::test]
async fn options_reach_etcd_and_two_of_them_live_side_by_side() {
    let small = Etcd::options().arg("--max-request-bytes=100").start();
    let (small, plain) = tokio::try_join!(small, Etcd::start()).unwrap();
    small.ctl(&["put", "a", "small"]).unwrap();
    plain.ctl(&["put", "a", "plain"]).unwrap();
    assert_eq!(small.ctl(&["get", "a", "--print-value-only"]).unwrap().trim(), "small");
    let large = "x".repeat(200);
    plain.ctl(&["put", "a", &large]).unwrap();
    let message = format!("{:#}", small.ctl(&["put", "a", &large]).unwrap_err());
    assert!(message.contains("request is too large"), "{message}");
}

#[tokio::test]
async fn a_wrong_option_is_reported_with_etcds_own_words() {
    let error = Etcd::options().arg("--no-such-option").start().await.unwrap_err();
    let message = format!("{error:#}");
    assert!(message.contains("no-such-option"), "{message}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_behind_a_proxy_is_cut_off_and_comes_back() {
    let etcd = Etcd::start().await.unwrap();
    let proxy = Proxy::start(etcd.port().addr()).await.unwrap();
    let put = |timeout: &'static str| {
        let endpoint = proxy.endpoint();
        tokio::task::spawn_blocking(move || etcdctl(&endpoint, &["put", "a", "b", timeout]))
    };
    let (patient, hasty) = ("--command-timeout=30s", "--command-timeout=300ms");
    put(patient).await.unwrap().unwrap();
    assert!(proxy.traffic().to_upstream > 0);
    proxy.cut().await;
    put(hasty).await.unwrap().unwrap_err();
    proxy.heal().await;
    put(patient).await.unwrap().unwrap();
}

#[tokio::test]
async fn a_paused_etcd_answers_after_resume() {
    let etcd = Etcd::start().await.unwrap();
    etcd.pause().unwrap();
    etcd.ctl(&["get", "a", "--command-timeout=200ms", "--dial-timeout=200ms"]).unwrap_err();
    etcd.resume().unwrap();
    etcd.ctl(&["get", "a", "--command-timeout=30s"]).unwrap();
}
