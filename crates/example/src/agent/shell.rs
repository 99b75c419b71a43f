//! Performs the effects of an agent: one file per beacon, and a report under the host's lease.
//!
//! The order makes every crash harmless: a file is durable before its beacon is reported, and the report is withdrawn
//! before the file is removed. After a kill -9 the files are read and reported again.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context as _;
use capstan_control::Epoch;
use capstan_control::keys::HostId;
use capstan_disk::{DRAFT, Disk, DiskExt as _};
use capstan_meta::session::Session;
use capstan_meta::view::View;
use tokio_util::sync::CancellationToken;

use super::machine::{Agent, Effect, wanted};
use crate::keys::{BeaconName, LitKey, Placements};
use crate::status::Lit;

/// The agent of one host.
#[derive(Debug)]
pub struct Shell {
    /// The host.
    pub host: HostId,
    /// Its directory.
    pub dir: PathBuf,
    /// The disk to write to.
    pub disk: Arc<dyn Disk>,
    /// The lease under which beacons are reported.
    pub session: Session,
}

impl Shell {
    /// Keeps the beacons of this host until it is stopped. The view covers [`Facts::ranges`](crate::facts::Facts::ranges).
    pub async fn run(&self, view: &View, stop: &CancellationToken) -> anyhow::Result<()> {
        let mut agent = Agent::found(self.load()?);
        for (beacon, epoch) in agent.lit() {
            self.report(beacon, *epoch).await;
        }
        let mut changes = view.changes();
        loop {
            let wanted = wanted(&self.host, &changes.mark_seen().list(&Placements {}));
            for effect in wanted.map(|wanted| agent.step(&wanted)).into_iter().flatten() {
                self.perform(effect).await?;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return Ok(()),
                changed = changes.next() => changed.context("the view is gone").map(drop)?,
            }
        }
    }

    async fn perform(&self, effect: Effect) -> anyhow::Result<()> {
        match effect {
            Effect::Light(beacon, epoch) => {
                self.disk
                    .replace(&self.dir, beacon.as_str(), epoch.to_string().as_bytes())
                    .with_context(|| format!("cannot write beacon {beacon}"))?;
                self.report(&beacon, epoch).await;
                tracing::info!(%beacon, %epoch, "beacon lit");
            }
            Effect::Extinguish(beacon) => {
                self.session.withdraw(&self.key(&beacon)).await;
                self.disk
                    .remove(&self.dir.join(beacon.as_str()))
                    .with_context(|| format!("cannot remove beacon {beacon}"))?;
                tracing::info!(%beacon, "beacon extinguished");
            }
        }
        Ok(())
    }

    async fn report(&self, beacon: &BeaconName, epoch: Epoch) {
        self.session.register(&self.key(beacon), &Lit { epoch }).await;
    }

    fn key(&self, beacon: &BeaconName) -> LitKey {
        LitKey { beacon: beacon.clone(), host: self.host.clone() }
    }

    /// The beacons on disk. A file that is not one is an error: it may be a beacon that was damaged.
    fn load(&self) -> anyhow::Result<BTreeMap<BeaconName, Epoch>> {
        self.disk.create_dirs(&self.dir)?;
        let mut found = BTreeMap::new();
        for name in self.disk.list(&self.dir)? {
            if name.ends_with(DRAFT) {
                self.disk.remove(&self.dir.join(&name))?;
                continue;
            }
            let content = self.disk.read(&self.dir.join(&name))?;
            let epoch = std::str::from_utf8(&content)?
                .parse()
                .with_context(|| format!("beacon {name} is damaged"))?;
            found.insert(name.parse()?, epoch);
        }
        Ok(found)
    }
}
