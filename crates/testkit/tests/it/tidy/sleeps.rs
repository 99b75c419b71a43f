//! Tests wait for conditions, not for time. With tokio's paused clock a sleep takes no time: a file of such tests has a
//! line that declares it.

use super::{Complaint, unexcused};

const PAUSED: &str = "// tidy: the clock is paused in this file";

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    if !concerns(path) || text.lines().any(|line| line == PAUSED) {
        return Vec::new();
    }
    let sleeping =
        unexcused(text).filter(|(_, line)| line.contains("sleep(") || line.contains("sleep_until("));
    sleeping.map(|(number, _)| Complaint::new(path, number, "sleeps; wait for a condition")).collect()
}

/// `crates/<crate>/tests/...`, except the testkit's own, which test waiting itself.
fn concerns(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    parts.len() > 3 && parts[0] == "crates" && parts[1] != "testkit" && parts[2] == "tests"
}

#[test]
fn a_sleep_in_a_test_is_found() {
    let text = "tokio::time::sleep(SECOND).await;";
    assert_eq!(check("crates/meta/tests/it/watch.rs", text).len(), 1);
    assert_eq!(check("crates/meta/src/watch.rs", text), []);
    assert_eq!(check("crates/testkit/tests/it/proxy.rs", text), []);
    assert_eq!(check("crates/meta/tests/it/watch.rs", &format!("{PAUSED}\n{text}")), []);
}
