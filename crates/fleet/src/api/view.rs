//! What is shown: hosts, the request and its waves, why a host waits, and what was before.

use std::collections::BTreeMap;

use capstan_control::keys::HostId;
use capstan_meta::record::{Key, Prefix};
use capstan_meta::{Detail, Range};
use serde::Serialize;

use super::Fleet;
use crate::decide::alarm::Alarm;
use crate::decide::why::{Why, stopped_text, why};
use crate::decide::{Rollout, Standing, decide, standings};
use crate::encoding::Moment;
use crate::error::FleetError;
use crate::facts::Facts;
use crate::history::HistoryRecord;
use crate::keys::{CurrentKey, GroupName};
use crate::lrn::Lrn;
use crate::plan::{SegmentKind, group_of};
use crate::status::{Condition, HostStatus, Phase, Request};

/// One host, as `hosts` and `status` show it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostLine {
    /// Its number.
    pub lrn: Lrn,
    /// Its name in the kernel.
    pub host: Option<HostId>,
    /// What its operator says about it.
    pub labels: BTreeMap<String, String>,
    /// Its group.
    pub group: GroupName,
    /// Whether its worker is up.
    pub up: bool,
    /// The release that it has, as far as it has said: in this request, else when its worker started.
    pub release: String,
    /// The version that it is being updated to.
    pub version: Option<String>,
    /// The step that it has announced.
    pub step: Option<u32>,
    /// How far it is with that version.
    pub condition: Option<Condition>,
    /// What went wrong.
    pub message: String,
    /// Where it stands, in a few words.
    pub state: String,
}

/// All hosts, and what could not be read.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HostList {
    /// Hosts in the order of their numbers.
    pub hosts: Vec<HostLine>,
    /// Keys and values that are not what they should be.
    pub problems: Vec<String>,
}

/// How far the fleet is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum FleetState {
    /// There is no request.
    Clear,
    /// A request is under way.
    Running,
    /// A request is under way, and an operator holds it.
    Paused,
    /// A key cannot be read: nothing begins until it is repaired.
    Held,
    /// A request was stopped, and waits for `recover`.
    Stopped,
    /// The request is complete.
    Completed,
}

/// One wave of one group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct WaveProgress {
    /// The group.
    pub group: GroupName,
    /// The wave, counted from one.
    pub wave: usize,
    /// How many hosts it has.
    pub hosts: usize,
    /// How many have the release.
    pub finished: usize,
    /// How many are in a slot, or past their first step where all go together.
    pub active: usize,
    /// How many failed.
    pub failed: usize,
    /// How many are gone or skipped.
    pub without: usize,
    /// How many steps its hosts have left, all together.
    pub steps_left: u64,
}

/// The whole fleet at a glance.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct FleetStatus {
    /// How far it is.
    pub state: FleetState,
    /// The request.
    pub request: Option<Request>,
    /// The release that it is to have.
    pub target: Option<String>,
    /// The leading updater.
    pub leader: Option<String>,
    /// What the updater does next or waits for.
    pub why: String,
    /// The waves.
    pub waves: Vec<WaveProgress>,
    /// Hosts of the request that do not have the release or are out of service, if it is over: failed, gone, skipped.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub without: Vec<Lrn>,
    /// The hosts.
    pub hosts: Vec<HostLine>,
    /// Keys and values that are not what they should be.
    pub problems: Vec<String>,
    /// When this was so.
    pub at: Moment,
}

/// One request that there was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct HistoryLine {
    /// Its number.
    pub generation: u64,
    /// What became of it.
    #[serde(flatten)]
    pub record: HistoryRecord,
}

impl Fleet {
    /// All hosts that have joined.
    pub async fn hosts(&self) -> Result<HostList, FleetError> {
        let facts = self.facts().await?;
        let mut problems = problems(&facts);
        problems.extend(self.strange_members().await?);
        Ok(HostList { hosts: facts.registry.iter().map(|lrn| line(&facts, *lrn)).collect(), problems })
    }

