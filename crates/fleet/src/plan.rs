//! Which host is updated when? Pure: from the registry, the labels, the policies and the release to waves of hosts.

pub mod estimate;
pub mod segment;

use std::collections::BTreeMap;

use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

use crate::keys::{GroupName, default_group};
use crate::lrn::{Lrn, Lrns};
use crate::spec::Policy;

pub use segment::{Segment, SegmentKind, segments, steps_text};

/// Hosts by group, and each group's rules.
pub type Policies = BTreeMap<GroupName, Policy>;

/// The labels of hosts.
pub type Labels = BTreeMap<Lrn, BTreeMap<String, String>>;

/// `plans/<GENERATION>`: the order in which hosts are updated. Made with the request and never changed: a host that joins
/// later is in the next one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct RolloutPlan {
    /// The request that it belongs to.
    pub generation: u64,
    /// The request before it.
    pub parent: u64,
    /// The release.
    pub version: String,
    /// The groups in the order in which they are updated.
    pub groups: Vec<GroupPlan>,
    /// Fields of other versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A group of hosts and its waves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct GroupPlan {
    /// Its name.
    pub group: GroupName,
    /// Groups of a lower number are through before it begins.
    pub order: u32,
    /// The hosts of each wave. No wave is empty.
    pub waves: Vec<Vec<Lrn>>,
}

json_records!(RolloutPlan);

impl GroupPlan {
    /// How many hosts it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.waves.iter().map(Vec::len).sum()
    }

    /// Whether it has none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.waves.is_empty()
    }

    /// Its hosts, wave by wave.
    pub fn hosts(&self) -> impl Iterator<Item = Lrn> + '_ {
        self.waves.iter().flatten().copied()
    }
}

impl RolloutPlan {
    /// Where a host stands: its group, and its wave counted from zero.
    #[must_use]
    pub fn place_of(&self, lrn: Lrn) -> Option<(&GroupPlan, usize)> {
        self.groups.iter().find_map(|group| {
            let wave = group.waves.iter().position(|wave| wave.contains(&lrn))?;
            Some((group, wave))
        })
    }
}

/// The group of a host: of those whose selector it fulfils the one with the lowest order, then the one that asks for
/// more labels, then the first by name.
#[must_use]
pub fn group_of(policies: &Policies, labels: &BTreeMap<String, String>) -> GroupName {
    let fitting = policies.iter().filter(|(name, policy)| {
        **name != default_group() && !policy.selector.is_empty() && policy.selects(labels)
    });
    let best = fitting
        .min_by_key(|(name, policy)| (policy.order, usize::MAX - policy.selector.len(), (*name).clone()));
    best.map_or_else(default_group, |(name, _)| name.clone())
}

/// Divides hosts into groups and waves. Every host is in exactly one wave of one group.
#[must_use]
pub fn plan_groups(members: &Lrns, labels: &Labels, policies: &Policies) -> Vec<GroupPlan> {
    let none = BTreeMap::new();
    let mut by_group: BTreeMap<GroupName, Vec<Lrn>> = BTreeMap::new();
    for lrn in members {
        let group = group_of(policies, labels.get(lrn).unwrap_or(&none));
        by_group.entry(group).or_default().push(*lrn);
    }
    let plain = Policy::default();
    let mut groups: Vec<GroupPlan> = by_group
        .into_iter()
        .map(|(group, hosts)| {
            let policy = policies.get(&group).unwrap_or(&plain);
            let spread = spread(hosts, labels, policy.failure_domain.as_deref());
            GroupPlan { group, order: policy.order, waves: waves(spread, policy) }
        })
        .collect();
    groups.sort_by(|a, b| (a.order, &a.group).cmp(&(b.order, &b.group)));
    groups
}

/// Hosts one failure domain after the other in turn, so that a wave touches as many domains as it can.
fn spread(hosts: Vec<Lrn>, labels: &Labels, domain: Option<&str>) -> Vec<Lrn> {
    let Some(domain) = domain else { return hosts };
    let mut by_domain: BTreeMap<&str, std::collections::VecDeque<Lrn>> = BTreeMap::new();
    let total = hosts.len();
    for lrn in hosts {
        let value = labels.get(&lrn).and_then(|labels| labels.get(domain)).map_or("", String::as_str);
        by_domain.entry(value).or_default().push_back(lrn);
    }
    let mut spread = Vec::with_capacity(total);
    while spread.len() < total {
        spread.extend(by_domain.values_mut().filter_map(std::collections::VecDeque::pop_front));
    }
    spread
}

fn waves(hosts: Vec<Lrn>, policy: &Policy) -> Vec<Vec<Lrn>> {
    let total = hosts.len();
    let mut rest = hosts;
    let mut waves = Vec::new();
    for wave in &policy.waves {
        if rest.is_empty() {
            break;
        }
        let behind = rest.split_off(wave.size_of(total).clamp(1, rest.len()));
        waves.push(std::mem::replace(&mut rest, behind));
    }
    if !rest.is_empty() {
        waves.push(rest);
    }
    waves
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::spec::Amount;

    fn fleet(hosts: u32) -> (Lrns, Labels) {
        let members: Lrns = (0..hosts).map(Lrn).collect();
        let labels = members.iter().map(|lrn| {
            let zone = ["a", "b", "c"][lrn.0 as usize % 3].to_owned();
            (*lrn, BTreeMap::from([("zone".to_owned(), zone)]))
        });
        let labels = labels.collect();
        (members, labels)
    }

    #[test]
    fn everyone_is_in_exactly_one_wave() {
        let (members, labels) = fleet(20);
        let policy = Policy {
            waves: vec![Amount::Count(1), Amount::Percent(20)],
            failure_domain: Some("zone".to_owned()),
            ..Policy::default()
        };
        let groups = plan_groups(&members, &labels, &Policies::from([(default_group(), policy)]));
        assert_eq!(groups.len(), 1);
        let sizes: Vec<usize> = groups[0].waves.iter().map(Vec::len).collect();
        assert_eq!(sizes, [1, 4, 15]);
        assert_eq!(groups[0].hosts().collect::<Lrns>(), members);
        assert_eq!(groups[0].waves[1], [Lrn(1), Lrn(2), Lrn(3), Lrn(4)], "one of each zone in turn");
    }

    #[test]
    fn groups_are_found_by_label_and_stand_in_their_order() {
        let (members, labels) = fleet(6);
        let zone = |value: &str, order| Policy {
            selector: BTreeMap::from([("zone".to_owned(), value.to_owned())]),
            order,
            ..Policy::default()
        };
        let policies = Policies::from([
            (GroupName::new("second").unwrap(), zone("a", 2)),
            (GroupName::new("first").unwrap(), zone("b", 1)),
        ]);
        let groups = plan_groups(&members, &labels, &policies);
        let names: Vec<(&str, usize)> =
            groups.iter().map(|group| (group.group.as_str(), group.len())).collect();
        assert_eq!(names, [("default", 2), ("first", 2), ("second", 2)]);
    }
}
