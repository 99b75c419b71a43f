//! A host that keeps its disk in memory: a whole implementation of [`Runner`], journal included, that outlives its
//! worker. Tests hold steps up, make them fail, and read which ones were run.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex, MutexGuard};

use async_trait::async_trait;
use capstan_fleet::release::{Manifest, Version};
use capstan_fleet::run::{Generation, Installed, Permission, Runner, StepError, StepOutcome, StepWork};
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

/// One run of a step.
pub(crate) type Run = (u64, String, u32);

#[derive(Default)]
struct Disk {
    releases: BTreeMap<String, Arc<Manifest>>,
    current: Option<String>,
    kept: Option<String>,
    /// Steps that were begun, in order; a step that is resumed is begun once.
    begun: Vec<Run>,
    done: BTreeSet<Run>,
    failing: BTreeMap<u32, String>,
    installs: BTreeMap<u32, Installed>,
}

/// A host.
pub(crate) struct MemoryHost {
    disk: Mutex<Disk>,
    /// Steps that nobody may pass yet.
    held: watch::Sender<BTreeSet<u32>>,
    /// Steps that are not ended by a stop.
    deaf: Mutex<BTreeSet<u32>>,
    /// Steps that run now.
    running: Arc<AtomicU32>,
}

/// Counts a step while it runs, however it ends.
struct Counted(Arc<AtomicU32>);

impl Counted {
    fn new(running: &Arc<AtomicU32>) -> Counted {
        running.fetch_add(1, Ordering::SeqCst);
        Counted(running.clone())
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Default for MemoryHost {
    fn default() -> MemoryHost {
        let disk = Disk { current: Some("1.0.0".to_owned()), ..Disk::default() };
        MemoryHost {
            disk: Mutex::new(disk),
            held: watch::Sender::new(BTreeSet::new()),
            deaf: Mutex::default(),
            running: Arc::default(),
        }
    }
}

impl MemoryHost {
    fn disk(&self) -> MutexGuard<'_, Disk> {
        self.disk.lock().unwrap()
    }

    /// The release can be fetched by this host.
    pub(crate) fn offer(&self, manifest: Arc<Manifest>) {
        self.disk().releases.insert(manifest.version.to_string(), manifest);
    }

    /// The step fails from now on.
    pub(crate) fn fail_at(&self, step: u32, why: &str) {
        self.disk().failing.insert(step, why.to_owned());
    }

    /// The step installs this.
    pub(crate) fn installs(&self, step: u32, package: (&str, &str), image: (&str, &str)) {
        let mut installed = Installed::default();
        installed.packages.insert(package.0.parse().unwrap(), package.1.parse().unwrap());
        installed.images.insert(image.0.parse().unwrap(), image.1.parse().unwrap());
        self.disk().installs.insert(step, installed);
    }

    /// The step works again.
    pub(crate) fn heal(&self, step: u32) {
        self.disk().failing.remove(&step);
    }

    /// The step does not come to its end until it is let go.
    pub(crate) fn hold(&self, step: u32) {
        self.held.send_modify(|held| {
            held.insert(step);
        });
    }

    /// The same, and a stop does not end it.
    pub(crate) fn hold_deaf(&self, step: u32) {
        self.deaf.lock().unwrap().insert(step);
        self.hold(step);
    }

    /// How many steps run now.
    pub(crate) fn running(&self) -> u32 {
        self.running.load(Ordering::SeqCst)
    }

    pub(crate) fn let_go(&self, step: u32) {
        self.held.send_modify(|held| {
            held.remove(&step);
        });
    }

    /// Steps of a request in the order in which they were begun.
    pub(crate) fn begun(&self, generation: u64) -> Vec<u32> {
        let disk = self.disk();
        disk.begun.iter().filter(|(of, _, _)| *of == generation).map(|(_, _, step)| *step).collect()
    }

    /// Every step that was begun.
    pub(crate) fn all_begun(&self) -> Vec<Run> {
        self.disk().begun.clone()
    }

    /// The release that the host has.
    pub(crate) fn has(&self) -> Option<String> {
        self.disk().current.clone()
    }
}

#[async_trait]
impl Runner for MemoryHost {
    async fn current(&self) -> Result<Option<Version>, StepError> {
        Ok(self.disk().current.as_ref().map(|version| version.parse().unwrap()))
    }

    async fn release(&self, version: &Version, permission: Permission) -> Result<Arc<Manifest>, StepError> {
        let disk = self.disk();
        let current: Option<Version> = disk.current.as_ref().map(|version| version.parse().unwrap());
        if permission == Permission::Upgrade && current.is_some_and(|current| *version < current) {
            return Err(StepError::Refused(format!("{version} is older than what is installed")));
        }
        let found = disk.releases.get(version.as_str()).cloned();
        found.ok_or_else(|| StepError::Refused(format!("no release {version} at the source")))
    }

    async fn stage(&self, _: &Manifest, _: &CancellationToken) -> Result<(), StepError> {
        Ok(())
    }

    async fn run(&self, work: &StepWork, stop: &CancellationToken) -> Result<StepOutcome, StepError> {
        let step = work.step.get();
        let name = work.manifest.step(work.step).unwrap().name.clone();
        let run = (work.generation.0, work.manifest.version.to_string(), step);
        let newest = self.newest();
        if newest > work.generation {
            let text = format!(
                "the work belongs to request {}, and this host has worked for request {newest}",
                work.generation
            );
            return Err(StepError::Refused(text));
        }
        {
            let mut disk = self.disk();
            if disk.done.contains(&run) {
                return Ok(StepOutcome::default());
            }
            if !disk.begun.contains(&run) {
                disk.begun.push(run.clone());
            }
        }
        let _counted = Counted::new(&self.running);
        let mut held = self.held.subscribe();
        let deaf = self.deaf.lock().unwrap().contains(&step);
        tokio::select! {
            biased;
            () = stop.cancelled(), if !deaf => return Err(StepError::Stopped { step: name, after: None }),
            passed = held.wait_for(|held| !held.contains(&step)) => drop(passed.unwrap()),
        }
        let mut disk = self.disk();
        if let Some(why) = disk.failing.get(&step) {
            return Err(StepError::Failed { step: name, what: why.clone() });
        }
        disk.done.insert(run);
        Ok(StepOutcome { installed: disk.installs.get(&step).cloned().unwrap_or_default() })
    }

    async fn finish(&self, _: Generation, manifest: &Manifest) -> Result<(), StepError> {
        let mut disk = self.disk();
        let version = manifest.version.to_string();
        if disk.current.as_ref() != Some(&version) {
            disk.kept = disk.current.replace(version);
        }
        Ok(())
    }

    fn newest(&self) -> Generation {
        Generation(self.disk().begun.iter().map(|(generation, _, _)| *generation).max().unwrap_or(0))
    }

    async fn installed(&self, _: &Manifest) -> Result<Installed, StepError> {
        Ok(Installed::default())
    }
}
