//! Pages that are printed from the code must say what the code says.

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
