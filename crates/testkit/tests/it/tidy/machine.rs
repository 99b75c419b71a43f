//! Nothing in the repository contains a path of one developer's machine.

use super::Complaint;

/// Written in two parts, so that this file passes the rule.
const HOMES: [&str; 2] = [concat!("/wo", "rk/"), concat!("/ro", "ot/")];

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let found = HOMES.iter().find(|home| begins_a_path(line, home));
        complaints.extend(found.map(|home| Complaint::new(path, index + 1, format!("names {home}..."))));
    }
    complaints
}

/// `x/home/` is the inside of another path.
fn begins_a_path(line: &str, home: &str) -> bool {
    let inside = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | '}' | '>' | '/');
    line.match_indices(home).any(|(at, _)| !line[..at].ends_with(inside))
}

#[test]
fn absolute_homes_are_found_and_inner_directories_are_not() {
    for home in HOMES {
        assert_eq!(check("a.md", &format!("see `{home}a`")).len(), 1);
        assert_eq!(check("a.md", &format!("see target{home}a and ${{dir}}{home}")), []);
    }
}
