//! An operator's hand on a rollout: pause, stop in the middle of a step, recover; and every answer for programs.

use capstan_testkit::eventually;
use serde_json::{Value, json};

use super::{GATED, LocalFleet, packages, quick, sample, state_of};
use crate::binary::{DEADLINE, Run};

#[tokio::test]
async fn a_pause_lets_the_running_host_end_and_nobody_begin() {
    let fleet = LocalFleet::start("pause", 2).await;
    fleet.release("2.0.0", GATED);
    fleet.run(&["apply", "2.0.0", "--reason", "try it"]).ok();
    fleet.until_host(1, "running step 2").await;
    fleet.run(&["pause", "--reason", "lunch"]).ok();
    fleet.let_go(1);
    let status = fleet.until_host(1, "finished").await;
    assert_eq!((&status["state"], state_of(&status, 2).as_str()), (&"paused".into(), "at step 2"));
    assert_eq!(fleet.run(&["status"]).code, 3, "paused is not done");
    let why = fleet.run(&["why", "local-2", "-o", "json"]).json();
    assert!(why["reasons"][0].as_str().unwrap().contains("lunch"), "{why}");
    assert!(!fleet.root(2).join("pid").exists(), "host 2 began although the fleet was paused");
    fleet.let_go(2);
    fleet.run(&["resume"]).ok();
    fleet.until_complete("2.0.0").await;
    assert_eq!(fleet.run(&["status"]).code, 0);
}

#[tokio::test]
async fn a_free_slot_goes_to_the_next_host_while_others_are_busy() {
    let fleet = LocalFleet::start("slots", 3).await;
    fleet.policy(&json!({ "waves": [3], "parallelism": 2, "max_unavailable": 2, "min_healthy": "0s" }));
    fleet.release("2.0.0", GATED);
    fleet.run(&["apply"]).ok();
    fleet.until_host(1, "running step 2").await;
    let status = fleet.until_host(2, "running step 2").await;
    assert_eq!((&status["waves"][0]["active"], state_of(&status, 3).as_str()), (&2.into(), "at step 2"));
    let why = fleet.run(&["why", "3"]).ok();
    assert!(why.contains("because") && why.contains('1') && why.contains('2'), "{why}");
    fleet.let_go(1);
    let status = fleet.until_host(3, "running step 2").await;
    assert_eq!(state_of(&status, 2), "running step 2", "host 3 did not wait for host 2");
    fleet.let_go(2);
    fleet.let_go(3);
    fleet.until_complete("2.0.0").await;
}

#[tokio::test]
async fn a_stop_ends_the_step_and_recover_begins_anew() {
    let fleet = LocalFleet::start("stop", 2).await;
    fleet.release("2.0.0", GATED);
    fleet.run(&["apply"]).ok();
    fleet.until_host(1, "running step 2").await;
    let pid = eventually("the step runs", DEADLINE, async || {
        let text = std::fs::read_to_string(fleet.root(1).join("pid")).map_err(|error| error.to_string())?;
        text.trim().parse::<u32>().map_err(|error| error.to_string())
    })
    .await;
    fleet.run(&["stop", "--reason", "smoke"]).ok();
    fleet.until("it is stopped", |status| status["state"] == "stopped").await;
    eventually("the step's process has ended", DEADLINE, async || {
        let runs = std::path::Path::new(&format!("/proc/{pid}")).exists();
        if runs { Err(format!("process {pid} runs")) } else { Ok(()) }
    })
    .await;
    let status = fleet.run(&["status"]);
    assert_eq!(status.code, 1);
    assert!(
        status.stdout.contains("stopped because: stopped by") && status.stdout.contains("smoke"),
        "{status:#?}"
    );
    let refused = fleet.run(&["apply"]);
    assert!(refused.code == 1 && refused.stderr.contains("`recover` clears it away first"), "{refused:#?}");
    fleet.run(&["release", "sample", "--release", "3.0.0"]).ok();
    assert!(fleet.run(&["recover", "3.0.0"]).ok().contains("release 3.0.0 starts over"));
    fleet.until_complete("3.0.0").await;
    for host in [1, 2] {
        assert_eq!(packages(&fleet.root(host)), sample("3.0.0"));
    }
    let history = fleet.run(&["history", "-o", "json"]).json();
    assert_eq!(
        (&history["requests"][0]["outcome"], &history["requests"][1]["outcome"]),
        (&"succeeded".into(), &"stopped".into())
    );
    let running = fleet.run(&["recover"]);
    assert!(running.code == 1 && running.stderr.contains("not stopped"), "{running:#?}");
}

