//! The roles of the fleet in a process: the updater, which decides for all hosts, and the worker, which updates one.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_console::{Findings, Health, ServiceFindings};
use capstan_control::keys::HostId;
use capstan_fleet::agent::shell::{self, WorkerOptions};
use capstan_fleet::artifact::dpkg::{DpkgOptions, Durability, Scripts};
use capstan_fleet::controller::UpdaterOptions;
use capstan_fleet::facts::Settings;
use capstan_fleet::release::{MAX_TRUST_BYTES, Source, SourceSpec, SpecError, Trust};
use capstan_fleet::run::{CacheUse, Host, HostConfig, Launcher, Runner as _};
use capstan_fleet::status::{HostInfo, HostLease};
use capstan_fleet::{Lrn, Tree, controller};
use capstan_meta::record::Key as _;
use capstan_meta::session::SessionOptions;
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{Store, Txn, clock};
use tokio_util::sync::CancellationToken;

use super::host::lease_options;
use super::process::{LOOP, Process, in_words};
use crate::commands::version::VERSION;

/// Everything about the updater of a process.
#[derive(Clone, Copy, Debug)]
pub(crate) struct UpdaterPlace<'p> {
    /// What others see as the leader's name.
    pub(crate) name: &'p str,
    /// How long it leads on after it died.
    pub(crate) ttl: Duration,
    /// The keys that releases must be signed by.
    pub(crate) trust: Option<&'p Path>,
    /// What is known about the services of hosts.
    pub(crate) findings: &'p Findings,
}

/// Campaigns among the updaters of a fleet and decides when elected.
pub(crate) fn start_updater(
    process: &Process,
    store: &Store,
    tree: &Tree,
    place: UpdaterPlace<'_>,
) -> Result<()> {
    let (store, tree) = (store.clone(), tree.clone());
    let options = UpdaterOptions {
        session: lease_options(place.ttl),
        trust: place.trust.map(read_trust).transpose()?,
        services: Arc::new(ServiceFindings::of(place.findings.clone())),
        ..UpdaterOptions::named(place.name)
    };
    process.supervisor.start(LOOP, "fleet updater", move |stop| {
        let (store, tree, options) = (store.clone(), tree.clone(), options.clone());
        async move { Ok(controller::run(&store, &tree, options, &stop).await?) }
    });
    Ok(())
}

/// The trust file: the keys that must have signed a release.
pub(crate) fn read_trust(path: &Path) -> Result<Trust> {
    let unusable = || format!("the trust file {}", path.display());
    let file = std::fs::File::open(path).with_context(unusable)?;
    let mut bytes = Vec::new();
    file.take(MAX_TRUST_BYTES).read_to_end(&mut bytes).with_context(unusable)?;
    Trust::parse(&bytes).with_context(unusable)
}

/// The options of one host's worker.
#[derive(Clone, Debug)]
pub(crate) struct WorkerPlace {
    /// The host's number in the fleet.
    pub(crate) lrn: Lrn,
    /// The name under which its services register.
    pub(crate) id: HostId,
    /// Its directories.
    pub(crate) host: HostConfig,
    /// Its default source of releases.
    pub(crate) source: SourceSpec,
    /// The options of its lease.
    pub(crate) session: SessionOptions,
}

impl WorkerPlace {
    /// A host whose worker keeps everything below `dir` and installs into `root`.
    pub(crate) fn new(
        lrn: Lrn,
        id: HostId,
        dir: &Path,
        root: &Path,
        trust: PathBuf,
        ttl: Duration,
    ) -> Result<WorkerPlace> {
        let (dir, root) = (std::path::absolute(dir)?, std::path::absolute(root)?);
        let own = root == Path::new("/");
        let scripts = if own { Scripts::InRoot } else { Scripts::Outside };
        let host = HostConfig {
            state: dir.clone(),
            cache: dir.join("cache"),
            cache_use: CacheUse::Own,
            images: dir.join("images"),
            dpkg: DpkgOptions { scripts, ..DpkgOptions::new(root) },
            trust: std::path::absolute(trust)?,
            worker_version: VERSION.parse().context("the version of this build")?,
            launcher: if own { Launcher::detect() } else { Launcher::Direct },
        };
        let source = SourceSpec::Directory(dir.join("releases"));
        Ok(WorkerPlace { lrn, id, host, source, session: lease_options(ttl) })
    }

    /// The same on a disposable host: several of them share one cache, and nothing is synced to disk.
    pub(crate) fn disposable(mut self, cache: PathBuf) -> WorkerPlace {
        self.host.cache = cache;
        self.host.cache_use = CacheUse::Shared;
        self.host.dpkg.durability = Durability::Unsafe;
        self
    }
}