    /// The whole fleet at a glance.
    pub async fn status(&self) -> Result<FleetStatus, FleetError> {
        let facts = self.facts().await?;
        let leaders = self.store.list(&self.tree.candidates()).await?;
        let leader = leaders.iter().min_by_key(|(_, seen)| seen.create_revision);
        let mut shown = facts.registry.clone();
        shown.extend(facts.request.iter().flat_map(|seen| seen.record.members()));
        let mut problems = problems(&facts);
        problems.extend(self.strange_members().await?);
        Ok(FleetStatus {
            state: state(&facts),
            request: facts.request.as_ref().map(|seen| seen.record.clone()),
            target: facts.target.as_ref().map(|seen| seen.record.version.clone()),
            leader: leader.map(|(_, seen)| seen.record.clone()),
            why: decide(&facts).why,
            without: without(&facts),
            waves: waves(&facts),
            hosts: shown.iter().map(|lrn| line(&facts, *lrn)).collect(),
            problems,
            at: facts.now,
        })
    }

    /// Why a host is where it is.
    pub async fn why(&self, lrn: Lrn) -> Result<Why, FleetError> {
        let facts = self.facts().await?;
        let member = facts.request.as_ref().is_some_and(|seen| seen.record.members().contains(&lrn));
        match member || facts.registry.contains(&lrn) {
            true => Ok(why(&facts, lrn)),
            false => Err(FleetError::UnknownHost(lrn)),
        }
    }

    /// Every request that there was, the newest first.
    pub async fn history(&self) -> Result<Vec<HistoryLine>, FleetError> {
        let listing = self.store.list(&self.tree.histories()).await?;
        let mut lines: Vec<HistoryLine> = listing
            .entries
            .into_iter()
            .map(|(key, seen)| HistoryLine { generation: key.generation, record: seen.record.clone() })
            .collect();
        lines.sort_by_key(|line| std::cmp::Reverse(line.generation));
        Ok(lines)
    }

    /// Keys in the registry that name no host, written by hand.
    async fn strange_members(&self) -> Result<Vec<String>, FleetError> {
        let prefix = self.tree.boot_servers();
        let keys = self.store.range(Range::of(Prefix::range(&prefix)).detail(Detail::KeysOnly)).await?;
        let strange = keys.kvs.iter().filter(|kv| {
            let path = kv.key_text();
            <crate::keys::BootServerKey as capstan_meta::record::Key>::parse(&path).is_none()
        });
        Ok(strange.map(|kv| format!("bad key {}: not the number of a host", kv.key_text())).collect())
    }
}

fn problems(facts: &Facts) -> Vec<String> {
    facts.unreadable.iter().map(ToString::to_string).chain(facts.problems.iter().cloned()).collect()
}

/// Hosts that a request that is over went on without, or that are down.
fn without(facts: &Facts) -> Vec<Lrn> {
    let over = facts.has_ended() && facts.request.as_ref().is_some_and(|seen| !seen.record.stop);
    let standings = standings(facts).filter(|_| over).unwrap_or_default();
    let missing = standings.into_iter().filter(|(lrn, standing)| match standing {
        Standing::Skipped | Standing::Failed(_) | Standing::Absent | Standing::Gone => true,
        Standing::Left => false,
        Standing::Silent | Standing::At(_) => true,
        Standing::Finished => !facts.leases.contains_key(lrn),
    });
    missing.map(|(lrn, _)| lrn).collect()
}

fn state(facts: &Facts) -> FleetState {
    let held = facts.unreadable.iter().any(|bad| <CurrentKey as Key>::parse(&bad.key).is_some());
    let Some(request) = &facts.request else {
        return if held { FleetState::Held } else { FleetState::Clear };
    };
    let paused = facts.orders.as_ref().is_some_and(|seen| seen.record.paused.is_some());
    match (request.record.stop, facts.has_ended(), paused) {
        (true, _, _) => FleetState::Stopped,
        (false, true, _) => FleetState::Completed,
        (false, false, _) if !facts.unreadable.is_empty() => FleetState::Held,
        (false, false, true) => FleetState::Paused,
        (false, false, false) => FleetState::Running,
    }
}

fn line(facts: &Facts, lrn: Lrn) -> HostLine {
    let info = facts.infos.get(&lrn).map(|seen| seen.record.clone()).unwrap_or_default();
    let request = facts.request.as_ref().map(|seen| &seen.record);
    let status = facts.statuses.get(&lrn).map(|seen| &seen.record);
    let status = status.filter(|status| request.is_some_and(|request| status.is_about(request)));
    HostLine {
        lrn,
        host: info.host,
        group: group_of(&facts.policies, &info.labels),
        labels: info.labels,
        up: facts.leases.contains_key(&lrn),
        release: release_of(facts, lrn, status),
        version: status.map(|status| status.version.clone()),
        step: status.map(|status| status.step),
        condition: status.map(HostStatus::condition),
        message: status.map(|status| status.message.clone()).unwrap_or_default(),
        state: brief(facts, lrn),
    }
}

