//! The updater of the document's first program: its seven scenarios, with a webhook that is told.

use capstan_fleet::Lrn;
use capstan_fleet::api::ConfigKey;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::Barrier;
use capstan_testkit::eventually;

use super::operator;
use crate::rig::webhook::{Answer, Webhook};
use crate::rig::{Rig, SOON};

const START: &str = "#439FE0";

async fn three_hosts() -> (Rig, Webhook) {
    let mut rig = Rig::in_memory();
    let hook = Webhook::start(Answer::Status(200)).await;
    rig.fleet().config_set(ConfigKey::Slack, &hook.url).await.unwrap();
    rig.join(0..3).await;
    rig.publish("1.1.0", &[Barrier]).await;
    (rig, hook)
}

async fn until_told(hook: &Webhook, colors: &[&str]) {
    eventually("the webhook is told", SOON, async || match hook.colors() {
        told if told == colors => Ok(()),
        told => Err(format!("{told:?}")),
    })
    .await;
}

#[tokio::test]
async fn no_members_nothing_is_asked_for_until_somebody_joins() {
    let mut rig = Rig::in_memory();
    rig.publish("1.1.0", &[Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    eventually("it says what it waits for", SOON, async || {
        let status = rig.fleet().status().await.unwrap();
        if status.why.contains("no host has joined") { Ok(()) } else { Err(status.why) }
    })
    .await;
    assert_eq!(rig.request().await, None);
    rig.join([0]).await;
    rig.publish("1.1.0", &[Barrier]).await;
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
}

#[tokio::test]
async fn initial_update_asks_three_hosts_and_ends_green() {
    let (rig, hook) = three_hosts().await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.request().await.unwrap().servers, [Lrn(0), Lrn(1), Lrn(2)]);
    until_told(&hook, &[START, "good"]).await;
}

#[tokio::test]
async fn update_failure_ends_red() {
    let (rig, hook) = three_hosts().await;
    rig.hosts[&Lrn(1)].fail_at(1, "no");
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Failed));
    until_told(&hook, &[START, "danger"]).await;
}

#[tokio::test]
async fn update_timeout_ends_red() {
    let (rig, hook) = three_hosts().await;
    rig.hosts[&Lrn(1)].hold(1);
    rig.fleet().config_set(ConfigKey::WorkerTimeout, "10ms").await.unwrap();
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::TimedOut));
    until_told(&hook, &[START, "danger"]).await;
}

#[tokio::test]
async fn stop_and_retry_a_stopped_request_stays_until_it_is_cleared() {
    let (rig, hook) = three_hosts().await;
    rig.hosts[&Lrn(1)].hold(1);
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    rig.until_begun(1, 1, &[1]).await;
    rig.fleet().stop(&operator()).await.unwrap();
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Stopped));
    rig.hosts[&Lrn(1)].let_go(1);
    // Another release does not wake it up: only a person does.
    rig.publish("1.2.0", &[Barrier]).await;
    let status = rig.fleet().status().await.unwrap();
    assert!(status.why.contains("recover"), "{}", status.why);
    assert_eq!(rig.request().await.unwrap().generation, 1);
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!(rig.until_ended(2).await.outcome, Some(Outcome::Succeeded));
    assert_eq!(rig.request().await.unwrap().version, "1.1.0", "the one that was stopped, not the newest");
    until_told(&hook, &[START, "danger", START, "good"]).await;
}
