//! A note in the code names an owner, an issue or a reason: `TODO(context): text`.

use super::Complaint;

/// Code and scripts; prose may use the words.
pub(super) const EXTENSIONS: [&str; 6] = ["rs", "sh", "py", "toml", "proto", "Makefile"];
/// Written in two parts, so that this file passes the rule.
const WORDS: [&str; 3] = [concat!("TO", "DO"), concat!("FIX", "ME"), concat!("XX", "X")];

pub(super) fn check(path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let bare = WORDS.iter().find(|word| occurrences(line, word).any(|rest| !has_context(rest)));
        let text =
            bare.map(|word| format!("{word} without context: write {word}(who or issue or why): text"));
        complaints.extend(text.map(|text| Complaint::new(path, index + 1, text)));
    }
    complaints
}

/// What follows each occurrence of the word as a whole word.
fn occurrences<'a>(line: &'a str, word: &'a str) -> impl Iterator<Item = &'a str> {
    let joins = |c: char| c.is_alphanumeric() || c == '_';
    line.match_indices(word).filter_map(move |(at, _)| {
        let (before, rest) = (&line[..at], &line[at + word.len()..]);
        (!before.ends_with(joins) && !rest.starts_with(joins)).then_some(rest)
    })
}

fn has_context(rest: &str) -> bool {
    let inside = rest.strip_prefix('(').and_then(|rest| rest.split_once("):"));
    inside.is_some_and(|(context, text)| !context.trim().is_empty() && !text.trim().is_empty())
}

#[test]
fn a_note_needs_context_and_text() {
    let [todo, fixme, _] = WORDS;
    for bad in
        [format!("// {todo}: later"), format!("// {fixme}"), format!("{todo}(): x"), format!("{todo}(#7):")]
    {
        assert_eq!(check("a.rs", &bad).len(), 1, "{bad}");
    }
    for good in
        [format!("// {todo}(issue 7): page the answer"), format!("MASTODON{todo}S"), "todo list".into()]
    {
        assert_eq!(check("a.rs", &good), [], "{good}");
    }
}
