//! K7 to K10: the configuration.

use std::time::Duration;

use capstan_fleet::Lrn;
use capstan_fleet::api::ConfigKey;
use capstan_fleet::encoding::Nanos;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::release::{SecretKey, Trust, make};
use capstan_meta::record::Key;
use capstan_testkit::eventually;

use crate::rig::webhook::{Answer, Webhook};
use crate::rig::{Rig, SOON};

fn ok() -> Answer {
    Answer::Json(serde_json::json!({}))
}

async fn set(rig: &Rig, key: ConfigKey, value: &str) {
    rig.fleet().config_set(key, value).await.unwrap();
}

async fn until_colors(hook: &Webhook, expected: &[&str]) {
    eventually("the messages are sent", SOON, async || match hook.colors() {
        colors if colors == expected => Ok(()),
        colors => Err(format!("{colors:?}")),
    })
    .await;
}

async fn until_outbox_empty(rig: &Rig) {
    eventually("nothing waits to be sent", SOON, async || {
        let waiting = rig.store.list(&rig.tree.outbox()).await.unwrap().entries.len();
        if waiting == 0 { Ok(()) } else { Err(format!("{waiting} wait")) }
    })
    .await;
}

pub(super) async fn k34_without_a_webhook_nobody_is_told(mut rig: Rig) {
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_ended(1).await;
    assert!(rig.store.list(&rig.tree.outbox()).await.unwrap().entries.is_empty());
    set(&rig, ConfigKey::Slack, "https://hooks.slack.com/services/T0/B0/X").await;
    let raw = rig.store.get(rig.tree.slack().bytes()).await.unwrap().unwrap();
    assert_eq!(&raw.value[..], b"https://hooks.slack.com/services/T0/B0/X", "a plain URL");
}

pub(super) async fn k35_each_event_is_told_once_in_its_colour(mut rig: Rig) {
    let hook = Webhook::start(ok()).await;
    set(&rig, ConfigKey::Slack, &format!("{}/services/T0", hook.url)).await;
    rig.join([0, 1]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updaters = [rig.start_updater("a"), rig.start_updater("b")];
    rig.until_ended(1).await;
    until_colors(&hook, &["#439FE0", "good"]).await;
    rig.hosts[&Lrn(1)].fail_at(1, "no");
    rig.publish("1.2.0", &[Barrier]).await;
    rig.want("1.2.0").await;
    rig.until_ended(2).await;
    until_colors(&hook, &["#439FE0", "good", "#439FE0", "danger"]).await;
    until_outbox_empty(&rig).await;
    assert_eq!(hook.colors().len(), 4, "each once, although two updaters run");
    let body = hook.heard()[3].body.clone();
    let attachment = &body["attachments"][0];
    assert_eq!(attachment["author_name"], "Boot server updater");
    let fields: Vec<(String, String)> = attachment["fields"]
        .as_array()
        .unwrap()
        .iter()
        .map(|field| {
            (field["title"].as_str().unwrap().to_owned(), field["value"].as_str().unwrap().to_owned())
        })
        .collect();
    assert_eq!(fields[0].0, "Cluster");
    assert_eq!(fields[1], ("Version".to_owned(), "1.2.0".to_owned()));
    assert_eq!(fields[2], ("Servers".to_owned(), "[0 1]".to_owned()));
    assert_eq!(fields[3].0, "Started at");
    assert!(fields[4].0 == "Reason" && fields[4].1.contains("host 1 failed"), "{fields:?}");
    assert_eq!(hook.heard()[3].method, "POST");
}

pub(super) async fn k36_a_dead_webhook_holds_nothing_up(mut rig: Rig) {
    let hook = Webhook::start(Answer::Silence).await;
    set(&rig, ConfigKey::Slack, &hook.url).await;
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    hook.answer(ok());
    until_outbox_empty(&rig).await;
}

pub(super) async fn k37_messages_go_through_the_proxy(mut rig: Rig) {
    let proxy = Webhook::start(ok()).await;
    set(&rig, ConfigKey::Slack, "http://hooks.invalid/services/T0").await;
    set(&rig, ConfigKey::Proxy, &proxy.url).await;
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    until_colors(&proxy, &["#439FE0", "good"]).await;
    assert_eq!(proxy.heard()[0].target, "http://hooks.invalid/services/T0");
}

pub(super) async fn k38_a_proxy_is_an_absolute_url(rig: Rig) {
    let fleet = rig.fleet();
    for wrong in ["squid:3128", "/x", "", "ftp://x", "http://", "https:// x"] {
        assert!(fleet.config_set(ConfigKey::Proxy, wrong).await.is_err(), "{wrong:?}");
    }
    fleet.config_set(ConfigKey::Proxy, "https://squid.slack.com:3128").await.unwrap();
    let line = fleet.config_get(ConfigKey::Proxy).await.unwrap();
    assert_eq!((line.value.as_deref(), line.set), (Some("https://squid.slack.com:3128"), true));
}

pub(super) async fn k39_the_store_is_never_reached_through_the_proxy(mut rig: Rig) {
    set(&rig, ConfigKey::Proxy, "http://127.0.0.1:9").await;
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded), "although the proxy is dead");
}

pub(super) async fn k40_without_a_proxy_messages_go_directly(mut rig: Rig) {
    let hook = Webhook::start(ok()).await;
    set(&rig, ConfigKey::Slack, &format!("{}/direct", hook.url)).await;
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    until_colors(&hook, &["#439FE0", "good"]).await;
    assert_eq!(hook.heard()[0].target, "/direct");
}

