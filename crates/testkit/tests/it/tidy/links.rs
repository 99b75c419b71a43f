//! Links inside the docs resolve: to a file or directory of the repository, and to one of its headings.

use std::collections::BTreeMap;
use std::path::{Component, Path};

use super::Complaint;

type Files = BTreeMap<String, String>;

pub(super) fn check(files: &Files) -> Vec<Complaint> {
    let documents = files.iter().filter(|(path, _)| concerns(path));
    documents.flat_map(|(path, text)| document(files, path, text)).collect()
}

fn concerns(path: &str) -> bool {
    let front = matches!(path, "README.md" | "ARCHITECTURE.md" | "CONTRIBUTING.md");
    front || (path.starts_with("docs/") && path.ends_with(".md"))
}

fn document(files: &Files, path: &str, text: &str) -> Vec<Complaint> {
    let mut complaints = Vec::new();
    for (number, line) in prose(text) {
        for target in targets(&line) {
            complaints.extend(broken(files, path, target).map(|why| Complaint::new(path, number, why)));
        }
    }
    complaints
}

/// Lines outside fenced code, without inline code.
fn prose(text: &str) -> impl Iterator<Item = (usize, String)> {
    let mut fenced = false;
    text.lines().enumerate().filter_map(move |(index, line)| {
        let fence = line.trim_start().starts_with("```");
        fenced ^= fence;
        let outside_code = line.split('`').step_by(2).collect::<Vec<_>>().join("``");
        (!fenced && !fence).then_some((index + 1, outside_code))
    })
}

/// The targets of `[text](target)` and of `[name]: target`.
fn targets(line: &str) -> Vec<&str> {
    let definition = line.starts_with('[').then(|| line.split_once("]: ")).flatten();
    let inline = line.split("](").skip(1).filter_map(|rest| rest.split_once(')'));
    let all = definition.map(|(_, target)| target).into_iter().chain(inline.map(|(target, _)| target));
    // A title may follow: (target "title").
    all.filter_map(|target| target.split_whitespace().next()).collect()
}

fn broken(files: &Files, from: &str, target: &str) -> Option<String> {
    if target.contains("://") || target.starts_with("mailto:") {
        return None;
    }
    let (file, anchor) = target.split_once('#').map_or((target, None), |(file, anchor)| (file, Some(anchor)));
    let path = if file.is_empty() { from.to_owned() } else { resolve(from, file)? };
    let is_directory =
        files.keys().any(|known| known.starts_with(&format!("{}/", path.trim_end_matches('/'))));
    let Some(text) = files.get(&path) else {
        return (!is_directory).then(|| format!("links to {target}, and there is no {path}"));
    };
    let anchor = anchor?;
    let known = path.ends_with(".md") && !anchors(text).contains(&anchor.to_lowercase());
    known.then(|| format!("links to {target}, and {path} has no such heading"))
}

/// `file` as seen from the directory of `from`; a path that leaves the repository stays as it is, and is not found.
fn resolve(from: &str, file: &str) -> Option<String> {
    let joined = Path::new(from).parent()?.join(file);
    let mut parts: Vec<&str> = Vec::new();
    for component in joined.components() {
        match component {
            Component::ParentDir if !parts.is_empty() => drop(parts.pop()),
            Component::CurDir => {}
            other => parts.push(other.as_os_str().to_str()?),
        }
    }
    Some(parts.join("/"))
}

/// The anchors of a document: headings as web views of Markdown derive them, and explicit `id="..."`.
fn anchors(text: &str) -> Vec<String> {
    let mut anchors: Vec<String> = Vec::new();
    let mut fenced = false;
    for line in text.lines() {
        fenced ^= line.trim_start().starts_with("```");
        let title = line.trim_start_matches('#');
        if !fenced && title.len() < line.len() && title.starts_with(' ') {
            let slug = slug(title.trim());
            let repeated =
                anchors.iter().filter(|a| **a == slug || a.starts_with(&format!("{slug}-"))).count();
            anchors.push(if repeated > 0 && anchors.contains(&slug) {
                format!("{slug}-{repeated}")
            } else {
                slug
            });
        }
        anchors
            .extend(line.split("id=\"").skip(1).filter_map(|rest| Some(rest.split_once('"')?.0.to_owned())));
    }
    anchors
}

/// Lowercase, punctuation gone, spaces to hyphens.
fn slug(title: &str) -> String {
    let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-' | '_'));
    kept.flat_map(char::to_lowercase).map(|c| if c == ' ' { '-' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn complaints(readme: &str) -> Vec<usize> {
        let operate = "# Operate\n## Stop, then start\n## Twice\n## Twice\n<a id=\"by-hand\"></a>\n";
        let files = [
            ("README.md", readme),
            ("docs/operate.md", operate),
            ("docs/adr/0001.md", "[up](../operate.md)"),
        ];
        let files = files.map(|(path, text)| (path.to_owned(), text.to_owned())).into();
        check(&files).iter().map(|complaint| complaint.line).collect()
    }

    #[test]
    fn files_directories_headings_and_the_outside_resolve() {
        let readme = "# Me\n[a](docs/operate.md) [b](docs/operate.md#stop-then-start) [c](docs/adr/) [d](#me)\n\
                      [e](https://example.invalid/x#y) [f](docs/operate.md#twice-1 \"title\") `[no](link)`\n\
                      ```\n[no](link)\n```\n[g](docs/operate.md#by-hand)\n[h]: docs/operate.md\n";
        assert_eq!(complaints(readme), [0; 0]);
    }

    #[test]
    fn a_missing_file_heading_or_directory_is_found() {
        assert_eq!(complaints("x\n[a](docs/missing.md)"), [2]);
        assert_eq!(complaints("[a](docs/operate.md#nothing)\n[b](#nothing)"), [1, 2]);
        assert_eq!(complaints("[a](nowhere/)\n[b](../outside.md)\n[c]: docs/missing.md"), [1, 2, 3]);
    }
}
