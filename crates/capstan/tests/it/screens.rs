//! What an operator sees on a terminal of 80 columns and 24 lines: start-up, status, a drain, a rollout and moves, kept as
//! transcripts in `tests/golden/screens.txt`. What differs from run to run is replaced.

use std::fmt::Write as _;

use capstan_testkit::eventually;

use crate::binary::{DEADLINE, Daemon};
use crate::golden::golden;

const COLUMNS: usize = 80;
const LINES: usize = 24;

/// A session at a terminal, written down.
struct Session {
    up: Daemon,
    text: String,
}

impl Session {
    /// `capstan status` once it is green with this number of notices: after a start, services take a moment to settle.
    async fn types_status(&mut self, notices: usize) {
        let run = eventually("status is green", DEADLINE, async || {
            let run = self.up.capstan(&["status"]);
            let found = run.stdout.lines().filter(|line| line.starts_with("notice")).count();
            if run.code == 0 && found == notices { Ok(run) } else { Err(run.stdout) }
        })
        .await;
        self.shows("$ capstan status", &run.stdout);
    }

    /// A command and what it says.
    fn types(&mut self, args: &[&str], code: i32) {
        let run = self.up.capstan(args);
        assert_eq!(run.code, code, "{run:#?}");
        // What is said while it waits depends on how quick it is.
        self.shows(&format!("$ capstan {}", args.join(" ")), &run.stdout);
    }

    fn shows(&mut self, title: &str, screen: &str) {
        let (title, screen) = (self.plain(title), self.plain(screen));
        for line in screen.lines() {
            assert!(line.chars().count() <= COLUMNS, "longer than {COLUMNS} columns: {line}");
        }
        assert!(screen.lines().count() <= LINES, "longer than {LINES} lines:\n{screen}");
        writeln!(self.text, "{title}\n{}\n", screen.trim_end()).unwrap();
    }

    /// Ports, directories, times and versions are not the same twice.
    fn plain(&self, text: &str) -> String {
        let text = text.replace(&self.up.dir.path().display().to_string(), "DIR");
        let text = text.replace(env!("CARGO_PKG_VERSION"), "VERSION");
        let mut out = String::new();
        let mut rest = text.as_str();
        while let Some(at) = rest.find(|letter: char| letter.is_ascii_digit()) {
            out.push_str(&rest[..at]);
            let end =
                rest[at..].find(|letter: char| !letter.is_ascii_digit()).map_or(rest.len(), |end| at + end);
            let behind = &rest[end..];
            let port = ["127.0.0.1:", " -p "].iter().any(|before| out.ends_with(before)) && end - at >= 4;
            let unit = ["s", "ms", "m"].iter().any(|unit| {
                behind
                    .strip_prefix(unit)
                    .is_some_and(|rest| !rest.starts_with(|next: char| next.is_alphanumeric()))
            });
            let time = unit && (out.ends_with("for ") || out.ends_with("since "));
            let time = time || out.ends_with("revision ");
            out.push_str(if port {
                "PORT"
            } else if time {
                "N"
            } else {
                &rest[at..end]
            });
            rest = behind;
        }
        out + rest
    }
}

/// The banner of a `capstan up`, once it is there.
async fn banner(up: &Daemon) -> String {
    eventually("the banner is there", DEADLINE, async || {
        let said = std::fs::read_to_string(up.dir.join("log")).unwrap_or_default();
        if said.contains("Ctrl-C stops it") { Ok(said) } else { Err(said) }
    })
    .await
}

/// The first minutes of a newcomer: every service, a scaling of Redis and a rollout.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn first_screens_fit_a_terminal_and_read_as_recorded() {
    let args = ["up", "--port-base", "0", "--set", "host.id=one", "--log-level", "error"];
    let up = Daemon::start("first-screens", &args).await;
    let mut session = Session { up, text: String::new() };
    let banner = banner(&session.up).await;
    session.shows("$ capstan up", &banner);
    session.types_status(0).await;
    session.types(&["redis", "scale", "demo", "--nodes", "6", "--wait", "180s"], 0);
    session.types(&["redis", "moves"], 0);
    let sample = session.up.dir.join("data/sample").display().to_string();
    session.types(&["fleet", "release", "sample", &sample], 0);
    // The rollout takes a minute, most of it watching the health of the hosts.
    session.types(&["fleet", "apply", "--wait", "1ms"], 3);
    session.types(&["fleet", "apply", "--wait", "180s"], 0);
    session.types(&["fleet", "status"], 0);
    golden("first-screens.txt", &session.text);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn screens_fit_a_terminal_and_read_as_recorded() {
    let args =
        ["up", "--port-base", "0", "--set", "host.id=one", "--set", "up.hosts=0", "--log-level", "error"];
    let up = Daemon::start("screens", &args).await;
    let mut session = Session { up, text: String::new() };
    let banner = banner(&session.up).await;
    session.shows("$ capstan up", &banner);
    session.types_status(0).await;
    session.types(&["redis", "moves"], 0);
    session.types(&["hosts", "drain", "one", "--reason", "new kernel", "--wait", "30s"], 0);
    session.types_status(1).await;
    session.types(&["hosts", "undrain", "one", "--wait", "30s"], 0);
    session.types(&["fleet", "status"], 0);
    golden("screens.txt", &session.text);
}
