//! Steps on one real host: installing, rolling back, stopping, timing out, becoming healthy.

use std::time::{Duration, Instant};

use capstan_fleet::journal::{self, Event};
use capstan_fleet::run::{Permission, Runner, StepError};
use capstan_testkit::eventually;

use super::fixture::{Deb, one_step, update, version, work};
use super::{Workshop, stop};

fn step(actions: &str, rest: &str) -> String {
    format!("[[steps]]\nname = \"do\"\nkind = \"rolling\"\nactions = [{actions}]\n{rest}\n")
}

#[tokio::test]
async fn a_release_is_installed_and_rolled_back() {
    let workshop = Workshop::new("rollback");
    workshop.release_svc("1.0", Deb::default());
    workshop.release_svc("1.1", Deb::default());
    let host = workshop.host("h1");
    let outcome = update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    assert_eq!(outcome.installed.packages[&"svc".parse().unwrap()], version("1.0"));
    update(&host, 2, "1.1", Permission::Upgrade).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.1 ii"]);
    assert_eq!(host.current().await.unwrap(), Some(version("1.1")));
    // The source is gone: what is needed to go back is on the host.
    std::fs::remove_dir_all(workshop.repository()).unwrap();
    update(&host, 3, "1.0", Permission::RollBack).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
    assert_eq!(host.current().await.unwrap(), Some(version("1.0")));
}

#[tokio::test]
async fn what_is_installed_already_is_not_installed_again() {
    let workshop = Workshop::new("again");
    workshop.release_svc("1.0", Deb::default());
    let host = workshop.host("h1");
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    let log = workshop.root("h1").join("var/log/dpkg.log");
    let before = std::fs::read_to_string(&log).unwrap();
    update(&host, 2, "1.0", Permission::Upgrade).await.unwrap();
    assert_eq!(std::fs::read_to_string(&log).unwrap(), before);
    // A changed file is not what was installed.
    std::fs::write(workshop.root("h1").join("usr/share/svc/version"), "edited").unwrap();
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    assert!(host.installed(&manifest).await.unwrap().packages.is_empty());
    update(&host, 3, "1.0", Permission::Upgrade).await.unwrap();
    assert_eq!(std::fs::read_to_string(workshop.root("h1").join("usr/share/svc/version")).unwrap(), "1.0");
}

#[tokio::test]
async fn a_failing_package_says_why_and_the_release_before_heals() {
    let workshop = Workshop::new("postinst");
    workshop.release_svc("1.0", Deb::default());
    let broken = vec![("postinst", "echo cannot start >&2; exit 3".to_owned())];
    workshop.release_svc("1.1", Deb { scripts: broken, ..Deb::default() });
    let host = workshop.host("h1");
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    let error = update(&host, 2, "1.1", Permission::Upgrade).await.unwrap_err();
    let text = error.to_string();
    assert!(text.starts_with("step install failed: dpkg --root="), "{text}");
    assert!(text.contains("cannot start") && text.contains("exit status 3"), "{text}");
    assert_eq!(workshop.packages("h1"), ["svc 1.1 iF"]);
    update(&host, 3, "1.0", Permission::RollBack).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
}

#[tokio::test]
async fn a_stop_interrupts_a_command_at_once_with_all_its_children() {
    let workshop = Workshop::new("stop");
    let pids = workshop.dir.join("pids");
    let script = format!("sleep 1000 & echo $! $$ > {0}.new; mv {0}.new {0}; wait", pids.display());
    let argv = format!("{{ command = {{ argv = [\"sh\", \"-c\", \"{script}\"] }} }}");
    workshop.release("1.0", &step(&argv, "timeout_seconds = 600"));
    let host = workshop.host("h1");
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let stop = stop();
    let cancel = async {
        eventually("the command runs", Duration::from_secs(20), async || std::fs::read_to_string(&pids))
            .await;
        stop.cancel();
        Instant::now()
    };
    let work = work(&manifest, 1, 1);
    let (outcome, asked) = tokio::join!(host.run(&work, &stop), cancel);
    assert_eq!(outcome.unwrap_err().to_string(), "step do was stopped");
    assert!(asked.elapsed() < Duration::from_secs(5), "TERM suffices: {:?}", asked.elapsed());
    for pid in std::fs::read_to_string(&pids).unwrap().split_whitespace() {
        let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        assert!(stat.is_empty() || stat.contains(") Z"), "process {pid} lives: {stat}");
    }
}

