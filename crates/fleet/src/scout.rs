//! How are new releases found? The leading updater asks the source every `check-update-interval`.
//!
//! A changed interval, source or proxy counts at once: the next look is counted from the last one. What is found is
//! written down; whether the fleet is to have it is the target, which only ever moves to something newer here.

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::election::Ballot;
use capstan_meta::record::Key;
use capstan_meta::view::{Snapshot, View};
use capstan_meta::{Store, Txn};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_util::sync::CancellationToken;

use crate::api::Fleet;
use crate::encoding::Moment;
use crate::facts::Settings;
use crate::keys::{ReleaseName, Tree};
use crate::release::{Prereleases, SourceSpec, Trust, Version, newest};
use crate::spec::{ReleaseRecord, Target};

/// How long one look at the source may take.
const LOOK_WITHIN: Duration = Duration::from_secs(60);

/// Looks for releases whenever this updater leads.
#[derive(Debug)]
pub struct Scout {
    store: Store,
    tree: Tree,
    view: Arc<View>,
    ballot: Ballot,
    /// What this updater is called among the candidates.
    name: String,
    /// The keys that releases must be signed by; without them nothing is aimed at.
    trust: Option<Trust>,
}

impl Scout {
    /// A scout on a view that covers what decisions look at.
    #[must_use]
    pub fn new(store: Store, tree: Tree, view: Arc<View>, name: String, trust: Option<Trust>) -> Scout {
        let ballot = tree.ballot();
        Scout { store, tree, view, ballot, name, trust }
    }

    /// Looks until it is stopped.
    pub async fn run(&self, stop: &CancellationToken) {
        let mut changes = self.view.changes();
        let mut last: Option<(Instant, String)> = None;
        loop {
            let snapshot = changes.mark_seen();
            let settings = Settings::read(&*snapshot, &self.tree);
            let due = self.due(&snapshot, &settings, last.as_ref());
            if let (Some(at), Some(source)) = (due, &settings.source)
                && at <= Instant::now()
            {
                last = Some((Instant::now(), source.clone()));
                let looked = timeout(LOOK_WITHIN, self.look(source, &settings, &snapshot)).await;
                if let Err(why) = looked.unwrap_or_else(|_| Err("no answer in time".to_owned())) {
                    tracing::info!(source, why, "no release found");
                }
                continue;
            }
            tokio::select! {
                biased;
                () = stop.cancelled() => return,
                changed = changes.next() => if changed.is_none() { return },
                () = until(due) => {}
            }
        }
    }

    /// When to look next: never unless this updater leads and there is a source, at once if the source is another.
    fn due(
        &self,
        snapshot: &Snapshot,
        settings: &Settings,
        last: Option<&(Instant, String)>,
    ) -> Option<Instant> {
        let source = settings.source.as_ref()?;
        let leads = self.ballot.leader_in(snapshot).is_some_and(|leader| leader.id == self.name);
        let next = match last {
            Some((at, asked)) if asked == source => *at + settings.check_interval,
            Some(_) | None => Instant::now(),
        };
        leads.then_some(next)
    }

    async fn look(&self, source: &str, settings: &Settings, snapshot: &Snapshot) -> Result<(), String> {
        let spec: SourceSpec =
            source.parse().map_err(|error: crate::release::SpecError| error.to_string())?;
        let source = spec.connect(settings.proxy.as_deref()).map_err(|error| error.to_string())?;
        let listed = source.list().await.map_err(|error| error.to_string())?;
        let Some(found) = newest(&listed, Prereleases::Exclude) else { return Ok(()) };
        let version = &found.version;
        let key = self.tree.release(ReleaseName::new(version.as_str()).map_err(|error| error.to_string())?);
        let fleet = Fleet::new(self.store.clone(), self.tree.clone()).trusting(self.trust.clone());
        let manifest = fleet.verified(&*source, version).await.map_err(|error| error.to_string())?;
        let record = ReleaseRecord::of(&manifest, Moment::now());
        let write = Txn::new().when(key.absent()).then(key.put(&record));
        let fresh = self.store.commit(write).await.map_err(|error| error.to_string())?.succeeded;
        match (settings.auto_update, &self.trust) {
            (false, _) => Ok(()),
            (true, Some(_)) => self.aim(version, snapshot, fresh).await,
            (true, None) => Err(format!(
                "release {version} is not applied by itself: this updater has no trust file (fleet.trust) to check it with"
            )),
        }
    }

    /// The fleet is to have it, if it is newer than what the fleet is to have already. What an operator went back from
    /// is not taken up again.
    async fn aim(&self, version: &Version, snapshot: &Snapshot, fresh: bool) -> Result<(), String> {
        let key = self.tree.target();
        let seen = snapshot.get(&key).map_err(|bad| bad.to_string())?;
        let present = seen.as_ref().and_then(|seen| seen.record.version.parse::<Version>().ok());
        let went_back = seen.as_ref().is_some_and(|seen| seen.record.rollback);
        if present.is_some_and(|present| *version <= present) || (went_back && !fresh) {
            return Ok(());
        }
        let target = Target {
            version: version.to_string(),
            by: format!("updater {}", self.name),
            at: Moment::now(),
            ..Target::default()
        };
        // A concurrent change wins.
        let txn = Txn::new().when(key.as_seen(seen.as_deref())).then(key.put(&target));
        self.store.commit(txn).await.map(|_| ()).map_err(|error| error.to_string())
    }
}

async fn until(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => std::future::pending().await,
    }
}
