//! How is a rollout begun, held, hurried, stopped and cleared away?

use std::sync::Arc;

use capstan_meta::record::{Key, Prefix, Stored};
use capstan_meta::settle::{Next, settle};
use capstan_meta::{Compare, Delete, KeyValue, Revision, Txn};

use super::{Asker, Fleet};
use crate::decide::why::open_waves;
use crate::decide::{Standing, is_over, standings};
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::facts::Facts;
use crate::history::{HistoryRecord, Outcome};
use crate::keys::{OrdersKey, ReleaseName};
use crate::lrn::Lrn;
use crate::plan::estimate::{Preview, preview};
use crate::release::Version;
use crate::spec::{Order, Orders, ReleaseRecord, Target};
use crate::status::Request;

/// Keys that one `recover` repairs at most; a transaction holds 128 operations.
const MAX_REPAIRS: usize = 100;

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
        self.store.put(key.put(release)).await?;
        Ok(())
    }

    /// What a release would do: waves, hosts, order, an estimate of the time, and why. Changes nothing.
    pub async fn plan(&self, version: &str) -> Result<Preview, FleetError> {
        let facts = self.facts().await?;
        let release = known(&facts, version)?;
        Ok(preview(release, &facts.registry, &facts.labels(), &facts.policies))
    }

    /// The fleet is to have this release. Begins when nothing else is under way.
    pub async fn apply(&self, version: &str, asker: &Asker) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        known(&facts, version)?;
        refuse_downgrade(&facts, version)?;
        refuse_stopped(&facts)?;
        self.aim(version, asker, false).await
    }

    async fn aim(&self, version: &str, asker: &Asker, rollback: bool) -> Result<(), FleetError> {
        self.store.put(self.tree.target().put(&target(version, asker, rollback))).await?;
        Ok(())
    }

    /// No host begins anything new; what is under way goes on.
    pub async fn pause(&self, asker: &Asker) -> Result<(), FleetError> {
        self.order_or(|orders| orders.paused = Some(asker.order()), Unparsable::Replaced).await
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

    /// The next wave begins without waiting for the bake of the one before, or for this word.
    pub async fn promote(&self) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        let waves = open_waves(&facts).ok_or(FleetError::NothingUnderWay)?;
        let wave = waves.into_iter().map(|(_, wave)| wave + 1).max().unwrap_or(0);
        let wave = u32::try_from(wave).unwrap_or(u32::MAX);
        self.order(|orders| orders.promoted = orders.promoted.max(wave)).await
    }

    /// A host that failed tries again, from the step at which it failed; one that is skipped takes part again.
    pub async fn retry(&self, lrn: Lrn) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        refuse_stopped(&facts)?;
        let failed = has_failed(&facts, lrn);
        match standings(&facts).and_then(|standings| standings.get(&lrn).cloned()) {
            Some(Standing::Failed(_) | Standing::Skipped) => {}
            Some(Standing::Gone | Standing::Absent) => {
                let text =
                    format!("the worker of host {lrn} is gone; start it, and the host goes on by itself");
                return Err(FleetError::Refused(text));
            }
            Some(Standing::Left | Standing::Silent | Standing::At(_) | Standing::Finished) if !failed => {
                return Err(FleetError::Refused(format!("host {lrn} has not failed")));
            }
            Some(Standing::Left | Standing::Silent | Standing::At(_) | Standing::Finished) => {}
            None => return Err(FleetError::UnknownHost(lrn)),
        }
        self.order(|orders| {
            orders.skip.remove(&lrn);
            if failed {
                *orders.retry.entry(lrn).or_default() += 1;
            }
        })
        .await
    }

    /// The rollout goes on without a host. A failed one takes up its work again; one that is down stays out of service
    /// and counts as such.
    pub async fn skip(&self, lrn: Lrn, asker: &Asker) -> Result<(), FleetError> {
        if asker.reason.is_empty() {
            return Err(FleetError::Invalid("to skip a host takes a reason".to_owned()));
        }
        let facts = self.facts().await?;
        let member = facts.request.as_ref().is_some_and(|seen| seen.record.servers.contains(&lrn));
        if !member {
            return Err(FleetError::UnknownHost(lrn));
        }
        refuse_stopped(&facts)?;
        if facts.has_ended() && !is_over(&facts) {
            return Err(FleetError::Refused(
                "the update has ended; hosts that it went on without catch up".to_owned(),
            ));
        }
        self.order(|orders| {
            orders.skip.insert(lrn, asker.order());
        })
        .await
    }

    /// Clears a stopped request away: every host begins anew, with the named release or else with the same one. What
    /// cannot be read of the old request is removed with it.
    pub async fn recover(&self, version: Option<&str>, asker: &Asker) -> Result<(), FleetError> {
        let facts = self.facts().await?;
        let named = match version {
            None => None,
            Some(version) => {
                known(&facts, version)?;
                Some(target(version, asker, false))
            }
        };
        self.clear(&facts, asker, named).await
    }

    /// Goes back to an older release: the named one, or the last that succeeded before the present one. A request that is
    /// under way is stopped first.
    pub async fn rollback(&self, to: Option<&str>, asker: &Asker) -> Result<String, FleetError> {
        let mut facts = self.facts().await?;
        let Some(request) = facts.request.as_ref().map(|seen| seen.record.clone()) else {
            return Err(FleetError::NothingUnderWay);
        };
        let to = match to {
            Some(to) => to.to_owned(),
            None => release_before(&facts, &request)?,
        };
        known(&facts, &to)?;
        if !request.stop && !facts.has_ended() {
            self.stop(asker).await?;
            facts = self.facts().await?;
        }
        let stopped = facts.request.as_ref().is_some_and(|seen| seen.record.stop);
        match stopped {
            true => self.clear(&facts, asker, Some(target(&to, asker, true))).await?,
            false => self.aim(&to, asker, true).await?,
        }
        Ok(to)
    }

    async fn clear(&self, facts: &Facts, asker: &Asker, named: Option<Target>) -> Result<(), FleetError> {
        let Some(seen) = &facts.request else { return Err(FleetError::NotFound("a request".to_owned())) };
        if !seen.record.stop {
            return Err(FleetError::NotStopped(seen.record.version.clone()));
        }
        let same = Target { rollback: seen.record.rollback, ..target(&seen.record.version, asker, false) };
        let (current, history) = (self.tree.current(), self.tree.history(seen.record.generation));
        let note = ended(&seen.record, facts.history.as_deref());
        let mut txn = Txn::new().when(current.unchanged(seen));
        if !facts.unreadable.iter().any(|bad| bad.key == history.path()) {
            txn = txn.when(history.as_seen(facts.history.as_deref()));
        }
        for bad in facts.unreadable.iter().take(MAX_REPAIRS).filter(|bad| is_cleared(&bad.key)) {
            txn = txn.then(Delete::one(bad.key.clone()));
        }
        let txn = txn
            .then(current.delete())
            .then(self.tree.released().delete())
            .then(self.tree.host_statuses().delete_all())
            .then(self.tree.target().put(&named.unwrap_or(same)))
            .then(history.put(&note));
        match self.commit(txn).await? {
            true => Ok(()),
            false => Err(FleetError::contended("the request")),
        }
    }

    /// Changes the orders about the request that is there.
    async fn order(&self, change: impl Fn(&mut Orders)) -> Result<(), FleetError> {
        self.order_or(change, Unparsable::Refused).await
    }

    async fn order_or(&self, change: impl Fn(&mut Orders), unparsable: Unparsable) -> Result<(), FleetError> {
        let Some(request) = self.store.read(&self.tree.current()).await? else {
            return Err(FleetError::NothingUnderWay);
        };
        if request.record.stop {
            return Err(stopped(&request.record));
        }
        let generation = request.record.generation;
        let history = self.store.read(&self.tree.history(generation)).await?;
        // Hosts that were away when it ended are still caught up, and that can be held or stopped.
        if history.is_some_and(|seen| seen.record.outcome.is_some()) && is_over(&self.facts().await?) {
            return Err(FleetError::NothingUnderWay);
        }
        let key = self.tree.orders(generation);
        let read = || async { Ok(self.store.get(key.bytes()).await?) };
        settle(&self.store, "the orders", read, |raw: &Option<Arc<KeyValue>>, progress| {
            let seen = match raw.as_ref().map(|kv| Stored::<Orders>::decode::<OrdersKey>(kv)) {
                None => None,
                Some(Ok(seen)) => Some(seen.record),
                Some(Err(_)) if unparsable == Unparsable::Replaced => None,
                Some(Err(bad)) => return Err(bad.into()),
            };
            let mut next = seen.clone().unwrap_or_default();
            change(&mut next);
            if progress.committed > 0 || seen.as_ref() == Some(&next) {
                return Ok(Next::Done(()));
            }
            let at = raw.as_ref().map_or(Revision::ZERO, |kv| kv.mod_revision);
            let txn = Txn::new()
                .when(self.tree.current().same_life(&request))
                .when(Compare::mod_revision(key.bytes(), at))
                .then(key.put(&next));
            Ok(Next::Commit(txn))
        })
        .await
    }
}

