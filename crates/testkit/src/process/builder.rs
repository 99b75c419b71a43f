//! What to start: program, arguments, environment, directory, and the package to install if it is missing.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::Context;

use super::{Process, on_path};

/// Describes a child process; [`spawn`](Builder::spawn) starts it.
#[derive(Debug, Clone)]
pub struct Builder {
    program: PathBuf,
    package: Option<String>,
    arguments: Vec<OsString>,
    environment: Vec<(OsString, OsString)>,
    unset: Vec<OsString>,
    directory: Option<PathBuf>,
}

impl Builder {
    pub(super) fn new(program: impl Into<PathBuf>) -> Self {
        let (arguments, environment, unset) = (Vec::new(), Vec::new(), Vec::new());
        Self { program: program.into(), package: None, arguments, environment, unset, directory: None }
    }

    /// The Debian package of the program, named in the error if it is missing.
    #[must_use]
    pub fn debian_package(mut self, package: &str) -> Self {
        self.package = Some(package.to_owned());
        self
    }

    /// Adds an argument.
    #[must_use]
    pub fn arg(mut self, argument: impl AsRef<OsStr>) -> Self {
        self.arguments.push(argument.as_ref().to_owned());
        self
    }

    /// Adds arguments.
    #[must_use]
    pub fn args(mut self, arguments: impl IntoIterator<Item = impl AsRef<OsStr>>) -> Self {
        self.arguments.extend(arguments.into_iter().map(|a| a.as_ref().to_owned()));
        self
    }

    /// Sets a variable of the child's environment.
    #[must_use]
    pub fn env(mut self, name: impl AsRef<OsStr>, value: impl AsRef<OsStr>) -> Self {
        self.environment.push((name.as_ref().to_owned(), value.as_ref().to_owned()));
        self
    }

    /// Removes a variable from the child's environment.
    #[must_use]
    pub fn env_remove(mut self, name: impl AsRef<OsStr>) -> Self {
        self.unset.push(name.as_ref().to_owned());
        self
    }

    /// The child's working directory.
    #[must_use]
    pub fn directory(mut self, directory: impl Into<PathBuf>) -> Self {
        self.directory = Some(directory.into());
        self
    }

    /// Runs it with `mount` as a separate disk of this many bytes (a memory file system that only it sees), for tests
    /// of a full disk. Needs user namespaces, but no privileges.
    #[must_use]
    pub fn on_small_disk(mut self, mount: &Path, bytes: u64) -> Self {
        let script = r#"mount -t tmpfs -o size="$1" tmpfs "$2" && shift 2 && exec "$@""#;
        let mut arguments: Vec<OsString> =
            ["--user", "--map-root-user", "--mount", "sh", "-c", script, "sh"].map(OsString::from).into();
        arguments.extend([bytes.to_string().into(), mount.into(), self.program.into()]);
        arguments.append(&mut self.arguments);
        Self { program: "unshare".into(), package: Some("util-linux".into()), arguments, ..self }
    }

    /// Starts it and appends all output to the file `log`.
    pub fn spawn(self, log: impl Into<PathBuf>) -> anyhow::Result<Process> {
        Process::start(self, log.into())
    }

    /// Its name in failure messages.
    pub(super) fn label(&self) -> String {
        self.program.file_name().unwrap_or(self.program.as_os_str()).to_string_lossy().into_owned()
    }

    pub(super) fn command(&self, output: &File) -> anyhow::Result<Command> {
        let mut command = Command::new(self.locate()?);
        command.args(&self.arguments).stdin(Stdio::null());
        command.stdout(output.try_clone()?).stderr(output.try_clone()?);
        for name in &self.unset {
            command.env_remove(name);
        }
        command.envs(self.environment.iter().map(|(name, value)| (name, value)));
        if let Some(directory) = &self.directory {
            command.current_dir(directory);
        }
        Ok(command)
    }

    fn locate(&self) -> anyhow::Result<PathBuf> {
        if self.program.components().count() > 1 {
            let absolute = std::path::absolute(&self.program);
            return absolute.with_context(|| format!("no such program: {}", self.program.display()));
        }
        on_path(Path::new(&self.program), self.package.as_deref())
    }
}
