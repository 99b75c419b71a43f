//! One step on a real host: act by act, each written down before and after.

use std::path::PathBuf;

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use super::host::{Host, host, staging};
use super::images::{self, Stager};
use super::packages::{InstallError, Installation};
use super::process::{self, Ending, Spawn};
use super::work::{Installed, StepError, StepOutcome, StepWork};
use super::{orphan, packages};
use crate::artifact::FetchError;
use crate::artifact::oci::Descriptor;
use crate::journal::{Act, Course, Event, Journal, Remaining, Trace, resume};
use crate::probe::{self, Waited};
use crate::release::{Action, AfterCrash, Argv, ArtifactName, HealthGate, Image, Package, Step};

/// How an act ended when it did not succeed.
enum Failure {
    Stopped,
    TimedOut(String),
    Failed(String),
    Refused(String),
    Unhealthy(String),
}

/// One step that is being carried out.
pub struct StepRun<'a> {
    host: &'a Host,
    work: &'a StepWork,
    step: &'a Step,
    deadline: Instant,
}

/// What one act is.
enum ActKind<'a> {
    Packages(Vec<&'a Package>),
    Images(Vec<&'a Image>),
    Command(&'a Argv, AfterCrash),
    Health(&'a HealthGate),
}

impl<'a> StepRun<'a> {
    /// The step that some work is about.
    pub fn new(host: &'a Host, work: &'a StepWork) -> Result<StepRun<'a>, StepError> {
        let step = work.manifest.step(work.step).ok_or_else(|| {
            let text = format!("release {} has no step {}", work.manifest.version, work.step);
            StepError::Refused(text)
        })?;
        Ok(StepRun { host, work, step, deadline: Instant::now() + step.timeout() })
    }

    /// Does what is left of the step.
    pub async fn run(
        &self,
        journal: &mut Journal,
        stop: &CancellationToken,
    ) -> Result<StepOutcome, StepError> {
        let acts = self.acts();
        let count = acts.len() as u32;
        let remaining = resume(journal.entries(), &self.course(), self.work.step, count);
        if let Remaining::From { number, trace } = remaining.map_err(|e| StepError::Refused(e.to_string()))? {
            self.stage_in_time(stop).await?;
            let mut trace = trace;
            for number in number..count {
                self.act(journal, &acts[number as usize], number, trace, stop).await?;
                trace = Trace::Clean;
            }
        }
        Ok(StepOutcome { installed: self.verify().await? })
    }

    fn course(&self) -> Course {
        let StepWork { generation, permission, .. } = *self.work;
        Course { generation, permission, release: self.work.manifest.version.clone() }
    }

    fn acts(&self) -> Vec<ActKind<'a>> {
        let manifest = &self.work.manifest;
        let act = |action: &'a Action| match action {
            Action::Packages(names) => {
                ActKind::Packages(names.iter().filter_map(|name| manifest.package(name)).collect())
            }
            Action::Images(names) => {
                ActKind::Images(names.iter().filter_map(|name| manifest.image(name)).collect())
            }
            Action::Command { argv, after_crash } => ActKind::Command(argv, *after_crash),
        };
        self.step.actions.iter().map(act).chain(self.step.health.as_ref().map(ActKind::Health)).collect()
    }

    /// A source that trickles must not hold the step for ever.
    async fn stage_in_time(&self, stop: &CancellationToken) -> Result<(), StepError> {
        let staged = tokio::time::timeout_at(self.deadline, self.stage(stop)).await;
        let late = || Failure::TimedOut("its artifacts were being fetched".to_owned());
        staged.unwrap_or_else(|_| Err(self.error(late())))
    }

    /// Everything that the step installs is here and verified before its first act.
    async fn stage(&self, stop: &CancellationToken) -> Result<(), StepError> {
        let source = self.host.source();
        let manifest = &*self.work.manifest;
        let stager = Stager { source: &*source, cache: &self.host.cache, manifest, stop };
        for act in self.acts() {
            match act {
                ActKind::Packages(packages) => {
                    for package in packages {
                        stager.package(package).await.map_err(|e| self.staging(e))?;
                    }
                }
                ActKind::Images(images) => {
                    for image in images {
                        stager.image(image).await.map_err(|e| self.staging(e))?;
                    }
                }
                ActKind::Command(..) | ActKind::Health(_) => {}
            }
        }
        Ok(())
    }

    fn staging(&self, error: images::StageError) -> StepError {
        match staging(error) {
            StepError::StagingStopped => StepError::Stopped { step: self.step.name.clone(), after: None },
            other => other,
        }
    }

    async fn act(
        &self,
        journal: &mut Journal,
        kind: &ActKind<'_>,
        number: u32,
        trace: Trace,
        stop: &CancellationToken,
    ) -> Result<(), StepError> {
        let act = Act { step: self.work.step, number };
        if stop.is_cancelled() && trace == Trace::Clean {
            return Err(StepError::Stopped { step: self.step.name.clone(), after: None });
        }
        let course = self.course();
        if trace == Trace::Clean {
            journal.append(&course, Event::Intent(act))?;
        }
        let (generation, release) = (course.generation, &course.release);
        tracing::info!(%generation, %release, step = %self.step.name, act = number, ?trace, "acting");
        match self.perform(kind, number, trace, stop).await {
            Ok(()) => {
                journal.append(&course, Event::Done(act))?;
                self.stopped_after(kind, stop)
            }
            Err(failure) => {
                let error = self.error(failure);
                journal.append(&course, Event::Failed { act, why: error.to_string() })?;
                Err(error)
            }
        }
    }

    /// A stop that came during an act which may not be interrupted is obeyed behind it.
    fn stopped_after(&self, kind: &ActKind<'_>, stop: &CancellationToken) -> Result<(), StepError> {
        match kind {
            ActKind::Packages(packages) if stop.is_cancelled() => {
                let after = Some(format!("installing {}", names(packages)));
                Err(StepError::Stopped { step: self.step.name.clone(), after })
            }
            ActKind::Packages(_) | ActKind::Images(_) | ActKind::Command(..) | ActKind::Health(_) => Ok(()),
        }
    }

    async fn perform(
        &self,
        kind: &ActKind<'_>,
        number: u32,
        trace: Trace,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let mark = self.host.mark(&format!("{}/{}/{number}", self.work.generation, self.work.step));
        let environment = self.environment(&mark);
        let output = self.output(number);
        match kind {
            ActKind::Packages(packages) => {
                let environment = [environment, vec![(orphan::FINISH.to_owned(), "1".to_owned())]].concat();
                let installation = Installation {
                    dpkg: &self.host.config.dpkg,
                    launcher: &self.host.config.launcher,
                    packages: packages.iter().map(|p| (*p, self.host.cache.path(&p.digest))).collect(),
                    environment: &environment,
                    mark: &mark,
                    output: &output,
                    deadline: self.deadline,
                };
                installation.install(trace, stop).await.map_err(Failure::from)
            }
            ActKind::Images(images) => self.install_images(images, stop).await,
            ActKind::Command(argv, after_crash) => {
                if trace == Trace::Begun {
                    self.after_crash(&mark, argv, *after_crash).await?;
                }
                if stop.is_cancelled() {
                    return Err(Failure::Stopped);
                }
                let argv: Vec<String> = (*argv).clone().into();
                let timeout = self.deadline.saturating_duration_since(Instant::now());
                let (environment, output) = (&environment, Some(output.as_path()));
                run_command(Spawn { argv: &argv, environment, output, timeout }, stop).await
            }
            ActKind::Health(gate) => {
                match probe::wait(gate, &environment, self.host.services(), stop).await {
                    Waited::Healthy => Ok(()),
                    Waited::Stopped => Err(Failure::Stopped),
                    Waited::TooLate(why) => Err(Failure::Unhealthy(why)),
                }
            }
        }
    }

    /// A command that ran when the worker died: how far it came is unknown.
    async fn after_crash(&self, mark: &str, argv: &Argv, policy: AfterCrash) -> Result<(), Failure> {
        orphan::end(mark).await.map_err(|e| Failure::Failed(e.to_string()))?;
        match policy {
            AfterCrash::Rerun => Ok(()),
            AfterCrash::Report => Err(Failure::Failed(format!(
                "the worker ended while `{argv}` ran; how far it came is unknown; a retry runs it again"
            ))),
        }
    }

    async fn install_images(&self, images: &[&Image], stop: &CancellationToken) -> Result<(), Failure> {
        let source = self.host.source();
        let stager =
            Stager { source: &*source, cache: &self.host.cache, manifest: &self.work.manifest, stop };
        for image in images {
            let blobs = stager.image(image).await.map_err(|e| match e {
                images::StageError::Fetch(FetchError::Stopped) => Failure::Stopped,
                e => Failure::Failed(e.to_string()),
            })?;
            self.install_image(image, blobs, stop).await?;
        }
        Ok(())
    }

    /// Beside the runtime: linking and hashing large blobs takes seconds.
    async fn install_image(
        &self,
        image: &Image,
        blobs: Vec<Descriptor>,
        stop: &CancellationToken,
    ) -> Result<(), Failure> {
        let (layout, cache) = (self.host.layout.clone(), self.host.cache.clone());
        let (owned, token) = (image.clone(), stop.clone());
        let installed =
            tokio::task::spawn_blocking(move || images::install(&layout, &cache, &owned, &blobs, &token));
        let installed = installed.await.map_err(|e| Failure::Failed(e.to_string()))?;
        if stop.is_cancelled() {
            return Err(Failure::Stopped);
        }
        installed.map_err(|e| Failure::Failed(format!("image {}: {e}", image.name)))
    }

    fn environment(&self, mark: &str) -> Vec<(String, String)> {
        let variable = |name: &str, value: &dyn std::fmt::Display| (name.to_owned(), value.to_string());
        vec![
            variable(orphan::MARK, &mark),
            variable("CAPSTAN_ROOT", &self.host.config.dpkg.root.display()),
            variable("CAPSTAN_RELEASE", &self.work.manifest.version),
            variable("CAPSTAN_STEP", &self.step.name),
            variable("DEBIAN_FRONTEND", &"noninteractive"),
        ]
    }

    fn output(&self, number: u32) -> PathBuf {
        let name = format!("{}-{}-{number}.log", self.work.generation, self.work.step);
        self.host.config.state.join("output").join(name)
    }

    fn error(&self, failure: Failure) -> StepError {
        let step = self.step.name.clone();
        match failure {
            Failure::Stopped => StepError::Stopped { step, after: None },
            Failure::TimedOut(what) => StepError::TimedOut { step, timeout: self.step.timeout(), what },
            Failure::Failed(what) => StepError::Failed { step, what },
            Failure::Refused(what) => StepError::Refused(what),
            Failure::Unhealthy(what) => {
                let deadline = self.step.health.as_ref().map(HealthGate::deadline).unwrap_or_default();
                StepError::Unhealthy { step, deadline, what }
            }
        }
    }

    /// What the step installed, read back now.
    async fn verify(&self) -> Result<Installed, StepError> {
        let mut installed = Installed::default();
        for act in self.acts() {
            match act {
                ActKind::Packages(wanted) => {
                    let faults = packages::faults(&self.host.config.dpkg, &wanted, &[]).await;
                    let faults = faults.map_err(|e| self.error(Failure::from(e)))?;
                    if let Some(fault) = faults.first() {
                        return Err(self.error(Failure::Failed(fault.text.clone())));
                    }
                    let facts = wanted.iter().map(|p| (p.name.clone(), p.version.clone()));
                    installed.packages.extend(facts);
                }
                ActKind::Images(images) => {
                    for image in images {
                        let found = self.host.layout.verify(&image.name, &image.tag, &image.digest);
                        found.map_err(|e| host(&e))?;
                        installed.images.insert(image.name.clone(), image.tag.clone());
                    }
                }
                ActKind::Command(..) | ActKind::Health(_) => {}
            }
        }
        Ok(installed)
    }
}

async fn run_command(spawn: Spawn<'_>, stop: &CancellationToken) -> Result<(), Failure> {
    let ended = process::run(spawn, stop).await.map_err(|e| Failure::Failed(e.to_string()))?;
    match ended.ending {
        Ending::Exited(0) => Ok(()),
        Ending::Exited(_) | Ending::Signalled(_) => Err(Failure::Failed(ended.complaint(spawn.argv))),
        Ending::TimedOut => Err(Failure::TimedOut(ended.complaint(spawn.argv))),
        Ending::Stopped => Err(Failure::Stopped),
    }
}

fn names(packages: &[&Package]) -> String {
    let names: Vec<&ArtifactName> = packages.iter().map(|package| &package.name).collect();
    names.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
}

impl From<InstallError> for Failure {
    fn from(error: InstallError) -> Failure {
        match error {
            InstallError::Stopped => Failure::Stopped,
            InstallError::TimedOut(what) => Failure::TimedOut(what),
            InstallError::Refused(what) => Failure::Refused(what),
            InstallError::Failed(what) => Failure::Failed(what),
        }
    }
}
