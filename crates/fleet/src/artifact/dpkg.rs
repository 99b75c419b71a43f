//! How dpkg is asked, and what its answers mean. Nothing here runs anything.

use std::collections::BTreeMap;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::artifact::files::make_dir;
use crate::release::{ArtifactName, Package};

/// What configuring a large package takes on a slow disk.
const REPAIR_TIME: Duration = Duration::from_secs(120);

/// How dpkg treats this host.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DpkgOptions {
    /// The root directory: `/` on a real host.
    pub root: PathBuf,
    /// How durable an installation is.
    pub durability: Durability,
    /// Where maintainer scripts run.
    pub scripts: Scripts,
    /// How long a repair may take after the step's own time is over: half a package is worse than a late one.
    pub repair_time: Duration,
}

/// How durable an installation is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// Every file is on the disk before it counts.
    #[default]
    Full,
    /// dpkg's `--force-unsafe-io`: for hosts that are thrown away after a power failure, and for tests.
    Unsafe,
}

/// Where maintainer scripts run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Scripts {
    /// Inside of the root, which must then hold a shell.
    #[default]
    InRoot,
    /// Outside, with `DPKG_ROOT` set.
    Outside,
}

impl DpkgOptions {
    /// The usual options for a root directory.
    #[must_use]
    pub fn new(root: impl Into<PathBuf>) -> DpkgOptions {
        DpkgOptions {
            root: root.into(),
            durability: Durability::Full,
            scripts: Scripts::InRoot,
            repair_time: REPAIR_TIME,
        }
    }

    fn admin(&self) -> PathBuf {
        self.root.join("var/lib/dpkg")
    }

    /// Makes the database of an empty root; a real host has one.
    pub fn prepare(&self) -> io::Result<()> {
        if self.root == Path::new("/") || self.admin().join("status").exists() {
            return Ok(());
        }
        for dir in ["info", "updates", "triggers"] {
            make_dir(&self.admin().join(dir))?;
        }
        make_dir(&self.root.join("var/log"))?;
        for file in ["available", "status"] {
            std::fs::File::create(self.admin().join(file))?.sync_all()?;
        }
        Ok(())
    }

    fn dpkg(&self) -> Vec<String> {
        let mut argv = vec!["dpkg".to_owned()];
        if self.root != Path::new("/") {
            argv.push(format!("--root={}", self.root.display()));
            argv.push(format!("--log={}", self.root.join("var/log/dpkg.log").display()));
        }
        // No terminal to answer questions: an edited configuration file stays as the host's owner wrote it.
        argv.extend(["--force-confdef", "--force-confold"].map(str::to_owned));
        if self.durability == Durability::Unsafe {
            argv.push("--force-unsafe-io".to_owned());
        }
        if self.scripts == Scripts::Outside {
            argv.push("--force-script-chrootless".to_owned());
        }
        argv
    }

    /// Installs these files, all in one run.
    #[must_use]
    pub fn install(&self, files: &[PathBuf]) -> Vec<String> {
        let mut argv = self.dpkg();
        argv.push("--install".to_owned());
        argv.extend(files.iter().map(|file| file.display().to_string()));
        argv
    }

    /// Completes what was interrupted.
    #[must_use]
    pub fn configure_all(&self) -> Vec<String> {
        let mut argv = self.dpkg();
        argv.extend(["--configure", "--pending"].map(str::to_owned));
        argv
    }

    /// What is wrong with the database, in dpkg's words.
    #[must_use]
    pub fn audit(&self) -> Vec<String> {
        let mut argv = self.dpkg();
        argv.push("--audit".to_owned());
        argv
    }

    /// Which files of packages are not those that were installed.
    #[must_use]
    pub fn verify(&self, names: &[&ArtifactName]) -> Vec<String> {
        let mut argv = self.dpkg();
        argv.push("--verify".to_owned());
        argv.extend(names.iter().map(ToString::to_string));
        argv
    }

    /// What the database says about packages.
    #[must_use]
    pub fn query(&self, names: &[&ArtifactName]) -> Vec<String> {
        let mut argv = vec![
            "dpkg-query".to_owned(),
            format!("--admindir={}", self.admin().display()),
            "--showformat=${Package}\\t${Version}\\t${db:Status-Status}\\t${db:Status-Eflag}\\n".to_owned(),
            "--show".to_owned(),
        ];
        argv.extend(names.iter().map(ToString::to_string));
        argv
    }
}

/// What a package file says about itself.
#[must_use]
pub fn show_fields(file: &Path) -> Vec<String> {
    let file = file.display().to_string();
    ["dpkg-deb", "--show", "--showformat=${Package}\\t${Version}\\n"]
        .map(str::to_owned)
        .into_iter()
        .chain([file])
        .collect()
}