#[tokio::test]
async fn a_stop_lets_a_package_installation_finish() {
    let workshop = Workshop::new("stop-dpkg");
    let (running, go) = (workshop.dir.join("running"), workshop.dir.join("go"));
    let text = format!("touch {}; while [ ! -e {} ]; do sleep 0.05; done", running.display(), go.display());
    workshop.release_svc("1.0", Deb { scripts: vec![("postinst", text)], ..Deb::default() });
    let host = workshop.host("h1");
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let stop = stop();
    let cancel = async {
        eventually("dpkg configures", Duration::from_secs(20), async || std::fs::metadata(&running)).await;
        stop.cancel();
        std::fs::write(&go, "").unwrap();
    };
    let work = work(&manifest, 1, 1);
    let (outcome, ()) = tokio::join!(host.run(&work, &stop), cancel);
    assert_eq!(outcome.unwrap_err().to_string(), "step install was stopped after installing svc");
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
    // Running it again finds that it is done.
    let outcome = host.run(&work, &super::stop()).await.unwrap();
    assert_eq!(outcome.installed.packages.len(), 1);
}

#[tokio::test]
async fn a_command_that_takes_too_long_or_fails_is_reported_with_its_output() {
    let workshop = Workshop::new("timeout");
    let slow = "{ command = { argv = [\"sh\", \"-c\", \"echo begun; sleep 600\"] } }";
    workshop.release("1.0", &step(slow, "timeout_seconds = 1"));
    let bad = "{ command = { argv = [\"sh\", \"-c\", \"echo no disk; exit 7\"] } }";
    workshop.release("1.1", &step(bad, "timeout_seconds = 60"));
    workshop.release("1.2", &step("{ command = { argv = [\"no-such-program\"] } }", "timeout_seconds = 60"));
    let host = workshop.host("h1");
    for (generation, to, says) in [
        (
            1,
            "1.0",
            "step do was not done after 1s: sh -c echo begun; sleep 600 took too long and was ended: begun",
        ),
        (2, "1.1", "step do failed: sh -c echo no disk; exit 7 exited with 7: no disk"),
        (
            3,
            "1.2",
            "step do failed: no-such-program cannot be started: No such file or directory (os error 2)",
        ),
    ] {
        let error = update(&host, generation, to, Permission::Upgrade).await.unwrap_err();
        assert_eq!(error.to_string(), says);
    }
}

#[tokio::test]
async fn an_installation_that_hangs_is_ended_and_reported() {
    let workshop = Workshop::new("hang");
    let file = workshop.deb(&Deb {
        name: "svc",
        version: "1.0",
        scripts: vec![("preinst", "sleep 600".to_owned())],
        ..Deb::default()
    });
    workshop.release("1.0", &one_step(&file, 1));
    let mut config = workshop.config("h1");
    config.dpkg.repair_time = Duration::from_secs(1);
    let host = capstan_fleet::run::Host::open(config, workshop.source()).unwrap();
    let error = update(&host, 1, "1.0", Permission::Upgrade).await.unwrap_err();
    let StepError::TimedOut { timeout, what, .. } = &error else { panic!("{error}") };
    assert_eq!(*timeout, Duration::from_secs(1));
    assert!(what.contains("took too long and was ended"), "{what}");
    assert_ne!(workshop.packages("h1"), ["svc 1.0 ii"]);
}

