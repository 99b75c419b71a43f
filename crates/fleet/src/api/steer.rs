//! How is a rollout begun, held, hurried, stopped and cleared away?

use capstan_meta::record::{Key, Prefix, Stored};
use capstan_meta::{Compare, CompareTarget, Relation, Revision, Txn};

use super::{ATTEMPTS, Asker, Fleet};
use crate::decide::why::open_waves;
use crate::decide::{Standing, is_over, standings};
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::history::{HistoryRecord, Outcome};
use crate::keys::ReleaseName;
use crate::lrn::Lrn;
use crate::plan::estimate::{Preview, preview};
use crate::release::Version;
use crate::spec::{Order, Orders, ReleaseRecord, Target};
use crate::status::Request;
use crate::world::World;

impl Asker {
    fn order(&self) -> Order {
        Order { by: self.by.clone(), reason: self.reason.clone(), at: Moment::now() }
    }
}

impl Fleet {
    /// Makes a release known to the updaters. Hosts do not believe it: they check the signed manifest themselves.
    pub async fn add_release(&self, release: &ReleaseRecord) -> Result<(), FleetError> {
        parse(&release.version)?;
        if release.steps.is_empty() {
            return Err(FleetError::Invalid(format!("release {} has no steps", release.version)));
        }
        let key = self.tree.release(ReleaseName::new(&release.version)?);
        self.change(&key, "the release", |_| Ok(Some(release.clone()))).await
    }

    /// What a release would do: waves, hosts, order, an estimate of the time, and why. Changes nothing.
    pub async fn plan(&self, version: &str) -> Result<Preview, FleetError> {
        let world = self.world().await?;
        let release = known(&world, version)?;
        Ok(preview(release, &world.registry, &world.labels(), &world.policies))
    }

    /// The fleet is to have this release. Begins when nothing else is under way.
    pub async fn apply(&self, version: &str, asker: &Asker) -> Result<(), FleetError> {
        let world = self.world().await?;
        known(&world, version)?;
        refuse_downgrade(&world, version)?;
        if let Some(request) = world.request.as_ref().filter(|seen| seen.record.stop) {
            let stopped = &request.record.version;
            let text = format!("the request for {stopped} is stopped; `recover` clears it away first");
            return Err(FleetError::Refused(text));
        }
        self.aim(version, asker, false).await
    }

    async fn aim(&self, version: &str, asker: &Asker, rollback: bool) -> Result<(), FleetError> {
        let target = target(version, asker, rollback);
        self.change(&self.tree.target(), "the target", |_| Ok(Some(target.clone()))).await
    }

    /// No host begins anything new; what is under way goes on.
    pub async fn pause(&self, asker: &Asker) -> Result<(), FleetError> {
        self.order(|orders| orders.paused = Some(asker.order())).await
    }

    /// Hosts begin again.
    pub async fn resume(&self) -> Result<(), FleetError> {
        self.order(|orders| {
            if orders.paused.take().is_some() {
                orders.resumed_at = Some(Moment::now());
            }
        })
        .await
    }

    /// Every host stops at once. The leading updater sets the flag; if none leads, this call does.
    pub async fn stop(&self, asker: &Asker) -> Result<(), FleetError> {
        self.order(|orders| orders.stopped = Some(asker.order())).await?;
        let key = self.tree.current();
        for _ in 0..ATTEMPTS {
            let Some(seen) = self.store.read(&key).await? else { return Ok(()) };
            if seen.record.stop {
                return Ok(());
            }
            let nobody_leads = Compare {
                keys: Prefix::range(&self.tree.candidates()),
                target: CompareTarget::CreateRevision(Revision::ZERO),
                relation: Relation::Equal,
            };
            let stopped = Request {
                stop: true,
                stop_reason: format!("stopped by {}: {}", asker.by, asker.reason),
                ..seen.record.clone()
            };
            let leaders = self.store.list(&self.tree.candidates()).await?;
            if !leaders.entries.is_empty() {
                return Ok(());
            }
            let txn =
                Txn::new().when(nobody_leads).when(key.unchanged(&seen)).then(key.replace(&seen, &stopped));
            if self.commit(txn).await? {
                return Ok(());
            }
        }
        Err(FleetError::Contended("the request"))
    }

    /// The next wave begins without waiting for the bake of the one before, or for this word.
    pub async fn promote(&self) -> Result<(), FleetError> {
        let world = self.world().await?;
        let waves = open_waves(&world).ok_or(FleetError::NothingUnderWay)?;
        let wave = waves.into_iter().map(|(_, wave)| wave + 1).max().unwrap_or(0);
        let wave = u32::try_from(wave).unwrap_or(u32::MAX);
        self.order(|orders| orders.promoted = orders.promoted.max(wave)).await
    }

    /// A host that failed tries again, from the step at which it failed.
    pub async fn retry(&self, lrn: Lrn) -> Result<(), FleetError> {
        let world = self.world().await?;
        match standings(&world).and_then(|standings| standings.get(&lrn).cloned()) {
            Some(Standing::Failed(_)) => {}
            Some(_) => return Err(FleetError::Refused(format!("host {lrn} has not failed"))),
            None => return Err(FleetError::UnknownHost(lrn)),
        }
        if world.request.as_ref().is_some_and(|seen| seen.record.stop) {
            let text = "the request is stopped; `recover` has every host tried again".to_owned();
            return Err(FleetError::Refused(text));
        }
        self.order(|orders| *orders.retry.entry(lrn).or_default() += 1).await
    }