/// The state of a package in dpkg's database.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PackageState {
    /// Unknown, removed, or only its configuration is left.
    Absent,
    /// This version is installed and configured.
    Installed(String),
    /// An installation or removal was begun and not ended.
    Broken {
        /// The version that was being installed.
        version: String,
        /// dpkg's word for the state.
        state: String,
    },
}

/// Reads the answer to [`DpkgOptions::query`]. A package with two architectures counts by its worse half.
pub fn parse_states(answer: &str) -> Result<BTreeMap<String, PackageState>, String> {
    let mut states = BTreeMap::new();
    for line in answer.lines() {
        let fields: Vec<&str> = line.split('\t').collect();
        let [name, version, status, flag] = fields[..] else {
            return Err(format!("dpkg-query answered {line:?}"));
        };
        let state = state_of(version, status, flag);
        let worse = matches!(states.get(name), Some(PackageState::Broken { .. }));
        if !worse {
            states.insert(name.to_owned(), state);
        }
    }
    Ok(states)
}

fn state_of(version: &str, status: &str, flag: &str) -> PackageState {
    match (status, flag) {
        ("not-installed" | "config-files", "ok") => PackageState::Absent,
        ("installed", "ok") => PackageState::Installed(version.to_owned()),
        (status, "ok") => PackageState::Broken { version: version.to_owned(), state: status.to_owned() },
        (status, flag) => {
            PackageState::Broken { version: version.to_owned(), state: format!("{status} {flag}") }
        }
    }
}

/// The files that [`DpkgOptions::verify`] complains about. Edited configuration files are their owner's business.
#[must_use]
pub fn altered_files(answer: &str) -> Vec<String> {
    let concerns = |line: &&str| {
        let mut words = line.split_whitespace().skip(1);
        !line.trim().is_empty() && words.next() != Some("c")
    };
    answer.lines().filter(concerns).map(|line| line.trim().to_owned()).collect()
}

/// Whether dpkg failed only because another process has its database locked.
#[must_use]
pub fn is_lock_contention(code: Option<i32>, output: &str) -> bool {
    code == Some(2) && output.contains("lock") && output.contains("another process")
}

/// What is not as the release wants it.
#[must_use]
pub fn shortfall<'a>(
    wanted: &[&'a Package],
    states: &BTreeMap<String, PackageState>,
) -> Vec<(&'a Package, PackageState)> {
    let state =
        |package: &Package| states.get(package.name.as_str()).cloned().unwrap_or(PackageState::Absent);
    let fits = |package: &Package, state: &PackageState| {
        *state == PackageState::Installed(package.version.as_str().to_owned())
    };
    wanted.iter().map(|package| (*package, state(package))).filter(|(p, s)| !fits(p, s)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states_are_read_from_dpkg_query() {
        let answer = "a1\t1.0\tinstalled\tok\nb1\t2.0\thalf-configured\tok\nc1\t3.0\thalf-installed\treinstreq\n\
                      d1\t\tnot-installed\tok\ne1\t1\tconfig-files\tok\n";
        let states = parse_states(answer).unwrap();
        let broken = |version: &str, state: &str| PackageState::Broken {
            version: version.to_owned(),
            state: state.to_owned(),
        };
        assert_eq!(states["a1"], PackageState::Installed("1.0".to_owned()));
        assert_eq!(states["b1"], broken("2.0", "half-configured"));
        assert_eq!(states["c1"], broken("3.0", "half-installed reinstreq"));
        assert_eq!(states["d1"], PackageState::Absent);
        assert_eq!(states["e1"], PackageState::Absent);
        assert!(parse_states("nonsense\n").is_err());
    }

    #[test]
    fn edited_configuration_is_not_an_altered_file() {
        let answer = "??5?????? c /etc/svc.conf\n??5??????   /usr/bin/svc\nmissing     /usr/lib/x\n\n";
        assert_eq!(altered_files(answer), ["??5??????   /usr/bin/svc", "missing     /usr/lib/x"]);
    }

    #[test]
    fn only_a_lock_is_waited_for() {
        let text = "dpkg: error: dpkg database lock was locked by another process with pid 7";
        assert!(is_lock_contention(Some(2), text));
        assert!(!is_lock_contention(Some(1), text));
        assert!(!is_lock_contention(Some(2), "dpkg: error: disk full"));
    }

    #[test]
    fn a_real_root_is_not_named() {
        let argv = DpkgOptions::new("/").install(&["/a.deb".into()]);
        assert_eq!(argv, ["dpkg", "--force-confdef", "--force-confold", "--install", "/a.deb"]);
        let mut options = DpkgOptions::new("/r");
        options.durability = Durability::Unsafe;
        assert_eq!(
            options.configure_all(),
            [
                "dpkg",
                "--root=/r",
                "--log=/r/var/log/dpkg.log",
                "--force-confdef",
                "--force-confold",
                "--force-unsafe-io",
                "--configure",
                "--pending"
            ]
        );
    }
}
