//! The decision and the agent's machine, as tables.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use capstan_control::Epoch;
use capstan_example::agent::{Agent, Effect, wanted};
use capstan_example::check::{DARK, THIN, UNREADABLE, findings};
use capstan_example::decide::{Change, place};
use capstan_example::facts::Facts;
use capstan_example::spec::Spec;
use capstan_example::status::Placement;
use capstan_meta::record::{BadValue, Listing, Stored};
use capstan_meta::{LeaseId, Revision};

/// A record as it is found in a store; the revisions do not matter here.
pub fn stored(record: Placement) -> Stored<Placement> {
    Stored { record, create_revision: Revision(1), mod_revision: Revision(1), lease: LeaseId(0) }
}

/// `up leaving placed lit`, each a word of host letters (`-` for none).
fn facts(copies: usize, text: &str) -> Facts {
    let words: Vec<BTreeSet<_>> = text
        .split(' ')
        .map(|word| word.chars().filter(|c| *c != '-').map(|c| c.to_string().parse().unwrap()).collect())
        .collect();
    let placement = Placement { epoch: Epoch(3), hosts: words[2].clone() };
    Facts {
        specs: BTreeMap::from([("a".parse().unwrap(), Spec { copies })]),
        placements: BTreeMap::from([("a".parse().unwrap(), Arc::new(stored(placement)))]),
        lit: words[3].iter().map(|host| ("a".parse().unwrap(), host.clone())).collect(),
        up: words[0].clone(),
        leaving: words[1].clone(),
        unreadable: Vec::new(),
    }
}

fn placed(changes: &[Change]) -> String {
    match changes {
        [] => "as it is".to_owned(),
        [change] => change.hosts.iter().flatten().map(ToString::to_string).collect(),
        more => panic!("{more:?}"),
    }
}

#[test]
fn a_beacon_is_added_before_it_is_removed() {
    for (copies, situation, expected) in [
        // up, leaving, placed, lit
        (2, "xyz - - -", "xy"),
        (2, "xyz - xy xy", "as it is"),
        (2, "xyz y xy xy", "xyz"),       // z is added, y keeps it for now
        (2, "xyz y xyz xy", "as it is"), // z is not lit yet
        (2, "xyz y xyz xyz", "xz"),      // now y may go
        (2, "xy y xy xy", "as it is"),   // there is no other host
        (2, "xz - xy x", "xz"),          // y is down, z takes its place
        (2, "x - xy x", "as it is"),     // y is down and there is no other: it keeps its place
        (1, "xyz - xyz xyz", "x"),
        (1, "xyz - xyz z", "z"),      // the lit one stays
        (2, "- - xy xy", "as it is"), // everything is down: nothing is forgotten
    ] {
        assert_eq!(placed(&place(&facts(copies, situation))), expected, "{copies} copies, {situation}");
    }
}

#[test]
fn a_key_that_cannot_be_parsed_stops_all_decisions() {
    let mut facts = facts(2, "xyz - xy xy");
    facts.specs.clear();
    assert_eq!(place(&facts).len(), 1, "a removed spec removes the placement");
    facts.unreadable.push("/example/spec/a".to_owned());
    assert_eq!(place(&facts), []);
    assert_eq!(findings(&facts)[0].code, UNREADABLE);
}

#[test]
fn findings_name_what_is_dark_and_what_is_thin() {
    let codes =
        |situation: &str| findings(&facts(2, situation)).into_iter().map(|f| f.code).collect::<Vec<_>>();
    assert_eq!(codes("xy - xy xy"), []);
    assert_eq!(codes("xy - xy x"), [THIN]);
    assert_eq!(codes("xy - xy -"), [DARK]);
    assert_eq!(codes("- - xy xy"), [DARK], "a report of a host that is down does not count");
}

#[test]
fn the_agent_obeys_newer_placements_only() {
    let name = || "a".parse().unwrap();
    let wanted = |epoch: u64| BTreeMap::from([(name(), Epoch(epoch))]);
    let mut agent = Agent::default();
    assert_eq!(agent.step(&wanted(3)), [Effect::Light(name(), Epoch(3))]);
    assert_eq!(agent.step(&wanted(3)), []);
    assert_eq!(agent.step(&wanted(2)), [], "from the past");
    assert_eq!(agent.step(&wanted(4)), [Effect::Light(name(), Epoch(4))]);
    assert_eq!(agent.step(&BTreeMap::new()), [Effect::Extinguish(name())]);
}

#[test]
fn an_agent_changes_nothing_while_a_placement_cannot_be_parsed() {
    let mut placements = Listing::at(Revision(1));
    let host = "x".parse().unwrap();
    assert_eq!(wanted(&host, &placements), Some(BTreeMap::new()));
    placements.bad.push(BadValue { key: "/example/placement/a".to_owned(), reason: "not JSON".to_owned() });
    assert_eq!(wanted(&host, &placements), None);
}