    /// The rollout goes on without a host.
    pub async fn skip(&self, lrn: Lrn, asker: &Asker) -> Result<(), FleetError> {
        if asker.reason.is_empty() {
            return Err(FleetError::Invalid("to skip a host takes a reason".to_owned()));
        }
        let world = self.world().await?;
        let member = world.request.as_ref().is_some_and(|seen| seen.record.servers.contains(&lrn));
        if !member {
            return Err(FleetError::UnknownHost(lrn));
        }
        self.order(|orders| {
            orders.skip.insert(lrn, asker.order());
        })
        .await
    }

    /// Clears a stopped request away: every host begins anew, with the named release or else with the same one.
    pub async fn recover(&self, version: Option<&str>, asker: &Asker) -> Result<(), FleetError> {
        let world = self.world().await?;
        let named = match version {
            None => None,
            Some(version) => {
                known(&world, version)?;
                Some(target(version, asker, false))
            }
        };
        self.clear(&world, asker, named).await
    }

    /// Goes back to an older release: the named one, or the last that succeeded before the present one.
    pub async fn rollback(&self, to: Option<&str>, asker: &Asker) -> Result<String, FleetError> {
        let world = self.world().await?;
        let Some(request) = world.request.as_ref().map(|seen| &seen.record) else {
            return Err(FleetError::NothingUnderWay);
        };
        let kept = world.history.as_ref().map(|seen| seen.record.from.clone()).unwrap_or_default();
        let to = match to {
            Some(to) => to.to_owned(),
            None if kept.is_empty() => {
                return Err(FleetError::NotFound(format!("a release before {}", request.version)));
            }
            None => kept,
        };
        known(&world, &to)?;
        let ended = world.history.as_ref().is_some_and(|seen| seen.record.outcome.is_some());
        if request.stop {
            self.clear(&world, asker, Some(target(&to, asker, true))).await?;
        } else if ended {
            self.aim(&to, asker, true).await?;
        } else {
            let text = format!("the request for {} is under way; `stop` it first", request.version);
            return Err(FleetError::Refused(text));
        }
        Ok(to)
    }

    async fn clear(&self, world: &World, asker: &Asker, named: Option<Target>) -> Result<(), FleetError> {
        let Some(seen) = &world.request else { return Err(FleetError::NotFound("a request".to_owned())) };
        if !seen.record.stop {
            return Err(FleetError::NotStopped(seen.record.version.clone()));
        }
        let same = Target { rollback: seen.record.rollback, ..target(&seen.record.version, asker, false) };
        let (current, history) = (self.tree.current(), self.tree.history(seen.record.generation));
        let note = ended(&seen.record, world.history.as_deref());
        let txn = Txn::new()
            .when(current.unchanged(seen))
            .when(history.as_seen(world.history.as_deref()))
            .then(current.delete())
            .then(self.tree.released().delete())
            .then(self.tree.host_statuses().delete_all())
            .then(self.tree.target().put(&named.unwrap_or(same)))
            .then(history.put(&note));
        match self.commit(txn).await? {
            true => Ok(()),
            false => Err(FleetError::Contended("the request")),
        }
    }

    /// Changes the orders about the request that is there.
    async fn order(&self, change: impl Fn(&mut Orders)) -> Result<(), FleetError> {
        let Some(request) = self.store.read(&self.tree.current()).await? else {
            return Err(FleetError::NothingUnderWay);
        };
        let generation = request.record.generation;
        let history = self.store.read(&self.tree.history(generation)).await?;
        // Hosts that were away when it ended are still caught up, and that can be held or stopped.
        if history.is_some_and(|seen| seen.record.outcome.is_some()) && is_over(&self.world().await?) {
            return Err(FleetError::NothingUnderWay);
        }
        let key = self.tree.orders(generation);
        let still = Txn::new().when(self.tree.current().same_life(&request));
        self.change_if(&key, "the orders", still, |orders| {
            let mut next = orders.cloned().unwrap_or_default();
            change(&mut next);
            Ok((orders != Some(&next)).then_some(next))
        })
        .await
    }
}

fn ended(request: &Request, history: Option<&Stored<HistoryRecord>>) -> HistoryRecord {
    let before = history.map(|seen| seen.record.clone()).unwrap_or_else(|| HistoryRecord {
        version: request.version.clone(),
        started_at: request.started_at,
        ..HistoryRecord::default()
    });
    HistoryRecord {
        outcome: before.outcome.or(Some(Outcome::Stopped)),
        recovered_at: Some(Moment::now()),
        ..before
    }
}

fn target(version: &str, asker: &Asker, rollback: bool) -> Target {
    Target {
        version: version.to_owned(),
        by: asker.by.clone(),
        at: Moment::now(),
        rollback,
        ..Target::default()
    }
}

fn parse(version: &str) -> Result<Version, FleetError> {
    version.parse().map_err(|error: crate::release::VersionError| FleetError::Invalid(error.to_string()))
}

fn known<'w>(world: &'w World, version: &str) -> Result<&'w ReleaseRecord, FleetError> {
    parse(version)?;
    let found = world.releases.get(version).map(|seen| &seen.record);
    found.ok_or_else(|| FleetError::NotFound(format!("release {version}")))
}

/// What the fleet has, or is on its way to.
fn present(world: &World) -> Option<&String> {
    let request = world.request.as_ref().map(|seen| &seen.record.version);
    request.or(world.last_success.as_ref())
}

fn refuse_downgrade(world: &World, version: &str) -> Result<(), FleetError> {
    let Some(present) = present(world) else { return Ok(()) };
    let older =
        present.parse::<Version>().is_ok_and(|present| parse(version).is_ok_and(|wanted| wanted < present));
    match older {
        true => Err(FleetError::Refused(format!(
            "release {version} is older than {present}; `rollback` goes back on purpose"
        ))),
        false => Ok(()),
    }
}
