//! What a service decides depends on nothing but its arguments: `decide/` does not read the store, the clock or chance.

use super::{Complaint, unexcused};

/// How code asks for something that is not an argument.
const EFFECTS: [&str; 7] =
    ["async fn", ".await", "Store,", "&Store", "clock::since_epoch", "Instant::now", "rand::random"];

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    if !concerns(path) {
        return Vec::new();
    }
    let code = unexcused(text).filter(|(_, line)| !line.trim_start().starts_with("//"));
    code.filter_map(|(number, line)| {
        // Followed by a letter it is another word: `.awaited()`.
        let is_there = |effect: &&&str| {
            let mut rest = line.split(**effect).skip(1);
            rest.any(|rest| !rest.starts_with(|next: char| next.is_alphanumeric() || next == '_'))
        };
        let effect = EFFECTS.iter().find(is_there)?;
        Some(Complaint::new(
            path,
            number,
            format!("decides by something other than its arguments: `{effect}`"),
        ))
    })
    .collect()
}

/// `crates/<service>/src/decide/...`, without files of tests.
fn concerns(path: &str) -> bool {
    let parts: Vec<&str> = path.split('/').collect();
    let [_, _, "src", "decide" | "decide.rs", rest @ ..] = &parts[..] else { return false };
    !rest.iter().any(|part| matches!(*part, "tests" | "tests.rs"))
}

#[test]
fn effects_are_found_in_decisions_only() {
    let text = "async fn plan(store: &Store) {\n    let now = clock::since_epoch();\n// Instant::now is fine here\nrecord.awaited();\n}";
    let lines: Vec<usize> = check("crates/redis/src/decide/heal.rs", text).iter().map(|c| c.line).collect();
    assert_eq!(lines, [1, 2]);
    assert_eq!(check("crates/fleet/src/decide.rs", text).len(), 2);
    for other in ["crates/redis/src/broker.rs", "crates/redis/src/decide/heal/tests.rs"] {
        assert_eq!(check(other, text), []);
    }
}
