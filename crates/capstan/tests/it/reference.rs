//! Generated pages must match the code.

use capstan_testkit::TempDir;

use crate::binary::capstan;
use crate::golden::{repository, same_as};

fn printed(page: &str) -> String {
    capstan(".".as_ref(), &["reference", page]).ok()
}

#[test]
fn the_page_of_keys_is_current() {
    same_as(&repository("docs/metadata.md"), &printed("metadata"));
}

#[test]
fn the_manual_has_the_current_tables() {
    let path = repository("docs/operate.md");
    let mut manual = std::fs::read_to_string(&path).unwrap();
    for page in ["settings", "exit-codes"] {
        let (begin, end) = (format!("<!-- {page}: printed -->\n"), format!("<!-- {page}: end -->"));
        let (before, rest) = manual.split_once(&begin).unwrap_or_else(|| panic!("no {begin}"));
        let (_, after) = rest.split_once(&end).unwrap_or_else(|| panic!("no {end}"));
        manual = format!("{before}{begin}{}{end}{after}", printed(page));
    }
    same_as(&path, &manual);
}

#[test]
fn there_is_a_manual_page_for_every_command() {
    let dir = TempDir::new("man").unwrap();
    capstan(dir.path(), &["reference", "man", "."]).ok();
    for page in ["capstan.1", "capstan-up.1", "capstan-meta-watch.1", "capstan-hosts-drain.1"] {
        let text = std::fs::read_to_string(dir.join(page)).unwrap();
        assert!(text.contains(".SH SYNOPSIS"), "{page}");
    }
}

/// Every code of a finding in the sources of these crates has a section in docs/findings.md, and every section a code.
#[test]
fn every_finding_is_explained() {
    let mut codes = std::collections::BTreeSet::new();
    let mut dirs: Vec<_> = ["control", "redis", "topics", "docs", "console", "fleet", "steward"]
        .map(|name| repository(&format!("crates/{name}/src")))
        .into();
    while let Some(dir) = dirs.pop() {
        for entry in std::fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().path()) {
            if entry.is_dir() {
                dirs.push(entry);
                continue;
            }
            let text = std::fs::read_to_string(&entry).unwrap();
            let source = text.split("#[cfg(test)]").next().unwrap();
            codes.extend(
                source.split("= Code::new(\"").skip(1).map(|rest| rest.split('"').next().unwrap().to_owned()),
            );
        }
    }
    assert!(codes.len() > 20, "{codes:?}");
    let page = std::fs::read_to_string(repository("docs/findings.md")).unwrap();
    let sections: std::collections::BTreeSet<String> =
        page.lines().filter_map(|line| line.strip_prefix("## ").map(str::to_owned)).collect();
    let unexplained: Vec<_> = codes.difference(&sections).collect();
    assert!(unexplained.is_empty(), "docs/findings.md does not explain {unexplained:?}");
    let ours =
        |code: &&String| ["redis-", "fleet-", "log-", "host-"].iter().any(|word| code.starts_with(word));
    let unknown: Vec<_> = sections.difference(&codes).filter(ours).collect();
    assert!(unknown.is_empty(), "docs/findings.md explains what is never found: {unknown:?}");
}

#[test]
fn metrics_alerts_and_dashboard_are_current() {
    same_as(&repository("docs/metrics.md"), &printed("metrics"));
    same_as(&repository("deploy/alerts.yml"), &printed("alerts"));
    same_as(&repository("deploy/grafana/capstan.json"), &printed("dashboard"));
}
