//! Texts for users, kept as files and reviewed like code. `UPDATE=1` rewrites them.

use std::path::{Path, PathBuf};

fn updating() -> bool {
    std::env::var_os("UPDATE").is_some_and(|value| value == "1")
}

/// A file of the repository.
pub fn repository(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

/// The text must be what the file in `tests/golden` says.
#[track_caller]
pub fn golden(name: &str, text: &str) {
    same_as(&Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name), text);
}

/// The text must be what the file says.
#[track_caller]
pub fn same_as(path: &Path, text: &str) {
    if updating() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
        return;
    }
    let expected = std::fs::read_to_string(path).unwrap_or_default();
    assert!(
        expected == text,
        "{} is not what the binary says; look at the difference, then run: UPDATE=1 cargo test -p capstan\n--- expected\n{expected}\n--- found\n{text}",
        path.display()
    );
}