#[tokio::test]
async fn the_lock_of_another_installer_is_waited_for() {
    use nix::fcntl::{FcntlArg, fcntl};
    let workshop = Workshop::new("lock");
    workshop.release_svc("1.0", Deb::default());
    let host = workshop.host("h1");
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    workshop.config("h1").dpkg.prepare().unwrap();
    let path = workshop.root("h1").join("var/lib/dpkg/lock");
    let file = std::fs::File::options().create(true).truncate(true).write(true).open(path).unwrap();
    let lock =
        nix::libc::flock { l_type: nix::libc::F_WRLCK as i16, l_whence: 0, l_start: 0, l_len: 0, l_pid: 0 };
    fcntl(&file, FcntlArg::F_SETLK(&lock)).unwrap();
    let output = workshop.dir.join("h1/state/output/1-1-0.log");
    let release = async {
        eventually("dpkg has seen the lock", Duration::from_secs(20), async || {
            let text = std::fs::read_to_string(&output).unwrap_or_default();
            if text.contains("another process") { Ok(()) } else { Err(text) }
        })
        .await;
        drop(file);
    };
    let work = work(&manifest, 1, 1);
    let stop = stop();
    let (outcome, ()) = tokio::join!(host.run(&work, &stop), release);
    outcome.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
}

#[tokio::test]
async fn health_is_waited_for_and_its_absence_is_told() {
    let workshop = Workshop::new("health");
    let flag = workshop.dir.join("healthy");
    let probe = |argv: &str| {
        format!(
            "timeout_seconds = 60\nhealth = {{ probe = {{ command = {{ argv = {argv} }} }}, \
             min_healthy_seconds = 1, deadline_seconds = 2 }}"
        )
    };
    workshop.release("1.0", &step("", &probe(&format!("[\"test\", \"-e\", \"{}\"]", flag.display()))));
    let host = workshop.host("h1");
    let error = update(&host, 1, "1.0", Permission::Upgrade).await.unwrap_err();
    let StepError::Unhealthy { what, .. } = error else { panic!("{error}") };
    assert_eq!(what, format!("test -e {} exited with 1", flag.display()));
    std::fs::write(&flag, "").unwrap();
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
}

#[tokio::test]
async fn the_journal_says_what_was_done_in_which_order() {
    let workshop = Workshop::new("journal");
    let file = workshop.deb(&Deb { name: "svc", version: "1.0", ..Deb::default() });
    let second = "[[steps]]\nname = \"two\"\nkind = \"barrier\"\ntimeout_seconds = 9\n\
                  actions = [{ command = { argv = [\"true\"] } }, { command = { argv = [\"true\"] } }]\n";
    workshop.release("1.0", &format!("{}{second}", one_step(&file, 60)));
    let host = workshop.host("h1");
    update(&host, 5, "1.0", Permission::Upgrade).await.unwrap();
    let told = |event: &Event| match event {
        Event::Intent(act) => format!("intent {}.{}", act.step, act.number),
        Event::Done(act) => format!("done {}.{}", act.step, act.number),
        Event::Failed { act, .. } => format!("failed {}.{}", act.step, act.number),
        Event::Finished => "finished".to_owned(),
    };
    let entries = journal::read(&workshop.dir.join("h1/state/journal")).unwrap();
    let story: Vec<String> = entries.iter().map(|entry| told(&entry.event)).collect();
    assert_eq!(
        story,
        ["intent 1.0", "done 1.0", "intent 2.0", "done 2.0", "intent 2.1", "done 2.1", "finished"]
    );
    let manifest = host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let stale = host.run(&work(&manifest, 4, 1), &stop()).await.unwrap_err();
    assert_eq!(
        stale.to_string(),
        "the work belongs to request 4, and this host has worked for request 5 already"
    );
}

#[tokio::test]
async fn only_one_worker_runs_on_a_host() {
    let workshop = Workshop::new("one");
    let _first = workshop.host("h1");
    let second = capstan_fleet::run::Host::open(workshop.config("h1"), workshop.source()).unwrap_err();
    assert!(second.to_string().ends_with("only one may run on a host"), "{second}");
}

