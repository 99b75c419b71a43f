//! Single decisions, and random sequences of faults.

use capstan_log::HolderId;
use capstan_steward::decide::{Action, Reason, decide};
use capstan_steward::{Policy, WantedLog};
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt;

use crate::cluster::{id, service};
use crate::world::World;

fn policy() -> Policy {
    Policy { repair_after: 30, ..Policy::default() }
}

fn world(holders: &[&str]) -> World {
    let mut world = World::new(policy());
    holders.iter().for_each(|holder| world.add_holder(holder, None));
    world
}

fn reasons(actions: &[Action]) -> Vec<Reason> {
    let reason = |action: &Action| match action {
        Action::Reconfigure { reason, .. } => Some(reason.clone()),
        Action::AskHandover { .. }
        | Action::ClearHandover { .. }
        | Action::MarkDown { .. }
        | Action::MarkUp { .. }
        | Action::Forget { .. } => None,
    };
    actions.iter().filter_map(reason).collect()
}

#[test]
fn a_dead_primary_is_replaced_and_leaves_the_set_in_one_change() {
    let mut world = world(&["a", "b", "c"]);
    world.add_log("orders", &["a", "b", "c"], WantedLog::new(service(), 3));
    world.kill(&id("a"));
    let decision = world.steward();
    assert_eq!(reasons(&decision.actions), [Reason::FailOver { from: id("a") }]);
    let config = world.config("orders");
    assert_eq!((config.epoch.0, &config.primary, config.in_sync.len()), (2, &id("b"), 2));
    assert!(!config.in_sync.contains(&id("a")) && config.holders.contains(&id("a")));
}

#[test]
fn a_log_without_a_complete_copy_that_is_up_waits() {
    let mut world = world(&["a", "b", "c"]);
    world.add_log("orders", &["a", "b", "c"], WantedLog::new(service(), 3).committed_on(1));
    let alone = world.config("orders").shrink(&[id("b"), id("c")]).unwrap();
    world.set(&"orders".parse().unwrap(), alone);
    world.kill(&id("a"));
    world.now += 10_000;
    world.steward();
    world.now += 10_000;
    let decision = world.steward();
    assert_eq!((reasons(&decision.actions), decision.leaderless), (Vec::new(), 1));
    let found = capstan_steward::check::findings(&world.facts(), &world.policy);
    let critical = found.iter().find(|finding| finding.code.as_str() == "log-without-primary").unwrap();
    assert!(critical.action.contains("start one of a;"), "{}", critical.action);
    world.start(&id("a"));
    world.settle();
    assert_eq!(world.config("orders").in_sync.len(), 3);
}

#[test]
fn a_copy_is_made_elsewhere_after_the_grace_time_only() {
    let mut world = world(&["a", "b", "c", "d"]);
    world.add_log("orders", &["a", "b", "c"], WantedLog::new(service(), 3));
    world.kill(&id("b"));
    let decision = world.steward();
    assert_eq!(decision.actions.len(), 1, "the holder is marked as down, nothing else");
    assert_eq!(world.steward().wake_at, Some(world.now + 30));
    world.now += 29;
    assert_eq!(reasons(&world.steward().actions), []);
    world.now += 1;
    assert_eq!(reasons(&world.steward().actions), [Reason::Repair]);
    assert_eq!(world.config("orders").learner, Some(id("d")));
    world.settle();
    assert_eq!((world.begun, world.removed), (1, 1));
    let mut holders = world.config("orders").holders.clone();
    holders.sort();
    assert_eq!(holders, [id("a"), id("c"), id("d")]);
}

#[test]
fn a_holder_without_copies_is_not_marked_as_down() {
    let mut world = world(&["a", "b"]);
    world.add_log("orders", &["a"], WantedLog::new(service(), 1));
    world.kill(&id("b"));
    assert!(world.steward().actions.is_empty(), "it may be joining, and nothing waits for it");
    world.retire(&id("b"));
    world.settle();
    assert!(!world.holders.contains_key(&id("b")), "a retired holder that is down is forgotten");
}

#[test]
fn a_drained_host_loses_its_leads_and_keeps_its_copies() {
    let mut world = world(&["a", "b", "c", "d"]);
    for log in 0..10 {
        world.add_log(&format!("log-{log}"), &["a", "b", "c"], WantedLog::new(service(), 3));
    }
    world.draining.insert("a".parse().unwrap());
    world.settle();
    world.kill(&id("a"));
    world.now += 100_000;
    world.settle();
    for log in 0..10 {
        let config = world.config(&format!("log-{log}"));
        assert_ne!(config.primary, id("a"));
        assert!(config.holders.contains(&id("a")) && config.learner.is_none());
    }
    assert_eq!(world.begun, 0);
}

#[test]
fn a_retired_holder_is_emptied_with_one_copy_for_each_of_its_logs() {
    let mut world = world(&["a", "b", "c", "d"]);
    for log in 0..8 {
        world.add_log(&format!("log-{log}"), &["a", "b", "c"], WantedLog::new(service(), 3));
    }
    world.policy.slack_percent = 1000;
    world.retire(&id("a"));
    world.settle();
    assert_eq!((world.begun, world.removed), (8, 8));
    assert!(world.logs.values().all(|seen| !seen.record.holders.contains(&id("a"))));
    world.kill(&id("a"));
    world.settle();
    assert!(!world.holders.contains_key(&id("a")), "a retired holder that is gone is forgotten");
}

#[test]
fn a_log_that_needs_all_its_copies_leaves_a_drained_host() {
    let mut world = world(&["a", "b"]);
    world.add_log("orders", &["a"], WantedLog::new(service(), 1));
    world.draining.insert("a".parse().unwrap());
    world.settle();
    let config = world.config("orders");
    assert_eq!((&config.primary, &config.holders[..]), (&id("b"), &[id("b")][..]));
}