pub(super) async fn k41_the_interval_is_nanoseconds_and_ten_minutes_by_default(rig: Rig) {
    let fleet = rig.fleet();
    let plain = fleet.config_get(ConfigKey::CheckUpdateInterval).await.unwrap();
    assert_eq!((plain.value.as_deref(), plain.set), (Some("10m"), false));
    fleet.config_set(ConfigKey::CheckUpdateInterval, "1.5s").await.unwrap();
    let raw = rig.store.get(rig.tree.check_interval().bytes()).await.unwrap().unwrap();
    assert_eq!(&raw.value[..], b"1500000000");
}

pub(super) async fn k42_another_interval_counts_at_once(mut rig: Rig) {
    rig.join([0]).await;
    let source = capstan_testkit::TempDir::new("source").unwrap();
    set(&rig, ConfigKey::CheckUpdateInterval, "1h").await;
    set(&rig, ConfigKey::Source, &source.path().display().to_string()).await;
    let key = SecretKey::generate().unwrap();
    let _updater = rig.start_updater_trusting("a", Some(Trust::in_all_of(vec![key.public()])));
    let term = rig.tree.term();
    eventually("somebody leads", SOON, async || rig.read(&term).await.ok_or("no term")).await;
    let manifest = crate::rig::releases::manifest("1.1.0", &[Barrier]);
    rig.hosts[&Lrn(0)].offer(manifest.clone());
    let dir = source.path().join("releases/1.1.0");
    std::fs::create_dir_all(&dir).unwrap();
    std::fs::write(dir.join("manifest.json"), manifest.to_bytes().unwrap()).unwrap();
    make::sign(&dir, &key).unwrap();
    let index = r#"{"format":1,"releases":[{"version":"1.1.0"}]}"#;
    std::fs::write(source.path().join("index.json"), index).unwrap();
    set(&rig, ConfigKey::CheckUpdateInterval, "100ms").await;
    assert_eq!(rig.until_ended(1).await.version, "1.1.0", "found long before the hour is over");
}

pub(super) async fn k43_an_interval_of_nothing_is_refused(rig: Rig) {
    let fleet = rig.fleet();
    for wrong in ["0", "-5s", "0s", "1d", "10"] {
        assert!(fleet.config_set(ConfigKey::CheckUpdateInterval, wrong).await.is_err(), "{wrong:?}");
        assert!(fleet.config_set(ConfigKey::WorkerTimeout, wrong).await.is_err(), "{wrong:?}");
    }
    rig.put(&rig.tree.check_interval(), &Nanos(-5)).await;
    let line = fleet.config_get(ConfigKey::CheckUpdateInterval).await.unwrap();
    assert_eq!(line.value.as_deref(), Some("10m"), "written by hand, and not waited for");
    assert_eq!(fleet.hosts().await.unwrap().problems.len(), 1);
}

pub(super) async fn k44_the_timeout_is_an_hour_by_default_and_read_under_both_names(rig: Rig) {
    let fleet = rig.fleet();
    let timeout = async || fleet.config_get(ConfigKey::WorkerTimeout).await.unwrap().value.unwrap();
    assert_eq!(timeout().await, "1h");
    rig.put(&rig.tree.short_worker_timeout(), &Nanos::of(Duration::from_secs(60))).await;
    assert_eq!(timeout().await, "1m");
    fleet.config_set(ConfigKey::WorkerTimeout, "2m").await.unwrap();
    assert_eq!(timeout().await, "2m", "the document's own name wins");
    let raw = rig.store.get(rig.tree.worker_timeout().bytes()).await.unwrap().unwrap();
    assert_eq!(&raw.value[..], b"120000000000");
    assert!(rig.tree.worker_timeout().path().ends_with("/config/worker-timeout-duration"));
}

pub(super) async fn k45_after_the_timeout_everything_stops_and_one_message_is_sent(mut rig: Rig) {
    let hook = Webhook::start(ok()).await;
    set(&rig, ConfigKey::Slack, &hook.url).await;
    set(&rig, ConfigKey::WorkerTimeout, "1s").await;
    rig.join([0, 1]).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    let ended = rig.until_ended(1).await;
    assert_eq!(ended.outcome, Some(Outcome::TimedOut));
    assert!(rig.request().await.unwrap().stop);
    until_colors(&hook, &["#439FE0", "danger"]).await;
    rig.hosts[&Lrn(0)].let_go(1);
    assert_ne!(rig.hosts[&Lrn(0)].has().as_deref(), Some("1.1.0"), "its step was cut");
}

pub(super) async fn k46_the_deadline_survives_a_change_of_leaders(mut rig: Rig) {
    set(&rig, ConfigKey::WorkerTimeout, "4s").await;
    rig.join([0]).await;
    rig.hosts[&Lrn(0)].hold(1);
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let first = rig.start_updater("a");
    rig.until_begun(0, 1, &[1]).await;
    let started = rig.request().await.unwrap().started_at;
    drop(first);
    let _second = rig.start_updater("b");
    let ended = rig.until_ended(1).await;
    assert_eq!(ended.outcome, Some(Outcome::TimedOut));
    assert_eq!(
        rig.request().await.unwrap().started_at,
        started,
        "counted from the start, not from the new leader"
    );
}