#[tokio::test]
async fn a_dpkg_that_is_killed_is_repaired_at_once() {
    let workshop = Workshop::new("killed");
    let flag = workshop.dir.join("killed-once");
    let text = format!("test -e {0} || {{ touch {0}; kill -9 $PPID; sleep 1; }}", flag.display());
    workshop.release_svc("1.0", Deb { scripts: vec![("postinst", text)], ..Deb::default() });
    let host = workshop.host("h1");
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    assert!(flag.exists());
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
}

#[tokio::test]
async fn health_is_asked_over_http() {
    use crate::release::server::{Fault, Server};
    let workshop = Workshop::new("http-health");
    std::fs::write(workshop.dir.join("health"), "fine").unwrap();
    let server = Server::start(workshop.dir.path(), Fault::Busy(2)).await;
    let health = format!(
        "timeout_seconds = 60\nhealth = {{ probe = {{ http = {{ url = \"{}/health\" }} }}, \
         min_healthy_seconds = 0, deadline_seconds = 30 }}",
        server.address
    );
    workshop.release("1.0", &step("", &health));
    update(&workshop.host("h1"), 1, "1.0", Permission::Upgrade).await.unwrap();
    assert!(server.requests().0 >= 3, "two bad looks and a good one");
}

#[tokio::test]
async fn signatures_that_came_later_count() {
    let workshop = Workshop::new("later");
    workshop.release_svc("1.0", Deb::default());
    let host = workshop.host("h1");
    host.release(&version("1.0"), Permission::Upgrade).await.unwrap();
    let second = capstan_fleet::release::SecretKey::generate().unwrap();
    workshop.trust(&capstan_fleet::release::Trust::in_all_of(vec![second.public()]));
    host.release(&version("1.0"), Permission::Upgrade).await.unwrap_err();
    capstan_fleet::release::make::sign(&workshop.repository().join("releases/1.0"), &second).unwrap();
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
}

#[tokio::test]
async fn output_and_cache_of_the_past_are_removed() {
    let workshop = Workshop::new("past");
    let host = workshop.host("h1");
    for (generation, to) in (1..).zip(["1.0", "1.1", "1.2"]) {
        workshop.release_svc(to, Deb::default());
        update(&host, generation, to, Permission::Upgrade).await.unwrap();
    }
    let count = |path: &str| std::fs::read_dir(workshop.dir.join(path)).unwrap().count();
    assert_eq!(count("h1/state/output"), 1);
    assert_eq!(count("h1/cache/sha256"), 2, "the current and the kept package");
    assert_eq!(count("h1/cache/partial"), 0);
    assert_eq!(count("h1/state/releases"), 2);
}

#[tokio::test]
async fn one_request_turns_back_and_is_tried_again() {
    let workshop = Workshop::new("turn");
    let bad = workshop.dir.join("bad");
    workshop.release_svc("1.0", Deb::default());
    let file = workshop.deb(&Deb { name: "svc", version: "1.1", ..Deb::default() });
    let check = format!(
        "[[steps]]\nname = \"check\"\nkind = \"rolling\"\ntimeout_seconds = 9\n\
         actions = [{{ command = {{ argv = [\"test\", \"!\", \"-e\", \"{}\"] }} }}]\n",
        bad.display()
    );
    workshop.release("1.1", &format!("{}{check}", one_step(&file, 60)));
    let host = workshop.host("h1");
    update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
    std::fs::write(&bad, "").unwrap();
    update(&host, 2, "1.1", Permission::Upgrade).await.unwrap_err();
    assert_eq!(workshop.packages("h1"), ["svc 1.1 ii"]);
    // The same request goes back to what the host had, then forward again.
    update(&host, 2, "1.0", Permission::RollBack).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
    std::fs::remove_file(&bad).unwrap();
    update(&host, 2, "1.1", Permission::Upgrade).await.unwrap();
    assert_eq!(workshop.packages("h1"), ["svc 1.1 ii"]);
    assert_eq!(host.current().await.unwrap(), Some(version("1.1")));
}
