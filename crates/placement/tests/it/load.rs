//! Load moves when it is worthwhile, and stays otherwise.

use capstan_placement::load::{Carrier, LoadMove, LoadPolicy, Reason, Unit, balance_load};
use capstan_placement::{NodeName, NodeState, PlacementError};
use proptest::prelude::*;

use crate::support::name;

fn carrier(at: usize, capacity: u64) -> Carrier {
    Carrier { name: name(format!("b{at}")), capacity, state: NodeState::Serving }
}

fn unit(key: usize, load: u64, on: Option<usize>) -> Unit<String> {
    Unit { key: format!("t{key:02}"), load, on: on.map(|at| name(format!("b{at}"))) }
}

fn policy(threshold: u64) -> LoadPolicy {
    LoadPolicy::new(threshold, 1000).unwrap()
}

fn apply(units: &[Unit<String>], moves: &[LoadMove<String>]) -> Vec<Unit<String>> {
    let to = |unit: &Unit<String>| moves.iter().find(|m| m.key == unit.key).map(|m| m.to.clone());
    units.iter().map(|unit| Unit { on: to(unit).or(unit.on.clone()), ..unit.clone() }).collect()
}

fn busiest(carriers: &[Carrier], units: &[Unit<String>]) -> u64 {
    let load =
        |name: &NodeName| units.iter().filter(|u| u.on.as_ref() == Some(name)).map(|u| u.load).sum::<u64>();
    carriers.iter().map(|c| load(&c.name) * 1000 / c.capacity).max().unwrap()
}

#[test]
fn new_topics_go_where_there_is_room() {
    let carriers = [carrier(0, 100), carrier(1, 300)];
    let units: Vec<_> = (0..8).map(|key| unit(key, 10, None)).collect();
    let moves = balance_load(&carriers, &units, policy(10)).unwrap();
    let on_large = moves.iter().filter(|m| m.to == carriers[1].name).count();
    assert_eq!((moves.len(), on_large), (8, 6));
    assert!(moves.iter().all(|m| m.reason == Reason::Homeless && m.from.is_none()));
}

#[test]
fn a_hot_broker_gives_and_a_small_difference_does_not_move() {
    let carriers = [carrier(0, 100), carrier(1, 100)];
    let hot: Vec<_> = (0..4).map(|key| unit(key, 20, Some(0))).collect();
    let moves = balance_load(&carriers, &hot, policy(10)).unwrap();
    assert_eq!(moves.len(), 2);
    let even = [unit(0, 30, Some(0)), unit(1, 3, Some(0)), unit(2, 30, Some(1))];
    assert!(balance_load(&carriers, &even, policy(10)).unwrap().is_empty());
    let one_giant = [unit(0, 90, Some(0)), unit(1, 1, Some(1))];
    assert!(balance_load(&carriers, &one_giant, policy(10)).unwrap().is_empty(), "moving it helps nobody");
}

#[test]
fn a_retiring_broker_is_emptied_whatever_the_gain() {
    let mut carriers = vec![carrier(0, 100), carrier(1, 100), carrier(2, 100)];
    carriers[0].state = NodeState::Retiring;
    let units = [unit(0, 0, Some(0)), unit(1, 5, Some(0)), unit(2, 5, Some(1))];
    let moves = balance_load(&carriers, &units, policy(50)).unwrap();
    assert_eq!(moves.len(), 2);
    assert!(moves.iter().all(|m| m.from == Some(carriers[0].name.clone()) && m.to != carriers[0].name));
}

#[test]
fn bad_reports_are_refused() {
    let carriers = [carrier(0, 100)];
    let twice = [unit(0, 1, None), unit(0, 2, None)];
    assert!(
        balance_load(&carriers, &twice, policy(10))
            .unwrap_err()
            .to_string()
            .contains("t00 is reported twice")
    );
    assert!(
        balance_load(&carriers, &[unit(0, 1, Some(7))], policy(10)).unwrap_err().to_string().contains("b7")
    );
    assert!(
        balance_load(&[carrier(0, 0)], &twice[..1], policy(10)).unwrap_err().to_string().contains("capacity")
    );
    assert!(matches!(
        balance_load::<String>(&[], &[], policy(10)),
        Err(PlacementError::TooFewNodes { copies: 1, serving: 0 })
    ));
    assert!(
        LoadPolicy::new(0, 5).is_err() && LoadPolicy::new(101, 5).is_err() && LoadPolicy::new(5, 0).is_err()
    );
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, failure_persistence: None, ..ProptestConfig::default() })]

    /// A second plan for the same loads moves nothing; no plan makes the busiest broker busier.
    #[test]
    fn plans_settle(
        capacities in proptest::collection::vec(50..200u64, 1..6),
        loads in proptest::collection::vec((0..40u64, 0..6usize), 0..30),
        threshold in 1..=50u64,
    ) {
        let carriers: Vec<_> = capacities.iter().enumerate().map(|(at, &c)| carrier(at, c)).collect();
        let units: Vec<_> = loads.iter().enumerate()
            .map(|(key, &(load, on))| unit(key, load, Some(on % carriers.len()))).collect();
        let moves = balance_load(&carriers, &units, policy(threshold)).unwrap();
        let after = apply(&units, &moves);
        prop_assert!(busiest(&carriers, &after) <= busiest(&carriers, &units));
        prop_assert!(balance_load(&carriers, &after, policy(threshold)).unwrap().is_empty());
        let mut shuffled: Vec<_> = carriers.clone();
        shuffled.reverse();
        prop_assert_eq!(balance_load(&shuffled, &units, policy(threshold)).unwrap(), moves);
    }

    /// Noise below the threshold moves nothing back and forth.
    #[test]
    fn noise_does_not_flap(noise in proptest::collection::vec(0..=4u64, 24 * 6)) {
        let carriers: Vec<_> = (0..4).map(|at| carrier(at, 10_000)).collect();
        let mut units: Vec<_> = (0..24).map(|key| unit(key, 98, Some(key % 2))).collect();
        let mut moved = Vec::new();
        for round in noise.chunks(24) {
            for (unit, noise) in units.iter_mut().zip(round) {
                unit.load = 98 + noise;
            }
            let moves = balance_load(&carriers, &units, policy(20)).unwrap();
            units = apply(&units, &moves);
            moved.extend(moves.into_iter().map(|m| m.key));
        }
        let total = moved.len();
        moved.sort();
        moved.dedup();
        prop_assert_eq!(total, moved.len(), "nothing moved twice");
    }
}