/// Runs the worker of a host.
pub(crate) fn start_worker(
    process: &Process,
    store: &Store,
    tree: &Tree,
    findings: &Findings,
    place: WorkerPlace,
) {
    let services = ServiceFindings::at(findings.clone(), place.id.clone());
    let part = format!("fleet worker {}", place.lrn);
    process.health.waiting(&part, "not started yet");
    let (store, tree, health) = (store.clone(), tree.clone(), process.health.clone());
    process.supervisor.start(LOOP, part.clone(), move |stop| {
        let (store, tree, place) = (store.clone(), tree.clone(), (place.clone(), services.clone()));
        let (health, part) = (health.clone(), part.clone());
        async move {
            let worked = work(&store, &tree, place, &health, &part, &stop).await;
            if let Err(error) = &worked {
                health.waiting(&part, format!("{error:#}"));
            }
            worked.map_err(in_words)
        }
    });
}

async fn work(
    store: &Store,
    tree: &Tree,
    (place, services): (WorkerPlace, ServiceFindings),
    health: &Health,
    part: &str,
    stop: &CancellationToken,
) -> Result<()> {
    let host = Host::open(place.host, place.source.connect(None)?)?.observed_by(Arc::new(services));
    let host = Arc::new(host);
    declare(store, tree, place.lrn, &place.id, &host.machine()?).await?;
    let config =
        View::open(store.clone(), Ranges::new().with(&tree.config()), ViewOptions::default()).await?;
    let lease = HostLease {
        boot: format!("{:x}-{}", clock::since_epoch().as_nanos(), std::process::id()),
        worker_version: VERSION.to_owned(),
        release: host.current().await?.map(|release| release.to_string()).unwrap_or_default(),
        ..HostLease::default()
    };
    let options = WorkerOptions { lease, session: place.session, ..WorkerOptions::of(place.lrn) };
    health.ready(part);
    tracing::info!(lrn = %place.lrn, host = %place.id, "fleet worker started");
    tokio::select! {
        ended = shell::run(store, tree, host.clone(), options, stop) => Ok(ended?),
        () = follow_source(&host, &config, tree, &place.source) => Ok(()),
    }
}

/// Records the machine behind this number and the name of its host, unless an operator has set them. A second machine
/// with the same number is refused: both would run every step.
async fn declare(store: &Store, tree: &Tree, lrn: Lrn, id: &HostId, machine: &str) -> Result<()> {
    let key = tree.host_info(lrn);
    let seen = store.read(&key).await?;
    let info: HostInfo = seen.as_ref().map(|seen| seen.record.clone()).unwrap_or_default();
    if !info.machine.is_empty() && info.machine != machine {
        anyhow::bail!(
            "another machine works as host {lrn}; give this one a number of its own (fleet.lrn), or, if it takes the \
             other's place, run `capstan fleet leave {lrn}` and `capstan fleet join {lrn}`"
        );
    }
    if let Some(told) = info.host.as_ref().filter(|told| *told != id) {
        tracing::warn!(%lrn, %id, %told, "the fleet has this host under another name; join it again");
    }
    let named = HostInfo {
        host: Some(info.host.clone().unwrap_or_else(|| id.clone())),
        machine: machine.to_owned(),
        ..info.clone()
    };
    if named != info {
        let txn = Txn::new().when(key.as_seen(seen.as_ref())).then(key.put(&named));
        if !store.commit(txn).await?.succeeded {
            anyhow::bail!("host {lrn} was changed concurrently; retrying");
        }
    }
    Ok(())
}

/// Makes the host use the fleet's source whenever it changes. Ends with the view.
async fn follow_source(host: &Host, config: &View, tree: &Tree, own: &SourceSpec) {
    let mut changes = config.changes();
    let mut seen = changes.mark_seen();
    loop {
        match source(&Settings::read(&*seen, tree), own) {
            Ok(source) => host.set_source(source),
            Err(error) => tracing::warn!(%error, "cannot use the fleet's source, keeping the previous one"),
        }
        match changes.next().await {
            Some(delta) => seen = delta.after,
            None => return,
        }
    }
}

fn source(settings: &Settings, own: &SourceSpec) -> Result<Arc<dyn Source>, SpecError> {
    let told = settings.source.as_deref().map(str::parse::<SourceSpec>).transpose()?;
    told.as_ref().unwrap_or(own).connect(settings.proxy.as_deref())
}
