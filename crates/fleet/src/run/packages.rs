//! Installs packages with the host's dpkg, finishes or repairs what was begun, and believes only what it reads back.

use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::host::Launcher;
use super::orphan;
use super::process::{self, Ended, Ending, Spawn};
use crate::artifact::dpkg::{
    DpkgOptions, PackageState, altered_files, is_lock_contention, parse_states, shortfall, show_fields,
};
use crate::journal::Trace;
use crate::release::{ArtifactName, Package};

/// While another program (an operator's apt, say) has the database locked.
const LOCK_POLL: Duration = Duration::from_millis(500);
/// Longer than an operator's installation; the step's own timeout may be shorter.
const LOCK_PATIENCE: Duration = Duration::from_secs(300);
/// dpkg answers questions about its database within milliseconds.
const QUESTION_TIMEOUT: Duration = Duration::from_secs(60);
const MAX_NAMED_FILES: usize = 5;

/// Why packages are not installed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum InstallError {
    /// A stop came before anything was begun.
    Stopped,
    /// It took too long.
    TimedOut(String),
    /// The package file is not what the manifest says. Nothing was begun.
    Refused(String),
    /// dpkg failed.
    Failed(String),
}

/// An installation of some packages.
#[derive(Debug)]
pub struct Installation<'a> {
    /// How dpkg is called.
    pub dpkg: &'a DpkgOptions,
    /// How long-lived programs are started.
    pub launcher: &'a Launcher,
    /// The packages, each with its verified file.
    pub packages: Vec<(&'a Package, PathBuf)>,
    /// The environment of the programs; holds the mark.
    pub environment: &'a [(String, String)],
    /// The mark of this act.
    pub mark: &'a str,
    /// Where the output goes.
    pub output: &'a Path,
    /// When the step's time is over.
    pub deadline: Instant,
}

impl Installation<'_> {
    /// Installs what is not installed. A stop is obeyed before dpkg is started, not while it runs.
    pub async fn install(&self, trace: Trace, stop: &CancellationToken) -> Result<(), InstallError> {
        // First: a file that is refused leaves no trace on the host.
        self.check_files().await?;
        self.dpkg.prepare().map_err(|e| failed(format!("the package database cannot be made: {e}")))?;
        if trace == Trace::Begun {
            self.outlive_the_earlier_installer().await?;
        }
        let faults = self.faults().await?;
        if faults.is_empty() {
            return Ok(());
        }
        if faults.iter().any(|fault| fault.broken) {
            self.configure_pending().await?;
        }
        let ended = self.dpkg_when_unlocked(&self.install_argv(), stop).await?;
        self.conclude(ended).await
    }

    /// The installer runs in a group of its own, so it may have outlived the worker that started it: let it finish.
    async fn outlive_the_earlier_installer(&self) -> Result<(), InstallError> {
        let gone = orphan::wait_until_gone(self.mark, self.deadline).await;
        match gone.map_err(|e| failed(e.to_string()))? {
            true => Ok(()),
            false => orphan::end(self.mark).await.map_err(|e| failed(e.to_string())),
        }
    }

    async fn conclude(&self, ended: Ended) -> Result<(), InstallError> {
        let argv = self.install_argv();
        match ended.ending {
            Ending::Exited(0) => self.must_be_installed().await,
            Ending::Exited(_) => Err(failed(self.with_audit(ended.complaint(&argv)).await)),
            Ending::Signalled(_) => {
                tracing::warn!(mark = self.mark, "dpkg was killed; its work is repaired");
                self.repair().await
            }
            Ending::TimedOut => {
                let repaired = self.repair().await;
                match repaired {
                    // It was done all but in time.
                    Ok(()) => Ok(()),
                    Err(_) => Err(InstallError::TimedOut(self.with_audit(ended.complaint(&argv)).await)),
                }
            }
            Ending::Stopped => Err(failed(ended.complaint(&argv))),
        }
    }

    /// Completes what is half done, and installs again what that did not heal.
    async fn repair(&self) -> Result<(), InstallError> {
        self.configure_pending().await?;
        if self.faults().await?.is_empty() {
            return Ok(());
        }
        let argv = self.install_argv();
        let ended = self.dpkg_run(&argv, self.dpkg.repair_time).await?;
        match ended.ending {
            Ending::Exited(0) => self.must_be_installed().await,
            Ending::Exited(_) | Ending::Signalled(_) | Ending::TimedOut | Ending::Stopped => {
                Err(failed(self.with_audit(ended.complaint(&argv)).await))
            }
        }
    }

    /// What it cannot configure, the installation that follows replaces: its own failure says no more than that.
    async fn configure_pending(&self) -> Result<(), InstallError> {
        let argv = self.dpkg.configure_all();
        let never = CancellationToken::new();
        let ended = self.dpkg_when_unlocked_within(&argv, self.dpkg.repair_time, &never).await?;
        if ended.ending != Ending::Exited(0) {
            tracing::info!(said = ended.tail.trim(), "dpkg could not configure what was pending");
        }
        Ok(())
    }

    async fn must_be_installed(&self) -> Result<(), InstallError> {
        let faults = self.faults().await?;
        match faults.first() {
            None => Ok(()),
            Some(_) => {
                let texts: Vec<&str> = faults.iter().map(|fault| fault.text.as_str()).collect();
                Err(failed(format!("dpkg succeeded, and yet {}", texts.join("; "))))
            }
        }
    }

    fn install_argv(&self) -> Vec<String> {
        let files: Vec<PathBuf> = self.packages.iter().map(|(_, file)| file.clone()).collect();
        self.dpkg.install(&files)
    }

    async fn dpkg_when_unlocked(
        &self,
        argv: &[String],
        stop: &CancellationToken,
    ) -> Result<Ended, InstallError> {
        let left = self.deadline.saturating_duration_since(Instant::now());
        self.dpkg_when_unlocked_within(argv, left, stop).await
    }

    async fn dpkg_when_unlocked_within(
        &self,
        argv: &[String],
        time: Duration,
        stop: &CancellationToken,
    ) -> Result<Ended, InstallError> {
        let patience = Instant::now() + LOCK_PATIENCE.min(time);
        loop {
            if stop.is_cancelled() {
                return Err(InstallError::Stopped);
            }
            let ended = self.dpkg_run(argv, time).await?;
            let code = match ended.ending {
                Ending::Exited(code) => Some(code),
                Ending::Signalled(_) | Ending::TimedOut | Ending::Stopped => None,
            };
            if !is_lock_contention(code, &ended.tail) || Instant::now() >= patience {
                return Ok(ended);
            }
            tracing::info!("the package database is locked by another process; waiting");
            let _ = stop.run_until_cancelled(tokio::time::sleep(LOCK_POLL)).await;
        }
    }

    /// Not to be interrupted: it takes no stop signal.
    async fn dpkg_run(&self, argv: &[String], timeout: Duration) -> Result<Ended, InstallError> {
        let argv = self.launcher.wrap(argv);
        // Each run's messages are its own: a lock that was waited for must not be seen twice.
        if let Err(e) = std::fs::write(self.output, b"") {
            return Err(failed(format!("{}: {e}", self.output.display())));
        }
        let spawn = Spawn { argv: &argv, environment: self.environment, output: Some(self.output), timeout };
        process::run(spawn, &CancellationToken::new()).await.map_err(|e| failed(e.to_string()))
    }

    /// The package files say themselves what they are; a manifest that says otherwise is refused.
    async fn check_files(&self) -> Result<(), InstallError> {
        for (package, file) in &self.packages {
            let said = ask(&show_fields(file), self.environment).await?;
            let expected = format!("{}\t{}", package.name, package.version);
            if said.trim_end() != expected {
                let said = said.trim_end().replace('\t', " ");
                let text =
                    format!("the file of package {} {} is that of {said}", package.name, package.version);
                return Err(InstallError::Refused(text));
            }
        }
        Ok(())
    }

    async fn faults(&self) -> Result<Vec<Fault>, InstallError> {
        let wanted: Vec<&Package> = self.packages.iter().map(|(package, _)| *package).collect();
        faults(self.dpkg, &wanted, self.environment).await
    }

    async fn with_audit(&self, text: String) -> String {
        match ask(&self.dpkg.audit(), self.environment).await {
            Ok(audit) if !audit.trim().is_empty() => format!("{text}\n{}", audit.trim()),
            Ok(_) | Err(_) => text,
        }
    }
}

