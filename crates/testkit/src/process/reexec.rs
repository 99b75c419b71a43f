//! A test's second process that is the test executable itself: server code runs in its own process, and can be killed,
//! without a binary of its own.
//!
//! ```no_run
//! use capstan_testkit::{Process, Ready, TempDir, process};
//! # use std::time::Duration;
//!
//! // The child: a test that does nothing unless it was started as one.
//! // #[test]
//! fn server() {
//!     let Some(arguments) = process::child_arguments("crash::server") else { return };
//!     // ... serve from arguments[0]; then say where:
//!     process::report_ready("127.0.0.1:12345");
//!     // ... forever
//! }
//!
//! // The parent.
//! async fn survives_kill9() -> anyhow::Result<()> {
//!     let dir = TempDir::new("crash")?;
//!     let ready = dir.join("ready");
//!     let data = dir.join("data");
//!     let child = process::child_test("crash::server", &ready, [data.to_str().unwrap()])?;
//!     let mut child = child.spawn(dir.join("server.log"))?;
//!     child.ready(&Ready::File(ready), Duration::from_secs(10)).await?;
//!     child.kill9()?;
//!     Ok(())
//! }
//! ```

use std::ffi::OsStr;
use std::path::Path;

use anyhow::Context;

use super::{Builder, Process};

const NAME: &str = "CAPSTAN_TEST_CHILD";
const ARGUMENT: &str = "CAPSTAN_TEST_CHILD_ARG_";
const READY_FILE: &str = "CAPSTAN_TEST_CHILD_READY";

/// A child that runs the test `name` of this executable (its full path, as `cargo test` prints it) in its child role,
/// with `arguments`. The child writes `ready_file` through [`report_ready`]; a file of an earlier run is removed first.
pub fn child_test(
    name: &str,
    ready_file: &Path,
    arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
) -> anyhow::Result<Builder> {
    if ready_file.exists() {
        std::fs::remove_file(ready_file)
            .with_context(|| format!("cannot remove {}", ready_file.display()))?;
    }
    let executable = std::env::current_exe().context("this executable has no path")?;
    let mut builder = Process::builder(executable)
        .args([name, "--exact", "--include-ignored", "--nocapture", "--test-threads=1"])
        .env(NAME, name)
        .env(READY_FILE, ready_file);
    for (index, argument) in arguments.into_iter().enumerate() {
        builder = builder.env(format!("{ARGUMENT}{index}"), argument);
    }
    Ok(builder)
}

/// In the child role of test `name`: its arguments. `None` in an ordinary test run, where the test does nothing.
#[must_use]
pub fn child_arguments(name: &str) -> Option<Vec<String>> {
    let asked = std::env::var(NAME).ok()?;
    let arguments = (0..).map_while(|index| std::env::var(format!("{ARGUMENT}{index}")).ok()).collect();
    (asked == name).then_some(arguments)
}

/// In a child: reports to the parent that this process serves, by renaming a complete file into place, with facts that
/// the parent needs (such as the address).
pub fn report_ready(facts: &str) {
    let file = std::env::var_os(READY_FILE).expect("report_ready is for the child role");
    let draft = Path::new(&file).with_extension("draft");
    std::fs::write(&draft, format!("{facts}\n")).expect("cannot write the ready file");
    std::fs::rename(&draft, &file).expect("cannot put the ready file in place");
}
