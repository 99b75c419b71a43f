//! A real host: its directories, its dpkg, its journal.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};

use async_trait::async_trait;
use tokio::sync::Mutex;
use tokio_util::sync::CancellationToken;

use super::check::fetch_signed;
use super::images::{self, StageError, Stager};
use super::orphan;
use super::packages;
use super::state::{ReleaseStore, Releases};
use super::step::StepRun;
use super::work::{Generation, Installed, Permission, Runner, StepError, StepOutcome, StepWork};
use crate::artifact::dpkg::DpkgOptions;
use crate::artifact::files::{make_dir, read_bounded, write_atomic};
use crate::artifact::oci::Layout;
use crate::artifact::{Cache, FetchError, digest_of};
use crate::journal::{self, Course, Event, Journal, JournalError};
use crate::probe::{ServiceHealth, Unobserved};
use crate::release::{
    ArtifactName, HostFacts, MAX_TRUST_BYTES, Manifest, Refusal, Source, SourceError, Tag, Trust, Version,
};

/// Tags of one image that a host keeps beside those of its current and kept release.
const KEPT_TAGS: usize = 2;

/// Where things are on a host.
#[derive(Clone, Debug)]
pub struct HostConfig {
    /// The worker's own directory: journal, manifests, outputs. No release writes here.
    pub state: PathBuf,
    /// Fetched artifacts.
    pub cache: PathBuf,
    /// Whose the cache is.
    pub cache_use: CacheUse,
    /// The OCI layout with the host's images.
    pub images: PathBuf,
    /// How packages are installed.
    pub dpkg: DpkgOptions,
    /// The trust file.
    pub trust: PathBuf,
    /// The version of this worker.
    pub worker_version: Version,
    /// How the installer is started.
    pub launcher: Launcher,
}

/// Whose a cache is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheUse {
    /// This host's alone: what neither the current nor the kept release needs is removed.
    Own,
    /// Shared by several hosts: nothing is removed, because what the others keep is unknown.
    Shared,
}

/// How the installer is started, so that the end of the worker is not its end too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Launcher {
    /// In a process group of its own.
    Direct,
    /// In a systemd scope of its own as well: stopping the worker's unit ends everything in the unit's cgroup.
    SystemdScope,
}

impl Launcher {
    /// What fits this machine.
    #[must_use]
    pub fn detect() -> Launcher {
        if Path::new("/run/systemd/system").is_dir() { Launcher::SystemdScope } else { Launcher::Direct }
    }

    pub(super) fn wrap(self, argv: &[String]) -> Vec<String> {
        let scope: &[&str] = match self {
            Launcher::Direct => &[],
            Launcher::SystemdScope => &["systemd-run", "--scope", "--quiet", "--collect", "--"],
        };
        scope.iter().map(|word| (*word).to_owned()).chain(argv.iter().cloned()).collect()
    }
}

/// A host that installs for real.
#[derive(Debug)]
pub struct Host {
    pub(super) config: HostConfig,
    pub(super) cache: Cache,
    pub(super) layout: Layout,
    store: ReleaseStore,
    source: RwLock<Arc<dyn Source>>,
    /// One step at a time: the holder of the journal acts.
    journal: Mutex<Journal>,
    /// The highest request that the journal knows.
    newest: AtomicU64,
    /// What is known about the health of the services on this host.
    services: Arc<dyn ServiceHealth>,
}

impl Host {
    /// Opens a host's directories; only one worker may.
    pub fn open(config: HostConfig, source: Arc<dyn Source>) -> Result<Host, StepError> {
        let disk = |path: &Path| {
            let path = path.to_owned();
            move |e: io::Error| StepError::Host(format!("{}: {e}", path.display()))
        };
        make_dir(&config.state.join("output")).map_err(disk(&config.state))?;
        make_dir(&config.state.join("releases")).map_err(disk(&config.state))?;
        let cache = Cache::open(&config.cache).map_err(disk(&config.cache))?;
        let layout = Layout::new(&config.images);
        let journal = Journal::open(&config.state).map_err(|e| host(&e))?;
        let store = ReleaseStore::new(&config.state);
        let newest = journal.entries().iter().map(|entry| entry.course.generation.0).max().unwrap_or(0);
        let (source, journal) = (RwLock::new(source), Mutex::new(journal));
        let (newest, services) = (AtomicU64::new(newest), Arc::new(Unobserved));
        Ok(Host { config, cache, layout, store, source, journal, newest, services })
    }

    /// The same host, with what is known about the health of its services: probes of kind `services` ask it.
    #[must_use]
    pub fn observed_by(self, services: Arc<dyn ServiceHealth>) -> Host {
        Host { services, ..self }
    }

    pub(super) fn services(&self) -> &dyn ServiceHealth {
        &*self.services
    }

    /// Fetches from elsewhere from now on: a changed source or proxy applies without a restart.
    pub fn set_source(&self, source: Arc<dyn Source>) {
        *self.source.write().unwrap_or_else(PoisonError::into_inner) = source;
    }