/// What happens to orders that cannot be parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Unparsable {
    /// The call is refused, and says how they are repaired.
    Refused,
    /// New ones take their place.
    Replaced,
}

/// Keys that `recover` removes if they cannot be parsed: they belong to the request that it clears away.
fn is_cleared(path: &str) -> bool {
    use crate::keys::{DesiredKey, OrdersKey, PlanKey, SlotsKey};
    DesiredKey::parse(path).is_some()
        || OrdersKey::parse(path).is_some()
        || PlanKey::parse(path).is_some()
        || SlotsKey::parse(path).is_some()
}

fn stopped(request: &Request) -> FleetError {
    FleetError::Refused(format!(
        "the request for {} is stopped; `recover` clears it away first",
        request.version
    ))
}

fn refuse_stopped(facts: &Facts) -> Result<(), FleetError> {
    match facts.request.as_ref().filter(|seen| seen.record.stop) {
        Some(seen) => Err(stopped(&seen.record)),
        None => Ok(()),
    }
}

fn has_failed(facts: &Facts, lrn: Lrn) -> bool {
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else { return false };
    let desired = facts.desired.get(&lrn).map(|seen| &seen.record);
    let given_up =
        desired.is_some_and(|desired| desired.generation == request.generation && desired.failure.is_some());
    let status = facts.statuses.get(&lrn).map(|seen| &seen.record);
    given_up || status.is_some_and(|status| status.error && status.is_about(request))
}

