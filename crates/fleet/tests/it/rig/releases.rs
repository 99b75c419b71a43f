//! Releases for tests.

use std::sync::Arc;

use capstan_fleet::release::{Manifest, Step, StepKind};

/// A release with steps of these kinds, which do nothing but take part.
pub(crate) fn manifest(version: &str, kinds: &[StepKind]) -> Arc<Manifest> {
    let step = |(at, kind): (usize, &StepKind)| Step {
        name: format!("step-{}", at + 1).parse().unwrap(),
        kind: *kind,
        actions: Vec::new(),
        timeout_seconds: 60,
        health: None,
    };
    Arc::new(Manifest {
        format: 1,
        version: version.parse().unwrap(),
        min_worker_version: "0".parse().unwrap(),
        allowed_from: Vec::new(),
        expires: "2999-01-01T00:00:00Z".parse().unwrap(),
        packages: Vec::new(),
        images: Vec::new(),
        steps: kinds.iter().enumerate().map(step).collect(),
    })
}