/// A package that is not as the release wants it.
#[derive(Clone, Debug)]
pub struct Fault {
    /// What is wrong.
    pub text: String,
    /// Whether dpkg itself says that it is half done.
    pub broken: bool,
}

/// Which of these packages are not installed in the wanted version with the files that they came with.
pub async fn faults(
    dpkg: &DpkgOptions,
    wanted: &[&Package],
    environment: &[(String, String)],
) -> Result<Vec<Fault>, InstallError> {
    let names: Vec<&ArtifactName> = wanted.iter().map(|package| &package.name).collect();
    let states = parse_states(&ask(&dpkg.query(&names), environment).await?).map_err(failed)?;
    let short = shortfall(wanted, &states);
    if !short.is_empty() {
        return Ok(short.into_iter().map(|(package, state)| fault(package, &state)).collect());
    }
    let mut faults = Vec::new();
    for package in wanted {
        let altered = altered_files(&ask(&dpkg.verify(&[&package.name]), environment).await?);
        if !altered.is_empty() {
            let some = altered.iter().take(MAX_NAMED_FILES).cloned().collect::<Vec<_>>().join(", ");
            let text = format!("{} files of package {} were changed: {some}", altered.len(), package.name);
            faults.push(Fault { text, broken: false });
        }
    }
    Ok(faults)
}

fn fault(package: &Package, state: &PackageState) -> Fault {
    let name = &package.name;
    let (text, broken) = match state {
        PackageState::Absent => (format!("package {name} is not installed"), false),
        PackageState::Installed(version) => {
            (format!("package {name} is installed in version {version}, not {}", package.version), false)
        }
        PackageState::Broken { version, state } => (format!("package {name} {version} is {state}"), true),
    };
    Fault { text, broken }
}

/// What a program that only answers says. dpkg-query and --verify say with their exit code what they also print.
async fn ask(argv: &[String], environment: &[(String, String)]) -> Result<String, InstallError> {
    let mut command = tokio::process::Command::new(&argv[0]);
    command.args(&argv[1..]).env("LC_ALL", "C").envs(environment.iter().map(|(name, value)| (name, value)));
    // The mark is for programs that act.
    command.env_remove(orphan::MARK).stdin(std::process::Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(QUESTION_TIMEOUT, command.output()).await;
    let output = output.map_err(|_| failed(format!("{} did not answer", argv[0])))?;
    let output = output.map_err(|e| failed(format!("{} cannot be started: {e}", argv[0])))?;
    match output.status.code() {
        Some(0 | 1) => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        _ => Err(failed(format!("{}: {}", argv[0], String::from_utf8_lossy(&output.stderr).trim()))),
    }
}

fn failed(text: impl Into<String>) -> InstallError {
    InstallError::Failed(text.into())
}
