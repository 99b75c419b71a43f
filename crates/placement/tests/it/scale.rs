//! The same rules at sizes beyond an exact solver: the proof of the bound needs no second solver.

use capstan_placement::{Cluster, NodeState, compare, plan};

use crate::support::{check_rules, copies, domain, empty, node, weighted};

#[test]
fn thousands_of_shards_in_racks_with_weights_meet_their_proved_bound() {
    let member = |at: usize| weighted(at, [1, 1, 2, 4][at % 4]).within(domain(at % 5));
    let here = Cluster::new(copies(3), (0..60).map(member)).unwrap();
    let dealt = plan(&here, &empty(2048)).unwrap();
    check_rules(&here, &empty(2048), &dealt);
    let larger = here.with(member(60)).unwrap();
    let join = plan(&larger, &dealt.assignment).unwrap();
    check_rules(&larger, &dealt.assignment, &join);
    assert_eq!(join.adds.len() as u64, join.bound.proved_adds);
    let smaller = larger.marking(&member(7).name, NodeState::Gone).unwrap();
    let leave = plan(&smaller, &join.assignment).unwrap();
    check_rules(&smaller, &join.assignment, &leave);
    assert_eq!(leave.adds.len() as u64, leave.bound.proved_adds);
}

#[test]
fn hash_methods_move_about_as_much_and_stay_uneven() {
    let names: Vec<_> = (0..32).map(|at| node(at).name).collect();
    let (old, count) = (&names[..31], capstan_placement::ShardCount::new(4096).unwrap());
    let before = compare::rendezvous(old, count, copies(3));
    let after = compare::rendezvous(&names, count, copies(3));
    let hashed = compare::movement(&before, &after, &names);
    assert_eq!(hashed.adds_on_old_nodes, 0);
    assert!(
        (300..500).contains(&hashed.adds) && hashed.most_copies > hashed.fewest_copies + 20,
        "{hashed:?}"
    );
    let ring = compare::movement(
        &compare::ring(old, 128, count, copies(3)),
        &compare::ring(&names, 128, count, copies(3)),
        &names,
    );
    assert!((250..600).contains(&ring.adds) && ring.most_copies > ring.fewest_copies + 20, "{ring:?}");
    let here = Cluster::new(copies(3), (0..31).map(node)).unwrap();
    let dealt = plan(&here, &empty(4096)).unwrap().assignment;
    let ours = plan(&here.with(node(31)).unwrap(), &dealt).unwrap();
    let ours = compare::movement(&dealt, &ours.assignment, &names);
    assert_eq!((ours.adds, ours.adds_on_old_nodes, ours.fewest_copies, ours.most_copies), (384, 0, 384, 384));
    assert_eq!(ours.most_primaries, 128);
}
