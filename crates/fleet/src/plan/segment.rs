//! Which steps go together? A release is a list of steps; hosts meet wherever the kind of step changes.

use serde::{Deserialize, Serialize};

use crate::release::StepKind;
use crate::spec::StepRecord;

/// How the hosts go through a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SegmentKind {
    /// Wave by wave, each host in a slot of its own; drained, if a step of the segment asks for it.
    Rolling {
        /// Whether hosts are drained: workers that only replace themselves need not be.
        drain: bool,
    },
    /// All at once, when all hosts are there.
    Barrier,
    /// One host for all, when all hosts are there.
    Once,
}

/// Steps that a host runs without meeting others in between.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Segment {
    /// How.
    pub kind: SegmentKind,
    /// Its first step, counted from one.
    pub first: u32,
    /// Its last step.
    pub last: u32,
}

/// Steps, in words: `step 2`, `steps 2 to 4`.
#[must_use]
pub fn steps_text(first: u32, last: u32) -> String {
    match first == last {
        true => format!("step {first}"),
        false => format!("steps {first} to {last}"),
    }
}

/// Divides the steps of a release: each barrier and each `once` stands alone, what lies between them belongs together.
#[must_use]
pub fn segments(steps: &[StepRecord]) -> Vec<Segment> {
    let mut found: Vec<Segment> = Vec::new();
    for (step, number) in steps.iter().zip(1..) {
        let kind = match step.kind {
            StepKind::Barrier => SegmentKind::Barrier,
            StepKind::Once => SegmentKind::Once,
            StepKind::Rolling => SegmentKind::Rolling { drain: true },
            StepKind::SelfUpdate => SegmentKind::Rolling { drain: false },
        };
        match (found.last_mut(), kind) {
            (
                Some(Segment { kind: SegmentKind::Rolling { drain }, last, .. }),
                SegmentKind::Rolling { drain: wanted },
            ) => {
                *drain |= wanted;
                *last = number;
            }
            _ => found.push(Segment { kind, first: number, last: number }),
        }
    }
    found
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// Steps of these kinds.
    pub(crate) fn steps(kinds: &[StepKind]) -> Vec<StepRecord> {
        let step = |kind: &StepKind| StepRecord {
            name: kind.to_string(),
            kind: *kind,
            timeout_seconds: 60,
            min_healthy_seconds: 0,
            services: false,
        };
        kinds.iter().map(step).collect()
    }

    #[test]
    fn hosts_meet_at_barriers_and_at_what_is_done_once() {
        use StepKind::*;
        let found = segments(&steps(&[SelfUpdate, Rolling, Rolling, Barrier, Barrier, Once, Rolling]));
        let expected = [
            (SegmentKind::Rolling { drain: true }, 1, 3),
            (SegmentKind::Barrier, 4, 4),
            (SegmentKind::Barrier, 5, 5),
            (SegmentKind::Once, 6, 6),
            (SegmentKind::Rolling { drain: true }, 7, 7),
        ];
        let found: Vec<_> = found.iter().map(|segment| (segment.kind, segment.first, segment.last)).collect();
        assert_eq!(found, expected);
        assert_eq!(segments(&steps(&[SelfUpdate]))[0].kind, SegmentKind::Rolling { drain: false });
    }
}
