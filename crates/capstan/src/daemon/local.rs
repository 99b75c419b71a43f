//! The local hosts of `capstan up`: several hosts in one process, each with a name and a directory of its own.
//!
//! To the rest of Capstan they are hosts like any other: registered under the process's lease, drained one by one.
//! Roles say what they do on a host before it is registered: see [`LocalHost::role`].

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use capstan_console::Findings;
use capstan_control::hosts::HostRecord;
use capstan_control::keys::{HostId, HostKey, Role, ServiceName};
use capstan_fleet::api::{ConfigKey, Member};
use capstan_fleet::artifact::files::{make_dir, write_atomic, write_atomic_with_mode};
use capstan_fleet::release::{SecretKey, Trust};
use capstan_fleet::{Fleet, Lrn};
use capstan_meta::session::Session;
use capstan_meta::{Store, clock};

use super::fleet::{WorkerPlace, start_worker};
use super::host::{PART, start_drain_agent};
use super::process::Process;
use crate::commands::version::VERSION;
use crate::config::{Config, HostRole};

/// Where the local hosts are, relative to the data directory.
const HOSTS_DIR: &str = "hosts";

/// A host that `capstan up` simulates.
#[derive(Clone, Debug)]
pub(crate) struct LocalHost {
    /// Counted from one.
    pub(crate) number: u32,
    /// Its name.
    pub(crate) id: HostId,
    /// The directory of this host.
    pub(crate) dir: PathBuf,
    /// Its roles.
    pub(crate) roles: Vec<Role>,
    /// The services that answer drains of it.
    pub(crate) services: Vec<ServiceName>,
    /// The addresses of its roles.
    pub(crate) addresses: BTreeMap<String, String>,
}

impl LocalHost {
    fn new(number: u32, data: &Path) -> Result<LocalHost> {
        Ok(LocalHost {
            number,
            id: format!("local-{number}").parse()?,
            dir: data.join(HOSTS_DIR).join(number.to_string()),
            roles: Vec::new(),
            services: vec![PART.parse()?],
            addresses: BTreeMap::new(),
        })
    }

    /// Adds a role.
    pub(crate) fn role(&mut self, role: HostRole) -> Result<()> {
        self.roles.push(role.name().parse()?);
        Ok(())
    }

    /// The directory that serves as its `/`.
    pub(crate) fn root(&self) -> PathBuf {
        self.dir.join("root")
    }

    fn record(&self) -> HostRecord {
        HostRecord {
            boot: format!("{:x}-{}", clock::since_epoch().as_nanos(), std::process::id()),
            roles: self.roles.clone(),
            services: self.services.clone(),
            addresses: self.addresses.clone(),
            version: VERSION.to_owned(),
            labels: BTreeMap::from([("local".to_owned(), self.number.to_string())]),
            started_at: clock::since_epoch().as_secs(),
            ..HostRecord::default()
        }
    }
}

/// The local hosts that the settings ask for, without roles.
pub(crate) fn local_hosts(config: &Config) -> Result<Vec<LocalHost>> {
    let data = std::path::absolute(&config.meta.dir)?;
    (1..=config.up_hosts).map(|number| LocalHost::new(number, &data)).collect()
}

/// Registers local hosts for as long as the session lives, and answers drains of them.
pub(crate) fn start_local_hosts(
    process: &Process,
    store: &Store,
    session: &Session,
    hosts: &[LocalHost],
) -> Result<()> {
    for host in hosts {
        session.declare(&HostKey { host: host.id.clone() }, &host.record());
        start_drain_agent(process, store, &host.id)?;
    }
    Ok(())
}

/// Updates the local hosts as a fleet. New hosts join it; hosts that have left stay out. Returns the trust
/// file of the sample, if there are hosts.
pub(crate) async fn start_local_fleet(
    process: &Process,
    store: &Store,
    config: &Config,
    findings: &Findings,
    hosts: &mut [LocalHost],
) -> Result<Option<PathBuf>> {
    if hosts.is_empty() {
        return Ok(None);
    }
    let data = std::path::absolute(&config.meta.dir)?;
    let fleet = Fleet::new(store.clone(), config.fleet.tree.clone());
    let trust = prepare_sample(&fleet, &data).await?;
    for host in hosts {
        host.role(HostRole::Fleet)?;
        let lrn = Lrn(host.number);
        if !host.dir.exists() {
            fleet.join(&Member { lrn, host: Some(host.id.clone()), labels: BTreeMap::new() }).await?;
            // The directory is created last: it records that the host has joined once.
            make_dir(&host.root()).with_context(|| format!("cannot make {}", host.root().display()))?;
        }
        let (dir, ttl) = (host.dir.join("fleet"), config.host.lease_ttl);
        let place = WorkerPlace::new(lrn, host.id.clone(), &dir, &host.root(), trust.clone(), ttl)?;
        start_worker(process, store, &config.fleet.tree, findings, place.disposable(data.join("cache")));
    }
    Ok(Some(trust))
}

/// Where the sample release goes, relative to the data directory.
pub(crate) const SAMPLE_DIR: &str = "sample";

/// Makes the trust file of the local hosts and the key behind it, and on the first start has the fleet look for
/// releases where the sample will be. Returns the trust file.
async fn prepare_sample(fleet: &Fleet, data: &Path) -> Result<PathBuf> {
    let dir = data.join(SAMPLE_DIR);
    let (key, trust) = (dir.join("release.key"), dir.join("trust.json"));
    if !key.exists() {
        make_dir(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        make_key(&key, &trust)?;
    }
    let first = !data.join(HOSTS_DIR).exists();
    if first && !fleet.config_get(ConfigKey::Source).await?.set {
        fleet.config_set(ConfigKey::Source, &dir.join("repository").display().to_string()).await?;
        fleet.config_set(ConfigKey::AutoUpdate, "false").await?;
    }
    Ok(trust)
}

fn make_key(key: &Path, trust: &Path) -> Result<()> {
    let secret = SecretKey::generate()?;
    let trusted = serde_json::to_vec_pretty(&Trust::in_all_of(vec![secret.public()]))?;
    write_atomic(trust, &trusted).with_context(|| format!("cannot write {}", trust.display()))?;
    // The key is written last: it implies that the trust file exists.
    write_atomic_with_mode(key, secret.to_text().as_bytes(), 0o600)
        .with_context(|| format!("cannot write {}", key.display()))
}
