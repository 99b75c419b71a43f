//! kill -9 at random instants: of the worker, of the worker and its installer; then the same work is resumed.

use std::path::Path;
use std::time::Duration;

use capstan_fleet::journal::{self, Event};
use capstan_fleet::run::{Permission, Runner};
use capstan_testkit::{process, seed};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use rand::RngExt;

use super::Workshop;
use super::fixture::{Deb, update, version, work};

const CHILD: &str = "install::crash::worker";

/// The worker: installs a release and ends.
#[test]
fn worker() {
    let Some(arguments) = process::child_arguments(CHILD) else { return };
    let [dir, generation, to] = &arguments[..] else { panic!("{arguments:?}") };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let workshop = Path::new(dir);
        let config = super::fixture::config_at(workshop, "h1");
        let source = super::fixture::source_at(workshop);
        let host = capstan_fleet::run::Host::open(config, source).unwrap();
        process::report_ready("begun");
        update(&host, generation.parse().unwrap(), to, Permission::Upgrade).await.unwrap();
    });
}

fn children_of(pid: u32) -> Vec<i32> {
    let text = std::fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    text.split_whitespace().filter_map(|pid| pid.parse().ok()).collect()
}

/// Runs the worker and kills it after a while, perhaps with what it started.
async fn crash_once(workshop: &Workshop, generation: u64, to: &str, rng: &mut impl RngExt) -> bool {
    let ready = workshop.dir.join("ready");
    let arguments = [workshop.dir.path().display().to_string(), generation.to_string(), to.to_owned()];
    let child = process::child_test(CHILD, &ready, arguments).unwrap();
    let mut child = child.spawn(workshop.dir.join("worker.log")).unwrap();
    child.ready(&capstan_testkit::Ready::File(ready), Duration::from_secs(30)).await.unwrap();
    let lifetime = Duration::from_micros(rng.random_range(0..400_000));
    if let Ok(status) = child.exited(lifetime).await {
        assert!(status.success(), "{}", child.log_tail());
        return true;
    }
    let installers = children_of(child.pid());
    child.kill9().unwrap();
    if rng.random_bool(0.5) {
        for pid in installers {
            let _ = kill(Pid::from_raw(pid), Signal::SIGKILL);
        }
    }
    false
}

/// No act is begun twice without having ended in between, and all are in order.
fn assert_in_order(journal: &Path) {
    let entries = journal::read(journal).unwrap();
    let mut last = None;
    for entry in entries.iter().filter(|entry| matches!(entry.event, Event::Intent(_) | Event::Done(_))) {
        let key = (entry.course.generation, entry.event.act(), matches!(entry.event, Event::Done(_)));
        assert!(Some(key) > last, "{key:?} after {last:?}");
        last = Some(key);
    }
}

#[test]
fn a_killed_worker_resumes_and_ends_with_exactly_the_release() {
    seed::seeds(1, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(crash_and_resume(seed));
    });
}

async fn crash_and_resume(seed: u64) {
    let mut rng = seed::rng(seed);
    let workshop = Workshop::new("crash");
    let count = workshop.dir.join("count");
    let script = format!("echo x >> {}", count.display());
    for to in ["1.0", "1.1"] {
        let file = workshop.deb(&Deb { name: "svc", version: to, files: 800, ..Deb::default() });
        let rest = format!(
            "packages = [\"{file}\"]\n[[steps]]\nname = \"one\"\nkind = \"rolling\"\ntimeout_seconds = 60\n\
             actions = [{{ packages = [\"svc\"] }}, \
             {{ command = {{ argv = [\"sh\", \"-c\", \"{script}\"], after_crash = \"rerun\" }} }}]\n"
        );
        workshop.release(to, &rest);
    }
    let rounds = seed::soak(4, 60);
    for round in 1..=rounds {
        let to = if round % 2 == 1 { "1.0" } else { "1.1" };
        let _ = std::fs::remove_file(workshop.dir.join("h1/state/releases.json"));
        let _ = std::fs::remove_file(&count);
        let mut crashes = 0;
        while !crash_once(&workshop, round, to, &mut rng).await {
            crashes += 1;
            // The longer it takes, the longer it lives.
            if crashes > 6 {
                break;
            }
        }
        let host = workshop.host("h1");
        update(&host, round, to, Permission::Upgrade).await.unwrap();
        assert_eq!(workshop.packages("h1"), [format!("svc {to} ii")], "round {round}, seed {seed}");
        let manifest = host.release(&version(to), Permission::Upgrade).await.unwrap();
        assert_eq!(host.installed(&manifest).await.unwrap().packages.len(), 1);
        host.run(&work(&manifest, round, 1), &super::stop()).await.unwrap();
        assert_in_order(&workshop.dir.join("h1/state/journal"));
        let ran = std::fs::read_to_string(&count).unwrap().len() / 2;
        assert!((1..=1 + crashes).contains(&ran), "the command ran {ran} times in {crashes} crashes");
        eprintln!("round {round}: {crashes} crashes");
    }
}

