//! Settings: what is refused, in which words, before anything happens.

use capstan_testkit::TempDir;

use crate::binary::{Run, capstan, command, finish};
use crate::golden::golden;

const WRONG: &str = "\
[meta]
mode = \"sqlite\"
lisen = \"127.0.0.1:1\"
history = \"many\"
endpoints = [\"127.0.0.1:2379\"]
prefix = \"team/\"
user = \"capstan\"

[http]
listen = \"0.0.0.0:7700\"

[hots]
id = \"a\"

[host]
id = \"rack 1\"
lease_ttl = \"1s\"
labels = [\"rack\"]
";

fn with_file(text: &str, args: &[&str]) -> Run {
    let dir = TempDir::new("config").unwrap();
    std::fs::write(dir.join("capstan.toml"), text).unwrap();
    let args: Vec<&str> = ["--config", "capstan.toml"].into_iter().chain(args.iter().copied()).collect();
    let run = capstan(dir.path(), &args);
    let left: Vec<_> =
        std::fs::read_dir(dir.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    assert_eq!(left, ["capstan.toml"], "something was made although the settings are wrong");
    run
}

#[test]
fn every_mistake_is_named_at_once_with_its_place() {
    let run = with_file(WRONG, &["config", "check"]);
    assert_eq!(run.code, 64);
    golden("config-wrong.txt", &run.stderr);
}

#[test]
fn a_daemon_with_wrong_settings_does_nothing_at_all() {
    for daemon in [&["up"][..], &["host"], &["controller"], &["meta", "serve"]] {
        let run = with_file(WRONG, daemon);
        assert_eq!(run.code, 64, "{daemon:?}: {run:#?}");
        assert!(run.stderr.contains("did you mean `meta.listen`?"), "{run:#?}");
    }
}

#[test]
fn a_file_that_is_no_toml_says_where() {
    let run = with_file("[meta]\ndir = \n", &["config", "check"]);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("capstan.toml:2:"), "{run:#?}");
}

#[test]
fn a_missing_file_is_a_mistake_in_the_settings() {
    let run = capstan(".".as_ref(), &["--config", "/nowhere/capstan.toml", "config", "check"]);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("/nowhere/capstan.toml"), "{run:#?}");
}

#[test]
fn show_says_where_each_value_came_from_and_hides_secrets() {
    let dir = TempDir::new("config").unwrap();
    let text = "[meta]\nmode = 'etcd'\nendpoints = ['http://10.0.0.1:2379']\nuser = 'u'\n[host]\nid = 'h1'\nlabels = { rack = 'r1' }\n";
    std::fs::write(dir.join("c.toml"), text).unwrap();
    let mut show = command(dir.path());
    show.env("CAPSTAN_META_PASSWORD", "hunter2").env("CAPSTAN_LOG_LEVEL", "debug");
    let run =
        finish(show.args(["--config", "c.toml", "--set", "host.id=h2", "config", "show"]).output().unwrap());
    assert!(!run.stdout.contains("hunter2"));
    golden("config-show.txt", &run.ok());
}

#[test]
fn an_open_address_is_refused_until_it_is_allowed() {
    let run = capstan(".".as_ref(), &["config", "check", "--set", "meta.listen=0.0.0.0:7701"]);
    assert_eq!(run.code, 64);
    assert!(run.stderr.contains("meta.allow_insecure = true"), "{run:#?}");
    let allowed = ["--set", "meta.listen=0.0.0.0:7701", "--set", "meta.allow_insecure=true"];
    let args: Vec<&str> = ["config", "check"].into_iter().chain(allowed).collect();
    capstan(".".as_ref(), &args).ok();
}

#[test]
fn check_speaks_json() {
    let run = capstan(".".as_ref(), &["config", "check", "-o", "json", "--set", "log.format=xml"]);
    assert_eq!(run.code, 64);
    let answer: serde_json::Value = serde_json::from_str(&run.stdout).unwrap();
    assert_eq!(answer["valid"], false);
    assert_eq!(answer["problems"][0], "--set log.format=xml: log.format: \"xml\" is not text or json");
}

#[test]
fn the_example_configuration_is_valid_and_every_unit_names_one_of_its_files() {
    let deploy = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
    let dir = TempDir::new("deploy").unwrap();
    for unit in std::fs::read_dir(deploy.join("systemd")).unwrap() {
        let unit = std::fs::read_to_string(unit.unwrap().path()).unwrap();
        let start = unit.lines().find_map(|line| line.strip_prefix("ExecStart=/usr/bin/capstan ")).unwrap();
        let file = start.split("/etc/capstan/").nth(1).unwrap();
        let mut check = command(dir.path());
        check.args(["config", "check", "--config"]).arg(deploy.join("config").join(file));
        check.env("CAPSTAN_REDIS_SECRET", "a secret of the example");
        let run = finish(check.output().unwrap());
        assert_eq!(run.code, 0, "{file}: {run:#?}");
    }
}

#[test]
fn a_role_whose_settings_are_missing_is_refused() {
    let run = capstan(".".as_ref(), &["config", "check", "--role", "controller"]);
    assert_eq!(run.code, 64, "{run:#?}");
    assert!(run.stderr.contains("redis.secret"), "{run:#?}");
    let set = ["config", "check", "--role", "controller", "--set", "redis.secret=of-this-test"];
    capstan(".".as_ref(), &set).ok();
    assert_eq!(capstan(".".as_ref(), &["config", "check", "--role", "host"]).code, 64);
}

#[test]
fn a_number_is_accepted_where_one_is_meant() {
    let file = "[host]\nroles = ['fleet']\n[fleet]\nlrn = 7\ntrust = 'capstan.toml'\n";
    with_file(file, &["config", "check"]).ok();
}
