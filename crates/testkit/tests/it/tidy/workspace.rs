//! Reads the workspace: every text file that git tracks or would track.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::Complaint;

pub(super) struct Workspace {
    /// Path from the workspace's root, with its text.
    pub(super) files: BTreeMap<String, String>,
}

impl Workspace {
    pub(super) fn read() -> Self {
        let root = root();
        let listed =
            run(Command::new("git").args(["ls-files", "--cached", "--others", "--exclude-standard", "-z"]));
        let files = listed.split('\0').filter(|path| !path.is_empty()).filter_map(|path| {
            // Listed but deleted, or not text: nothing to read.
            let text = std::fs::read_to_string(root.join(path)).ok()?;
            Some((path.to_owned(), text))
        });
        let files: BTreeMap<_, _> = files.collect();
        assert!(files.contains_key("Cargo.toml"), "{} is not the workspace", root.display());
        Self { files }
    }

    pub(super) fn each(&self, extension: &str, rule: fn(&str, &str) -> Vec<Complaint>) -> Vec<Complaint> {
        self.each_of(&[extension], rule)
    }

    /// Applies a rule to the files whose extension (or whole name, where there is none) is among these.
    pub(super) fn each_of(
        &self,
        extensions: &[&str],
        rule: fn(&str, &str) -> Vec<Complaint>,
    ) -> Vec<Complaint> {
        let concerned = |path: &str| {
            let path = Path::new(path);
            let kind = path.extension().or(path.file_name()).and_then(|kind| kind.to_str());
            kind.is_some_and(|kind| extensions.contains(&kind))
        };
        self.files.iter().filter(|(path, _)| concerned(path)).flat_map(|(p, t)| rule(p, t)).collect()
    }
}

/// The packages that are compiled into the product, one per line. `Cargo.lock` would not do: it also lists packages of
/// disabled features.
pub(super) fn dependency_tree() -> String {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let options =
        ["tree", "--workspace", "--edges=normal,build", "--prefix=none", "--format={p}", "--offline"];
    run(Command::new(cargo).args(options))
}

fn run(command: &mut Command) -> String {
    let output = command.current_dir(root()).output().unwrap();
    assert!(output.status.success(), "{command:?}: {}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8(output.stdout).unwrap()
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).ancestors().nth(2).unwrap().to_owned()
}