    pub(super) fn source(&self) -> Arc<dyn Source> {
        self.source.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Tells this host's programs from those of other hosts on the same machine.
    pub(super) fn mark(&self, act: &str) -> String {
        let place = self.config.state.canonicalize().unwrap_or_else(|_| self.config.state.clone());
        format!("{}/{act}", &digest_of(place.as_os_str().as_encoded_bytes()).hex()[..16])
    }

    /// Names this machine among all that might work under one number: written once into its own directory.
    pub fn machine(&self) -> Result<String, StepError> {
        let path = self.config.state.join("machine");
        match std::fs::read_to_string(&path) {
            Ok(text) if !text.trim().is_empty() => Ok(text.trim().to_owned()),
            Ok(_) => self.name_machine(&path),
            Err(e) if e.kind() == io::ErrorKind::NotFound => self.name_machine(&path),
            Err(e) => Err(host(&e)),
        }
    }

    fn name_machine(&self, path: &Path) -> Result<String, StepError> {
        let name = format!("{:032x}", rand::random::<u128>());
        write_atomic(path, name.as_bytes()).map_err(|e| host(&e))?;
        Ok(name)
    }

    fn releases(&self) -> Result<Releases, StepError> {
        self.store.releases().map_err(|e| host(&e))
    }

    fn trust(&self) -> Result<Trust, StepError> {
        let path = &self.config.trust;
        let bytes = std::fs::File::open(path).and_then(|file| read_bounded(file, MAX_TRUST_BYTES));
        let unusable = |e: String| StepError::Refused(format!("the trust file {}: {e}", path.display()));
        Trust::parse(&bytes.map_err(|e| unusable(e.to_string()))?).map_err(|e| unusable(e.to_string()))
    }

    async fn facts(&self) -> Result<HostFacts, StepError> {
        let Releases { current, kept } = self.releases()?;
        let journal = self.journal.lock().await;
        let unfinished = journal.entries().last().filter(|last| last.event != Event::Finished);
        let begun = unfinished.map(|last| last.course.release.clone());
        let worker_version = self.config.worker_version.clone();
        Ok(HostFacts { now: journal::now(), worker_version, current, kept, begun })
    }

    /// A release whose signatures are good: as the host remembers it, else, to go forward, as the source has it (its
    /// signatures may be newer than the remembered ones). A rollback needs no server.
    async fn signed(&self, version: &Version, permission: Permission) -> Result<Signed, StepError> {
        let trust = self.trust()?;
        let remembered = self.store.manifest(version).map_err(|e| host(&e))?;
        let opened = remembered.map(|(bytes, signatures)| Signed::open(&trust, bytes, Some(signatures)));
        match (opened, permission) {
            (Some(Ok(signed)), _) => Ok(signed),
            (Some(Err(refusal)), Permission::RollBack) => Err(refused(&refusal)),
            (None, Permission::RollBack) => {
                let kept = self.releases()?.kept;
                Err(refused(&Refusal::NotKept { offered: version.clone(), kept }))
            }
            (Some(Err(_)) | None, Permission::Upgrade) => {
                let (bytes, signatures) =
                    fetch_signed(&*self.source(), version).await.map_err(unavailable)?;
                Signed::open(&trust, bytes, signatures).map_err(|e| refused(&e))
            }
        }
    }

    /// What programs of other requests printed; one request's is bounded by its steps.
    fn remove_old_output(&self, generation: Generation) -> io::Result<()> {
        let ours = format!("{generation}-");
        for entry in std::fs::read_dir(self.config.state.join("output"))? {
            let entry = entry?;
            if !entry.file_name().to_string_lossy().starts_with(&ours) {
                std::fs::remove_file(entry.path())?;
            }
        }
        Ok(())
    }

    fn collect_garbage(&self, manifest: &Manifest, releases: &Releases) -> Result<(), StepError> {
        let kept: Vec<&Version> = releases.current.iter().chain(&releases.kept).collect();
        self.store.forget_others(&kept).map_err(|e| host(&e))?;
        let mut manifests = vec![manifest.clone()];
        if let Some(version) = &releases.kept
            && let Some((bytes, _)) = self.store.manifest(version).map_err(|e| host(&e))?
        {
            manifests.push(Manifest::parse(&bytes).map_err(|e| host(&e))?);
        }
        let images = || manifests.iter().flat_map(|manifest| &manifest.images);
        let names: BTreeSet<ArtifactName> = images().map(|image| image.name.clone()).collect();
        let tags: BTreeSet<(ArtifactName, Tag)> =
            images().map(|image| (image.name.clone(), image.tag.clone())).collect();
        if self.layout.dir().exists() {
            self.layout.collect_garbage(&names, &tags, KEPT_TAGS).map_err(|e| host(&e))?;
        }
        if self.config.cache_use == CacheUse::Own {
            let needed =
                manifests.iter().flat_map(|manifest| images::digests(manifest, &self.cache)).collect();
            self.cache.retain(&needed).map_err(|e| host(&e))?;
        }
        Ok(())
    }
}

/// A manifest whose signatures are good, and the bytes of both.
struct Signed {
    manifest: Manifest,
    bytes: Vec<u8>,
    signatures: Vec<u8>,
}

impl Signed {
    fn open(trust: &Trust, bytes: Vec<u8>, signatures: Option<Vec<u8>>) -> Result<Signed, Refusal> {
        let manifest = trust.open(&bytes, signatures.as_deref())?;
        Ok(Signed { manifest, bytes, signatures: signatures.unwrap_or_default() })
    }
}

#[async_trait]
impl Runner for Host {
    async fn current(&self) -> Result<Option<Version>, StepError> {
        Ok(self.releases()?.current)
    }

