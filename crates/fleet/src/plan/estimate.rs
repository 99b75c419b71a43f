//! What would a release do? The plan in words: segments, waves, hosts, an estimate of the time, and why.

use std::time::Duration;

use serde::Serialize;

use super::{GroupPlan, Labels, Policies, Segment, SegmentKind, plan_groups, segments, steps_text};
use crate::encoding::Span;
use crate::lrn::Lrns;
use crate::spec::{Policy, ReleaseRecord, StepRecord};

/// The assumed duration of a step that was never measured. A guess, and shown as one.
const GUESS_PER_STEP: Duration = Duration::from_secs(30);
/// What emptying a host and filling it again is taken to last.
const GUESS_PER_DRAIN: Duration = Duration::from_secs(60);

/// What a release would do to the fleet.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Preview {
    /// The release.
    pub version: String,
    /// How many hosts.
    pub hosts: usize,
    /// Its steps, in segments.
    pub segments: Vec<SegmentPreview>,
    /// The groups and their waves.
    pub groups: Vec<GroupPlan>,
    /// A guess at how long it takes if nothing fails.
    pub estimate: Span,
    /// What the order follows from, one line each.
    pub why: Vec<String>,
}

/// One segment.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct SegmentPreview {
    /// Which steps, and how hosts go through them.
    #[serde(flatten)]
    pub segment: Segment,
    /// The names of the steps.
    pub steps: Vec<String>,
    /// A guess at how long it takes.
    pub estimate: Span,
}

/// What a release would do to these hosts.
#[must_use]
pub fn preview(release: &ReleaseRecord, hosts: &Lrns, labels: &Labels, policies: &Policies) -> Preview {
    let groups = plan_groups(hosts, labels, policies);
    let segments: Vec<SegmentPreview> = segments(&release.steps)
        .into_iter()
        .map(|segment| {
            let steps = &release.steps[segment.first as usize - 1..segment.last as usize];
            SegmentPreview {
                segment,
                steps: steps.iter().map(|step| step.name.clone()).collect(),
                estimate: Span(segment_time(segment, steps, &groups, policies)),
            }
        })
        .collect();
    let estimate = Span(segments.iter().map(|segment| segment.estimate.0).sum());
    let why =
        groups.iter().map(|group| describe(group, policies)).chain(segments.iter().map(meeting)).collect();
    Preview { version: release.version.clone(), hosts: hosts.len(), segments, groups, estimate, why }
}

fn segment_time(
    segment: Segment,
    steps: &[StepRecord],
    groups: &[GroupPlan],
    policies: &Policies,
) -> Duration {
    let one_host: Duration =
        steps.iter().map(|step| GUESS_PER_STEP + Duration::from_secs(step.min_healthy_seconds.into())).sum();
    let drain = match segment.kind {
        SegmentKind::Barrier | SegmentKind::Once => return one_host,
        SegmentKind::Rolling { drain } => drain,
    };
    let plain = Policy::default();
    let mut orders: std::collections::BTreeMap<u32, Duration> = std::collections::BTreeMap::new();
    for group in groups {
        let policy = policies.get(&group.group).unwrap_or(&plain);
        let per_host = one_host + policy.min_healthy.0 + if drain { GUESS_PER_DRAIN } else { Duration::ZERO };
        let slots = policy.slots(group.len());
        let rounds: usize = group.waves.iter().map(|wave| wave.len().div_ceil(slots)).sum();
        let bakes = group.waves.len().saturating_sub(1);
        let whole = per_host * u32::try_from(rounds).unwrap_or(u32::MAX)
            + policy.bake.0 * u32::try_from(bakes).unwrap_or(u32::MAX);
        // Groups of one order go at the same time.
        let slowest = orders.entry(group.order).or_default();
        *slowest = whole.max(*slowest);
    }
    orders.values().sum()
}

fn describe(group: &GroupPlan, policies: &Policies) -> String {
    let (policy, source) = match policies.get(&group.group) {
        Some(policy) => (policy.clone(), "its policy"),
        None => (Policy::default(), "the default policy"),
    };
    let sizes: Vec<String> = group.waves.iter().map(|wave| wave.len().to_string()).collect();
    format!(
        "group {}: waves of {} hosts by {source}, {} at the same time, at most {} of a failure domain out of service",
        group.group,
        sizes.join(", "),
        policy.slots(group.len()),
        policy.max_unavailable,
    )
}

fn meeting(preview: &SegmentPreview) -> String {
    let Segment { first, last, kind } = preview.segment;
    let names = preview.steps.join(", ");
    match kind {
        SegmentKind::Barrier => format!("step {first} ({names}): all hosts at once, when all are there"),
        SegmentKind::Once => format!("step {first} ({names}): one host for all, when all are there"),
        SegmentKind::Rolling { drain: true } => {
            format!("{} ({names}): host by host, each drained and healthy again", steps_text(first, last))
        }
        SegmentKind::Rolling { drain: false } => {
            format!("{} ({names}): host by host", steps_text(first, last))
        }
    }
}