#[test]
fn the_installer_outlives_the_worker_and_is_not_run_twice() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let workshop = Workshop::new("outlive");
        let (running, go) = (workshop.dir.join("running"), workshop.dir.join("go"));
        let text =
            format!("echo x >> {}; while [ ! -e {} ]; do sleep 0.05; done", running.display(), go.display());
        workshop.release_svc("1.0", Deb { scripts: vec![("postinst", text)], ..Deb::default() });
        let ready = workshop.dir.join("ready");
        let arguments = [workshop.dir.path().display().to_string(), "1".to_owned(), "1.0".to_owned()];
        let child = process::child_test(CHILD, &ready, arguments).unwrap();
        let mut child = child.spawn(workshop.dir.join("worker.log")).unwrap();
        let look = async || std::fs::metadata(&running);
        capstan_testkit::eventually("dpkg configures", Duration::from_secs(30), look).await;
        child.kill9().unwrap();
        let host = workshop.host("h1");
        let resumed = update(&host, 1, "1.0", Permission::Upgrade);
        let release = async {
            let entries = || journal::read(&workshop.dir.join("h1/state/journal")).unwrap().len();
            assert_eq!(entries(), 1, "the intent of the dead worker");
            std::fs::write(&go, "").unwrap();
        };
        let (outcome, ()) = tokio::join!(resumed, release);
        outcome.unwrap();
        assert_eq!(workshop.packages("h1"), ["svc 1.0 ii"]);
        assert_eq!(std::fs::read_to_string(&running).unwrap(), "x\n", "one installation");
    });
}

#[test]
fn a_command_that_died_with_the_worker_is_reported_before_it_is_run_again() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    runtime.block_on(async {
        let workshop = Workshop::new("report");
        let running = workshop.dir.join("running");
        let script = format!("echo x >> {0}; test -e {0}.again || sleep 1000", running.display());
        workshop.release(
            "1.0",
            &format!(
                "[[steps]]\nname = \"do\"\nkind = \"once\"\ntimeout_seconds = 60\n\
                 actions = [{{ command = {{ argv = [\"sh\", \"-c\", \"{script}\"] }} }}]\n"
            ),
        );
        let ready = workshop.dir.join("ready");
        let arguments = [workshop.dir.path().display().to_string(), "1".to_owned(), "1.0".to_owned()];
        let child = process::child_test(CHILD, &ready, arguments).unwrap();
        let mut child = child.spawn(workshop.dir.join("worker.log")).unwrap();
        let look = async || std::fs::metadata(&running);
        capstan_testkit::eventually("the command runs", Duration::from_secs(30), look).await;
        child.kill9().unwrap();
        std::fs::write(workshop.dir.join("running.again"), "").unwrap();
        let host = workshop.host("h1");
        let error = update(&host, 1, "1.0", Permission::Upgrade).await.unwrap_err().to_string();
        assert!(error.contains("how far it came is unknown; a retry runs it again"), "{error}");
        assert_eq!(std::fs::read_to_string(&running).unwrap(), "x\n");
        update(&host, 1, "1.0", Permission::Upgrade).await.unwrap();
        assert_eq!(std::fs::read_to_string(&running).unwrap(), "x\nx\n");
    });
}