    async fn release(&self, version: &Version, permission: Permission) -> Result<Arc<Manifest>, StepError> {
        let signed = self.signed(version, permission).await?;
        let facts = self.facts().await?;
        self.trust()?.admit(&signed.manifest, version, permission, &facts).map_err(|e| refused(&e))?;
        self.store.keep_manifest(version, &signed.bytes, &signed.signatures).map_err(|e| host(&e))?;
        Ok(Arc::new(signed.manifest))
    }

    async fn stage(&self, manifest: &Manifest, stop: &CancellationToken) -> Result<(), StepError> {
        let source = self.source();
        let stager = Stager { source: &*source, cache: &self.cache, manifest, stop };
        for package in &manifest.packages {
            stager.package(package).await.map_err(staging)?;
        }
        for image in &manifest.images {
            stager.image(image).await.map_err(staging)?;
        }
        Ok(())
    }

    async fn end_orphans(&self) -> Result<(), StepError> {
        orphan::end_all(&self.mark("")).await.map_err(|e| host(&e))
    }

    fn newest(&self) -> Generation {
        Generation(self.newest.load(Ordering::Relaxed))
    }

    async fn run(&self, work: &StepWork, stop: &CancellationToken) -> Result<StepOutcome, StepError> {
        self.newest.fetch_max(work.generation.0, Ordering::Relaxed);
        let mut journal = self.journal.lock().await;
        StepRun::new(self, work)?.run(&mut journal, stop).await
    }

    async fn finish(&self, generation: Generation, manifest: &Manifest) -> Result<(), StepError> {
        let mut journal = self.journal.lock().await;
        let releases = self.releases()?.after(&manifest.version);
        self.store.set_releases(&releases).map_err(|e| host(&e))?;
        let last = journal.entries().last().cloned();
        let last = last.filter(|last| last.course.generation == generation);
        let permission = last.as_ref().map_or(Permission::Upgrade, |last| last.course.permission);
        let course = Course { generation, permission, release: manifest.version.clone() };
        if !last.is_some_and(|last| last.course == course && last.event == Event::Finished) {
            journal.append(&course, Event::Finished)?;
        }
        self.remove_old_output(generation).map_err(|e| host(&e))?;
        self.collect_garbage(manifest, &releases)
    }

    async fn installed(&self, manifest: &Manifest) -> Result<Installed, StepError> {
        let wanted: Vec<_> = manifest.packages.iter().collect();
        self.config.dpkg.prepare().map_err(|e| host(&e))?;
        let mut installed = Installed::default();
        for package in wanted {
            let faults = packages::faults(&self.config.dpkg, &[package], &[]).await;
            let faults = faults.map_err(|e| StepError::Host(format!("{e:?}")))?;
            if faults.is_empty() {
                installed.packages.insert(package.name.clone(), package.version.clone());
            }
        }
        for image in &manifest.images {
            if self.layout.verify(&image.name, &image.tag, &image.digest).is_ok() {
                installed.images.insert(image.name.clone(), image.tag.clone());
            }
        }
        Ok(installed)
    }
}

pub(super) fn host(error: &dyn std::fmt::Display) -> StepError {
    StepError::Host(error.to_string())
}

fn refused(refusal: &Refusal) -> StepError {
    StepError::Refused(refusal.to_string())
}

pub(super) fn unavailable(error: SourceError) -> StepError {
    match error {
        SourceError::Wrong { .. } => StepError::Refused(error.to_string()),
        SourceError::NotFound { .. } | SourceError::Unreachable { .. } => {
            StepError::Unavailable(error.to_string())
        }
    }
}

pub(super) fn staging(error: StageError) -> StepError {
    let text = error.to_string();
    match error {
        StageError::Image { .. } => StepError::Refused(text),
        StageError::Fetch(FetchError::Source { error, .. }) => match error {
            SourceError::Wrong { .. } => StepError::Refused(text),
            SourceError::NotFound { .. } | SourceError::Unreachable { .. } => StepError::Unavailable(text),
        },
        StageError::Fetch(FetchError::TooLong { .. } | FetchError::Tampered { .. }) => {
            StepError::Refused(text)
        }
        StageError::Fetch(FetchError::Truncated { .. }) => StepError::Unavailable(text),
        StageError::Fetch(FetchError::Stopped) => StepError::StagingStopped,
        StageError::Fetch(FetchError::Disk { .. }) => StepError::Host(text),
    }
}

impl From<JournalError> for StepError {
    fn from(error: JournalError) -> StepError {
        StepError::Host(error.to_string())
    }
}
