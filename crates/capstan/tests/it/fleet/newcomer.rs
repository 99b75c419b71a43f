//! What a newcomer types after `capstan up`, and what there is to see.

use std::process::Stdio;

use capstan_testkit::eventually;
use serde_json::Value;

use super::{LocalFleet, packages, sample};
use crate::binary::{DEADLINE, command, finish, http};

#[tokio::test]
async fn three_commands_update_three_hosts() {
    let fleet = LocalFleet::start("newcomer", 3).await;
    let said = fleet.up.process.log_text();
    for line in ["with local-1 to local-3", "fleet release sample", "fleet apply", "fleet status --watch"] {
        assert!(said.contains(line), "{line} is not in\n{said}");
    }
    assert!(fleet.run(&["release", "sample"]).ok().contains("release     1.0.0"));
    let plan = fleet.run(&["plan"]).ok();
    assert!(plan.starts_with("release 1.0.0 on 3 hosts"), "{plan}");
    assert_eq!(fleet.run(&["apply"]).ok(), "rolling release 1.0.0 out to 3 hosts\n");
    let mut watching = command(fleet.up.dir.path());
    let mut watching = watching.args(["fleet", "status", "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    fleet.until_complete("1.0.0").await;
    eventually("the watch ends by itself", DEADLINE, async || {
        watching.try_wait().unwrap().ok_or("it still runs")
    })
    .await;
    let watched = finish(watching.wait_with_output().unwrap()).ok();
    for line in ["fleet: release 1.0.0: complete", "default wave 2: 2 of 2 finished", "host 3: finished"] {
        assert!(watched.contains(line), "{line} is not in\n{watched}");
    }
    for host in 1..=3 {
        assert_eq!(packages(&fleet.root(host)), sample("1.0.0"), "host {host}");
    }
    let status = fleet.run(&["status"]).ok();
    assert!(status.starts_with("release 1.0.0: complete\nupdater: one\n"), "{status}");
    assert!(
        status.contains("default wave 1 of 2  [##############################]  1 of 1 finished"),
        "{status}"
    );
    let page = http("GET", &format!("{}/fleet", fleet.up.endpoint("http")));
    assert!(page.0 == 200 && page.1.contains("release <b>1.0.0</b>"), "{page:?}");
}

#[tokio::test]
async fn the_next_release_the_way_back_and_who_left() {
    let mut fleet = LocalFleet::start("next", 2).await;
    for version in ["1.0.0", "1.0.1"] {
        fleet.run(&["release", "sample"]).ok();
        fleet.run(&["apply"]).ok();
        fleet.until_complete(version).await;
        assert_eq!(packages(&fleet.root(2)), sample(version));
    }
    let old = fleet.run(&["apply", "1.0.0"]);
    assert_eq!(old.code, 1);
    assert!(old.stderr.contains("`rollback` goes back on purpose"), "{old:#?}");
    assert_eq!(fleet.run(&["rollback"]).ok(), "rolling the fleet back to release 1.0.0\n");
    fleet.until_complete("1.0.0").await;
    assert_eq!(packages(&fleet.root(1)), sample("1.0.0"));
    let history = fleet.run(&["history", "-o", "json"]).json();
    let lines: Vec<(&Value, &Value)> = history["requests"]
        .as_array()
        .unwrap()
        .iter()
        .map(|line| (&line["version"], &line["outcome"]))
        .collect();
    let done = Value::from("succeeded");
    let versions = ["1.0.0", "1.0.1", "1.0.0"].map(Value::from);
    assert_eq!(lines, [(&versions[0], &done), (&versions[1], &done), (&versions[2], &done)]);
    fleet.run(&["leave", "local-2", "--reason", "sold"]).ok();
    fleet.up.process.terminate(DEADLINE).await.unwrap();
    fleet.up.restart().await;
    let hosts = fleet.run(&["hosts", "-o", "json"]).json();
    assert_eq!(hosts["hosts"].as_array().unwrap().len(), 1, "who left stays away: {hosts}");
    fleet.run(&["release", "sample"]).ok();
    fleet.run(&["apply"]).ok();
    fleet.until_complete("1.0.2").await;
    assert_eq!(packages(&fleet.root(1)), sample("1.0.2"));
    assert_eq!(packages(&fleet.root(2)), sample("1.0.0"));
}
