//! Long random runs of joins and leaves.

use capstan_placement::{NodeState, plan};

use crate::support::{check_rules, cluster, empty, node, serving};

/// A deterministic generator for this test.
pub(crate) struct Dice(pub(crate) u64);

impl Dice {
    pub(crate) fn roll(&mut self, sides: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % sides
    }
}

#[test]
fn churn_of_400_steps_stays_within_one_copy_of_the_counted_bound_in_all() {
    // `cargo test --release -p capstan-placement --test it churn -- --nocapture` runs 200 of them.
    let lives = if cfg!(debug_assertions) { 8 } else { 200 };
    let mut above = 0;
    for seed in 1..=lives {
        let (adds, bound, exact) = live(seed, 16, 400);
        println!("seed {seed}: adds {adds}, counted bound {bound}, proved bound {exact}");
        assert_eq!(adds, exact, "seed {seed}");
        assert!(adds <= bound + 1, "seed {seed}: {adds} adds where counting allows {bound}");
        above += adds - bound;
    }
    println!("{lives} lives, {above} copies above the counted bound in all");
}

fn live(seed: u64, shards: u64, steps: usize) -> (u64, u64, u64) {
    let mut dice = Dice(seed);
    let mut here = cluster((0..3).map(node));
    let mut layout = plan(&here, &empty(shards)).unwrap().assignment;
    let mut next = 3;
    let (mut adds, mut counted, mut proved) = (0, 0, 0);
    for _ in 0..steps {
        for _ in 0..=u64::from(dice.roll(10) == 0) {
            let up = serving(&here);
            if (dice.roll(10) < 6 && up.len() < 100) || up.len() <= 4 {
                here = here.with(node(next)).unwrap();
                next += 1;
            } else {
                let leaver = &up[dice.roll(up.len() as u64) as usize];
                here = here.marking(leaver, NodeState::Gone).unwrap();
            }
        }
        let plan = plan(&here, &layout).unwrap();
        check_rules(&here, &layout, &plan);
        assert_eq!(plan.bound.proved_adds, plan.adds.len() as u64, "seed {seed}");
        adds += plan.adds.len() as u64;
        counted += plan.bound.counted_adds;
        proved += plan.bound.proved_adds;
        layout = plan.assignment;
        let gone: Vec<_> = here.nodes().iter().filter(|n| n.state == NodeState::Gone).cloned().collect();
        for node in gone {
            here = here.without(&node.name).unwrap();
        }
    }
    (adds, counted, proved)
}