#[test]
fn a_primary_that_reaches_too_few_holders_is_replaced() {
    let mut world = world(&["a", "b", "c"]);
    world.add_log("orders", &["a", "b", "c"], WantedLog::new(service(), 3));
    world.cut(&id("a"), &[id("b")]);
    assert_eq!(reasons(&world.steward().actions), [], "it still commits with c");
    world.cut(&id("a"), &[id("b"), id("c")]);
    world.cut(&id("b"), &[id("a")]);
    assert_eq!(reasons(&world.steward().actions), [Reason::CutOff { from: id("a") }]);
    // All holders are cut off from each other: another primary would not help.
    let mut world = self::world(&["a", "b", "c"]);
    world.add_log("orders", &["a", "b", "c"], WantedLog::new(service(), 3));
    for (one, others) in [("a", ["b", "c"]), ("b", ["a", "c"]), ("c", ["a", "b"])] {
        world.cut(&id(one), &others.map(id));
    }
    assert_eq!(reasons(&world.steward().actions), []);
}

#[test]
fn copies_are_spread_over_failure_domains() {
    let mut world = World::new(policy());
    for holder in 0..9 {
        world.add_holder(&format!("h{holder}"), Some(["x", "y", "z"][holder % 3]));
    }
    world.add_log("orders", &["h0"], WantedLog::new(service(), 3).committed_on(1));
    world.settle();
    let config = world.config("orders");
    let domains: std::collections::BTreeSet<&str> =
        config.holders.iter().map(|holder| world.holders[holder].record.domain()).collect();
    assert_eq!((config.holders.len(), domains.len()), (3, 3), "{config:?}");
}

#[test]
fn a_new_holder_gets_its_share_with_the_fewest_copies() {
    let mut world = world(&["a", "b", "c"]);
    world.policy.slack_percent = 0;
    for log in 0..40 {
        world.add_log(&format!("log-{log:02}"), &["a", "b", "c"], WantedLog::new(service(), 3));
    }
    world.add_holder("d", None);
    world.settle();
    // 120 copies on four holders are 30 for each.
    assert_eq!((world.begun, world.removed), (30, 30));
    let facts = world.facts();
    let loads: Vec<usize> = facts.holders.iter().map(|holder| holder.copies).collect();
    assert_eq!(loads, [30, 30, 30, 30]);
    let leads: Vec<usize> = facts.holders.iter().map(|holder| holder.leads).collect();
    assert!(leads.iter().all(|leads| *leads <= 11), "{leads:?}");
}

#[test]
fn preferred_holders_lead_and_a_new_number_of_copies_is_followed() {
    let mut world = world(&["a", "b", "c"]);
    world.add_log("orders", &["a"], WantedLog::new(service(), 1));
    let name = "orders".parse().unwrap();
    world.want(&name, WantedLog::new(service(), 3).led_by(id("c")));
    world.settle();
    let config = world.config("orders");
    assert_eq!((config.in_sync.len(), config.min_copies, &config.primary), (3, 2, &id("c")));
    world.want(&name, WantedLog::new(service(), 1));
    world.settle();
    let config = world.config("orders");
    assert_eq!((config.holders.len(), config.min_copies), (1, 1));
}

/// Random kills, starts, drains and retirements; afterwards every log has all its copies.
#[test]
fn every_log_returns_to_its_copies_and_nothing_acknowledged_is_lost() {
    seeds(soak(40, 4_000), |seed| {
        let mut dice = rng(seed);
        let hosts = dice.random_range(4..9);
        let mut world = World::new(policy());
        for host in 0..hosts {
            let domain = ["x", "y", "z"][host % 3];
            world.add_holder(&format!("h{host}"), (seed % 2 == 0).then_some(domain));
        }
        let names: Vec<HolderId> = world.holders.keys().cloned().collect();
        for log in 0..dice.random_range(1..30) {
            let copies = dice.random_range(1..4);
            let first = dice.random_range(0..hosts);
            let on: Vec<String> = (0..copies).map(|at| format!("h{}", (first + at) % hosts)).collect();
            let on: Vec<&str> = on.iter().map(String::as_str).collect();
            let wanted = WantedLog::new(service(), copies).committed_on(dice.random_range(1..=copies));
            world.add_log(&format!("log-{log:02}"), &on, wanted);
        }
        for _ in 0..200 {
            let holder = names[dice.random_range(0..names.len())].clone();
            let host = holder.as_str().parse().unwrap();
            match dice.random_range(0..10) {
                0 | 1 => world.kill(&holder),
                2..=4 if world.holders.contains_key(&holder) => world.start(&holder),
                5 => drop(world.draining.insert(host)),
                6 => drop(world.draining.remove(&host)),
                7 => world.now += dice.random_range(1..60),
                _ => {}
            }
            if dice.random_bool(0.7) {
                world.primaries();
            }
            if dice.random_bool(0.7) {
                world.steward();
            }
        }
        world.draining.clear();
        names.iter().for_each(|holder| world.start(holder));
        world.settle();
        for (name, seen) in &world.logs {
            let wanted = &world.wanted[name].record;
            let config = &seen.record;
            assert_eq!(config.in_sync.len(), wanted.copies, "{name}: {config:?}");
            assert_eq!((config.holders.len(), config.learner.clone()), (wanted.copies, None), "{name}");
            assert_eq!(config.leaving, None, "{name}");
        }
        assert!(decide(&world.facts(), &world.policy).actions.is_empty());
    });
}