#[tokio::test]
async fn every_verb_answers_programs_and_says_no_in_words() {
    let fleet = LocalFleet::start("json", 2).await;
    let asked = |args: &[&str]| -> Value {
        let args: Vec<&str> = args.iter().chain(&["-o", "json"]).copied().collect();
        fleet.run(&args).json()
    };
    let no = |args: &[&str], words: &str| {
        let Run { code, stderr, .. } = fleet.run(args);
        assert!(code == 1 && stderr.contains(words), "{args:?}: {code} {stderr}");
    };
    assert_eq!(asked(&["status"])["state"], "clear");
    assert_eq!(asked(&["hosts"])["hosts"][1]["host"], "local-2");
    assert_eq!(asked(&["why", "1"])["state"], "idle");
    assert_eq!(asked(&["history"])["requests"], Value::Array(Vec::new()));
    assert_eq!(asked(&["join", "7", "--label", "zone=a"])["done"], "join");
    assert_eq!(asked(&["hosts"])["hosts"][2]["labels"]["zone"], "a");
    assert_eq!(asked(&["leave", "7"])["object"], "7");
    assert_eq!(asked(&["config", "set", "worker-timeout", "90s"])["done"], "config set");
    assert_eq!(asked(&["config", "get", "worker-timeout"])["value"], "1m30s");
    assert_eq!(asked(&["config", "get"])["settings"].as_array().unwrap().len(), 6);
    assert_eq!(asked(&["policy", "get"])["waves"], json!([1]));
    assert_eq!(asked(&["policy", "set", "racks", "policy.json"])["object"], "racks");
    assert_eq!(asked(&["policy", "get", "racks"])["waves"], json!([1]));
    assert_eq!(asked(&["policy", "remove", "racks"])["done"], "policy remove");
    assert_eq!(asked(&["init", "5=five", "--set", "fleet.prefix=/another/"])["done"], "init");
    assert_eq!(asked(&["hosts", "--set", "fleet.prefix=/another/"])["hosts"][0]["lrn"], 5);
    let bare = fleet.run(&["policy", "get", "nobody"]);
    assert!(bare.code == 0 && bare.stderr.contains("has no policy of its own"), "{bare:#?}");
    assert_eq!(asked(&["vault", "unseal", "http://127.0.0.1:9"])["state"], "no_key");
    std::fs::write(fleet.up.dir.join("key"), "s3cret\n").unwrap();
    asked(&["vault", "set", "unseal-key", "--file", "key"]);
    assert_eq!(asked(&["vault", "show", "unseal-key"])["secret"], "s3cret");
    asked(&["vault", "remove", "unseal-key"]);
    fleet.release("2.0.0", GATED);
    assert_eq!(asked(&["plan", "2.0.0"])["hosts"], 2);

    assert_eq!(
        asked(&["simulate", "--hosts", "20", "--canary", "1,2", "--parallelism", "10"])["rows"][1]["canary"],
        2
    );

    no(&["init", "1"], "the fleet has hosts already");
    no(&["simulate", "--hosts", "3", "--canary", "5"], "is more than the fleet has: 3");
    no(&["init", "one"], "\"one\" is not a host");
    no(&["leave", "9"], "host 9 not found");
    no(&["why", "nobody"], "host nobody");
    no(&["apply", "9.9.9"], "has no");
    for verb in [&["pause"][..], &["resume"], &["stop"], &["promote"], &["rollback"]] {
        no(verb, "no update is under way");
    }
    no(&["config", "set", "source", ""], "a source is");
    no(&["config", "get", "colour"], "is not a setting");
    no(&["vault", "show", "root-token"], "vault root token not found");
    std::fs::write(fleet.up.dir.join("wrong.json"), r#"{"paralelism": 3}"#).unwrap();
    no(&["policy", "check", "wrong.json"], "a policy has no field \"paralelism\"");
    std::fs::write(fleet.up.dir.join("never.json"), r#"{"parallelism": 0}"#).unwrap();
    no(&["policy", "set", "default", "never.json"], "no host could ever begin");

    assert_eq!(asked(&["apply", "2.0.0"])["object"], "2.0.0");
    fleet.until_host(1, "running step 2").await;
    no(&["retry", "1"], "host 1 has not failed");
    no(&["skip", "9", "--reason", "x"], "host 9 not found");
    assert_eq!(asked(&["skip", "local-2", "--reason", "not this one"])["done"], "skip");
    assert_eq!(asked(&["pause"])["done"], "pause");
    assert_eq!(asked(&["resume"])["done"], "resume");
    fleet.let_go(1);
    fleet.until_complete("2.0.0").await;
    fleet.let_go(2);
    fleet.until_host(2, "finished").await;
    assert_eq!(asked(&["hosts"])["hosts"][0]["release"], "2.0.0");
}

/// Fails until it is mended, on the first host only.
const BROKEN: &str = r#"
[[steps]]
name = "try"
kind = "rolling"
timeout_seconds = 60
actions = [{ command = { argv = ["sh", "-c", "test -e $CAPSTAN_ROOT/mended"], after_crash = "rerun" } }]
"#;

/// The verbs for when something went wrong, and those that make releases, all answer programs too.
#[tokio::test]
async fn verbs_for_trouble_and_releases_answer_programs() {
    let fleet = LocalFleet::start("trouble", 2).await;
    let asked = |args: &[&str]| -> Value {
        let args: Vec<&str> = args.iter().chain(&["-o", "json"]).copied().collect();
        fleet.run(&args).json()
    };
    let nothing = fleet.run(&["plan"]);
    assert!(nothing.code == 1 && nothing.stderr.contains("capstan fleet release sample"), "{nothing:#?}");
    assert_eq!(asked(&["release", "sample", "--release", "1.0.0"])["version"], "1.0.0");
    let (trust, repository) = ("data/sample/trust.json", "data/sample/repository");
    let checked = asked(&["release", "verify", repository, "--release", "1.0.0", "--trust", trust]);
    assert_eq!(checked["manifest"]["version"], "1.0.0");
    asked(&["apply", "1.0.0"]);
    fleet.until_complete("1.0.0").await;

    std::fs::write(fleet.up.dir.join("broken.toml"), format!("version = \"2.0.0\"\n{BROKEN}")).unwrap();
    assert!(asked(&["release", "build", "broken.toml", "--out", "broken"]).is_object());
    assert!(asked(&["release", "sign", "broken", "--key", "data/sample/release.key"]).is_object());
    assert!(asked(&["release", "verify", "broken", "--trust", trust]).is_object());
    assert!(asked(&["release", "publish", "broken", repository]).is_object());
    assert_eq!(asked(&["release", "list", repository])["releases"].as_array().unwrap().len(), 2);

    fleet.policy(&json!({
        "waves": [1], "auto_promote": false, "failure_budget": 1, "max_unavailable": 2, "min_healthy": "0s",
    }));
    fleet.run(&["policy", "check", "policy.json", "-o", "json"]).json();
    std::fs::write(fleet.root(2).join("mended"), "").unwrap();
    asked(&["apply", "2.0.0"]);
    fleet.until_host(1, "failed").await;
    std::fs::write(fleet.root(1).join("mended"), "").unwrap();
    assert_eq!(asked(&["retry", "1"])["done"], "retry");
    fleet.until_host(1, "finished").await;
    assert_eq!(asked(&["promote"])["done"], "promote");
    let watched = fleet.run(&["status", "--watch", "-o", "json"]).ok();
    let documents: Vec<Value> = watched.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    let last = documents.last().unwrap();
    assert_eq!((&last["state"], &last["request"]["version"]), (&"completed".into(), &"2.0.0".into()));
    fleet.policy(&quick(2));
    assert_eq!(asked(&["rollback"])["done"], "rollback");
    fleet.until_complete("1.0.0").await;
    for verb in [&["pause"][..], &["stop"], &["skip", "1", "--reason", "late"]] {
        let late = fleet.run(verb);
        assert!(late.code == 1 && late.stderr.contains("no update is under way"), "{verb:?}: {late:#?}");
    }
    fleet.release("3.0.0", GATED);
    asked(&["apply", "3.0.0"]);
    fleet.until_host(1, "running step 2").await;
    assert_eq!(asked(&["stop", "--reason", "to see"])["done"], "stop");
    fleet.until("it is stopped", |status| status["state"] == "stopped").await;
    assert_eq!(asked(&["recover"])["done"], "recover");
}
