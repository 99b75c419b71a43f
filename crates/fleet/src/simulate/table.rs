//! What does a policy cost, and what does it save? Rollout time and blast radius against parallelism and canary size.

use serde::Serialize;

use super::{Faults, Sabotage, Scenario, simulate};
use crate::encoding::Span;
use crate::history::Outcome;
use crate::release::StepKind;
use crate::safety::Violation;
use crate::spec::{Amount, Policy};

/// What the table is made of.
#[derive(Clone, Debug)]
pub struct TableOptions {
    /// How many hosts.
    pub hosts: u32,
    /// Hosts of a thousand on which the bad release does not work.
    pub bad_permille: u32,
    /// Sizes of the first wave.
    pub canaries: Vec<u32>,
    /// Hosts at the same time, in percent.
    pub parallelism: Vec<u8>,
    /// How long a wave is watched.
    pub bake: Span,
    /// Where all chance comes from.
    pub seed: u64,
}

/// One line of the table.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Row {
    /// Size of the first wave.
    pub canary: u32,
    /// Hosts at the same time, in percent.
    pub parallelism: u8,
    /// How long a good release takes.
    pub good_took: Span,
    /// How the bad release ended.
    pub bad_outcome: Option<Outcome>,
    /// How long it took until the bad release was stopped.
    pub bad_took: Span,
    /// Hosts that the bad release broke.
    pub blast_radius: usize,
}

/// Simulates every pair of a canary size and a parallelism, once with a good release and once with a bad one.
pub fn table(options: &TableOptions) -> Result<Vec<Row>, Violation> {
    let mut rows = Vec::new();
    for canary in &options.canaries {
        for parallelism in &options.parallelism {
            let good = simulate(&scenario(options, *canary, *parallelism, 0))?;
            let bad = simulate(&scenario(options, *canary, *parallelism, options.bad_permille))?;
            rows.push(Row {
                canary: *canary,
                parallelism: *parallelism,
                good_took: whole_seconds(good.took),
                bad_outcome: bad.outcome,
                bad_took: whole_seconds(bad.took),
                blast_radius: bad.broken,
            });
        }
    }
    Ok(rows)
}

/// Milliseconds are noise in a rollout.
fn whole_seconds(span: Span) -> Span {
    Span::secs(span.0.as_secs())
}

fn scenario(options: &TableOptions, canary: u32, parallelism: u8, bad_permille: u32) -> Scenario {
    let policy = Policy {
        waves: vec![Amount::Count(canary)],
        parallelism: Amount::Percent(parallelism),
        failure_domain: Some("zone".to_owned()),
        max_unavailable: Amount::Percent(50),
        bake: options.bake,
        ..Policy::default()
    };
    Scenario {
        hosts: options.hosts,
        kinds: vec![StepKind::Rolling],
        policy,
        faults: Faults { bad_permille, ..Faults::NONE },
        services: false,
        seed: options.seed,
        sabotage: Sabotage::None,
        stop_at: None,
        quiet_after: Span::secs(900),
        give_up_after: Span::secs(7 * 86_400),
    }
}
