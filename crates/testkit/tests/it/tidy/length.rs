//! No file is too long: a long file has more than one subject.

use super::Complaint;

const MOST_LINES: usize = 600;

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    let lines = text.lines().count();
    let too_long = lines > MOST_LINES;
    too_long
        .then(|| Complaint::new(path, 0, format!("{lines} lines, at most {MOST_LINES}: split it")))
        .into_iter()
        .collect()
}

#[test]
fn a_long_file_is_named() {
    assert_eq!(check("a.rs", &"x\n".repeat(600)), []);
    let complaint = &check("crates/a/src/long.rs", &"x\n".repeat(601))[0];
    assert_eq!(complaint.to_string(), "crates/a/src/long.rs: 601 lines, at most 600: split it");
}
