//! The house rules that the compiler does not check. Each is a pure function from text to complaints with a test that
//! it can fail; this file runs them on the workspace.

mod keytext;
mod layers;
mod length;
mod links;
mod machine;
mod notes;
mod purity;
mod sleeps;
mod tls;
mod workspace;

use std::fmt::{self, Display};

use workspace::Workspace;

/// A violated rule, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Complaint {
    path: String,
    /// From 1; 0 is the whole file.
    line: usize,
    text: String,
}

impl Complaint {
    fn new(path: &str, line: usize, text: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, text: text.into() }
    }
}

impl Display for Complaint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.line {
            0 => write!(f, "{}: {}", self.path, self.text),
            line => write!(f, "{}:{line}: {}", self.path, self.text),
        }
    }
}

/// The lines of a text with their numbers, without those that a comment excuses.
///
/// A line is excused by `tidy: allow, because <reason>` on it or on the line before it.
fn unexcused(text: &str) -> impl Iterator<Item = (usize, &str)> {
    let mut excused_next = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let excuse =
            line.split_once("tidy: allow, because ").is_some_and(|(_, reason)| !reason.trim().is_empty());
        let excused = excuse || excused_next;
        excused_next = excuse;
        (!excused).then_some((index + 1, line))
    })
}

#[track_caller]
fn none(rule: &str, complaints: impl IntoIterator<Item = Complaint>) {
    let complaints: Vec<String> = complaints.into_iter().map(|complaint| format!("  {complaint}")).collect();
    assert!(complaints.is_empty(), "{rule}:\n{}", complaints.join("\n"));
}

#[test]
fn no_file_is_too_long_to_read() {
    let workspace = Workspace::read();
    none("a file answers one question", workspace.each("rs", length::check));
}

#[test]
fn dependencies_point_downwards() {
    let workspace = Workspace::read();
    let manifests = workspace.files.iter().filter(|(path, _)| layers::is_crate_manifest(path));
    none(
        "capstan -> console -> services -> control, placement, log -> meta",
        manifests.flat_map(|(p, t)| layers::check(p, t)),
    );
}

#[test]
fn key_text_is_in_keys_only() {
    let workspace = Workspace::read();
    none("a key is spelled in its keys.rs and nowhere else", workspace.each("rs", keytext::check));
}

#[test]
fn decisions_depend_on_their_arguments_only() {
    let workspace = Workspace::read();
    none("decide/ is pure: the shell passes in what it needs", workspace.each("rs", purity::check));
}

#[test]
fn every_note_to_ourselves_has_a_context() {
    let workspace = Workspace::read();
    none("say who, which issue, or why", workspace.each_of(&notes::EXTENSIONS, notes::check));
}

#[test]
fn links_of_the_docs_resolve() {
    let workspace = Workspace::read();
    none("internal links resolve", links::check(&workspace.files));
}

#[test]
fn there_is_one_tls_provider() {
    none("aws-lc-rs is the one cryptography provider", tls::check(&workspace::dependency_tree()));
}

#[test]
fn tests_wait_for_conditions() {
    let workspace = Workspace::read();
    none(
        "use testkit's eventually, or tokio::time::advance",
        workspace.each_of(&["rs", "py", "sh"], sleeps::check),
    );
}

#[test]
fn nothing_depends_on_one_machine() {
    let workspace = Workspace::read();
    none("no path of somebody's machine", workspace.files.iter().flat_map(|(p, t)| machine::check(p, t)));
}

#[test]
fn an_excuse_needs_a_reason_and_covers_its_line_and_the_next() {
    let text = "a\n// tidy: allow, because it is a URL\nb\nc // tidy: allow, because so\nd\n// tidy: allow, because \ne";
    let left: Vec<usize> = unexcused(text).map(|(number, _)| number).collect();
    assert_eq!(left, [1, 6, 7]);
}