fn release_of(facts: &Facts, lrn: Lrn, status: Option<&HostStatus>) -> String {
    let said = status.and_then(|status| match status.condition() {
        Condition::Completed => Some(&status.version),
        Condition::Aborted => Some(&status.rolled_back_to).filter(|back| !back.is_empty()),
        Condition::Running => None,
    });
    let before = facts.leases.get(&lrn).map(|seen| &seen.record.release);
    said.or(before).cloned().unwrap_or_default()
}

/// A word for where a host stands, without working out the whole rollout for every line.
fn brief(facts: &Facts, lrn: Lrn) -> String {
    let Some(request) = facts.request.as_ref().map(|seen| &seen.record) else { return "idle".to_owned() };
    if !facts.registry.contains(&lrn) {
        return if facts.is_leaving(lrn) { "leaving" } else { "left" }.to_owned();
    }
    if request.stop && request.servers.contains(&lrn) {
        return stopped_text(facts, lrn);
    }
    let gone = if facts.leases.contains_key(&lrn) { "" } else { ", its worker is gone" };
    let desired = facts.desired.get(&lrn).filter(|seen| seen.record.generation == request.generation);
    let phase = desired.map(|seen| &seen.record.phase).filter(|phase| phase.is_active());
    let status = facts.statuses.get(&lrn).map(|seen| &seen.record).filter(|status| status.is_about(request));
    match (phase, status.map(|status| (status.condition(), status.step))) {
        (Some(Phase::Drain), _) => "draining".to_owned(),
        (Some(Phase::Rollback { .. }), _) => "going back".to_owned(),
        (Some(Phase::Return), _) => "returning".to_owned(),
        (Some(Phase::Settle), _) => "settling".to_owned(),
        (_, Some((Condition::Aborted, _))) => "failed".to_owned(),
        (_, Some((Condition::Completed, _))) => format!("finished{gone}"),
        (Some(_), Some((Condition::Running, step))) => format!("running step {step}{gone}"),
        (None, Some((Condition::Running, step))) => format!("at step {step}{gone}"),
        (_, None) if request.members().contains(&lrn) => "not joined yet".to_owned(),
        (_, None) => "in the next request".to_owned(),
    }
}

/// How many of the steps a host has left. One that is not waited for has none.
fn steps_left(standing: Option<&Standing>, steps: u32) -> u32 {
    match standing {
        Some(Standing::Silent) | None => steps,
        Some(Standing::At(step)) => (steps + 1).saturating_sub(*step),
        Some(
            Standing::Finished
            | Standing::Failed(_)
            | Standing::Left
            | Standing::Absent
            | Standing::Gone
            | Standing::Skipped,
        ) => 0,
    }
}

fn waves(facts: &Facts) -> Vec<WaveProgress> {
    let Some(request) = &facts.request else { return Vec::new() };
    let Ok(rollout) = Rollout::of(facts, &request.record, &Alarm::new(facts.now)) else { return Vec::new() };
    // In a rolling segment a host without a slot waits, whatever steps it has passed.
    let together = rollout.open_segment().is_none_or(|segment| match segment.kind {
        SegmentKind::Barrier | SegmentKind::Once => true,
        SegmentKind::Rolling { .. } => false,
    });
    let mut found = Vec::new();
    for group in &rollout.groups {
        for (wave, hosts) in group.waves.iter().enumerate() {
            let mut progress = WaveProgress {
                group: group.group.clone(),
                wave: wave + 1,
                hosts: hosts.len(),
                finished: 0,
                active: 0,
                failed: 0,
                without: 0,
                steps_left: 0,
            };
            for lrn in hosts {
                progress.steps_left += u64::from(steps_left(rollout.standings.get(lrn), rollout.steps));
                match rollout.standings.get(lrn) {
                    _ if rollout.is_in_slot(*lrn) => progress.active += 1,
                    Some(Standing::Finished) => progress.finished += 1,
                    Some(Standing::Failed(_)) => progress.failed += 1,
                    Some(Standing::Left | Standing::Absent | Standing::Gone | Standing::Skipped) => {
                        progress.without += 1;
                    }
                    Some(Standing::At(2..)) if together => progress.active += 1,
                    Some(Standing::At(_) | Standing::Silent) | None => {}
                }
            }
            found.push(progress);
        }
    }
    found
}