/// The release that hosts keep for going back. Hosts that went back keep none.
fn release_before(facts: &Facts, request: &Request) -> Result<String, FleetError> {
    if request.rollback {
        let text = format!(
            "the fleet went back to {} already and keeps no older release; `apply` one",
            request.version
        );
        return Err(FleetError::Refused(text));
    }
    let kept = facts.history.as_ref().map(|seen| seen.record.from.clone()).unwrap_or_default();
    match kept.is_empty() {
        true => Err(FleetError::NotFound(format!("a release before {}", request.version))),
        false => Ok(kept),
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

fn known<'w>(facts: &'w Facts, version: &str) -> Result<&'w ReleaseRecord, FleetError> {
    parse(version)?;
    let found = facts.releases.get(version).map(|seen| &seen.record);
    found.ok_or_else(|| FleetError::NotFound(format!("release {version}")))
}

/// What the fleet has, or is on its way to.
fn present(facts: &Facts) -> Option<&String> {
    let request = facts.request.as_ref().map(|seen| &seen.record.version);
    request.or(facts.last_success.as_ref())
}

fn refuse_downgrade(facts: &Facts, version: &str) -> Result<(), FleetError> {
    let Some(present) = present(facts) else { return Ok(()) };
    let older =
        present.parse::<Version>().is_ok_and(|present| parse(version).is_ok_and(|wanted| wanted < present));
    match older {
        true => Err(FleetError::Refused(format!(
            "release {version} is older than {present}; `rollback` goes back on purpose"
        ))),
        false => Ok(()),
    }
}
