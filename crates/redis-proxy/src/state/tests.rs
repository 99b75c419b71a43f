//! Every kind of message at every epoch; the table derived from accepted messages; the file that persists
//! them.

use std::sync::Arc;

use super::*;
use crate::gate::Gate;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::nmctl::Message;
use capstan_redis_protocol::slots::Slot;

fn message(line: &str) -> Message {
    Message::parse(line.split(' ').map(str::as_bytes)).unwrap()
}

fn address(text: &str) -> Address {
    text.parse().unwrap()
}

fn state_after(lines: &[&str]) -> ProxyState {
    lines.iter().fold(ProxyState::default(), |state, line| match state.accept(&message(line)).unwrap() {
        Verdict::Accept(next) => *next,
        Verdict::Unchanged => state,
    })
}

fn routing(lines: &[&str]) -> Routing {
    let gate = |of: &Move| Some(Gate::new(of.range, of.to.clone(), 1));
    Routing::of(&state_after(lines), &address("me:1"), gate)
}

fn database(routing: &Routing) -> &Arc<Database> {
    routing.database(&ClusterName::new("db").unwrap()).unwrap()
}

/// The outcome of a message to a proxy that has one at epoch 5.
#[derive(Debug, PartialEq, Eq)]
enum Fate {
    Obeyed,
    Known,
    Old,
    Contradiction,
}

fn fate(state: &ProxyState, line: &str) -> Fate {
    match state.accept(&message(line)) {
        Ok(Verdict::Accept(next)) => {
            assert_ne!(*next, ProxyState::default());
            Fate::Obeyed
        }
        Ok(Verdict::Unchanged) => Fate::Known,
        Err(Refusal::OldEpoch { .. }) => Fate::Old,
        Err(Refusal::Contradiction { .. }) => Fate::Contradiction,
        Err(other) => panic!("{other}"),
    }
}

#[test]
fn every_message_is_obeyed_by_its_epoch() {
    let kinds = [
        ("SETDB", "db h:1 0-5 db h:2 6-7", "db h:2 6-7 db h:1 0-5", "db h:1 0-4"),
        ("SETPEER", "db p:1 0-5 db p:2 6-7", "db p:2 6-7 db p:1 0-5", "db p:1 0-4"),
        (
            "SETREPL",
            "db h:1 me:1 primary db h:2 p:2 replica-of h:1",
            "db h:2 p:2 replica-of h:1 db h:1 me:1 primary",
            "db h:1 me:1 primary",
        ),
        ("SETCONF", "a {} b {}", "b {} a {}", "a {\"split\":true}"),
    ];
    for (kind, content, reordered, other) in kinds {
        let fresh = ProxyState::default();
        assert_eq!(fate(&fresh, &format!("{kind} 1 NOFLAG {content}")), Fate::Obeyed, "{kind}");
        let state = state_after(&[&format!("{kind} 5 NOFLAG {content}")]);
        for (epoch, flags, content, expected) in [
            (4, "NOFLAG", content, Fate::Old),
            (5, "NOFLAG", content, Fate::Known),
            (5, "NOFLAG", reordered, Fate::Known),
            (5, "NOFLAG", other, Fate::Contradiction),
            (6, "NOFLAG", content, Fate::Obeyed),
            (6, "NOFLAG", other, Fate::Obeyed),
            (4, "FORCE", other, Fate::Obeyed),
            (5, "FORCE", other, Fate::Obeyed),
            (6, "FORCE", other, Fate::Obeyed),
        ] {
            let line = format!("{kind} {epoch} {flags} {content}");
            assert_eq!(fate(&state, &line), expected, "{line}");
        }
        // Each kind has an epoch of its own.
        for (another, content, ..) in kinds.iter().filter(|(another, ..)| *another != kind) {
            assert_eq!(fate(&state, &format!("{another} 1 NOFLAG {content}")), Fate::Obeyed);
        }
    }
}

#[test]
fn forced_back_is_back() {
    let state = state_after(&["SETDB 5 NOFLAG db h:1 0-5", "SETDB 3 FORCE db h:1 0-4"]);
    assert_eq!(fate(&state, "SETDB 4 NOFLAG db h:1 0-3"), Fate::Obeyed);
    assert_eq!(state.own().epoch.0, 3);
}

#[test]
fn questions_change_nothing_and_clearing_changes_all() {
    let state = state_after(&["SETDB 5 NOFLAG db h:1 0-5"]).under_lease();
    for line in
        ["LISTDB", "MOVES", "EPOCH", "INFO", "LEASE c 1 5", "IMPORT 5 db p:1 1-2", "RELEASING 5 NOFLAG"]
    {
        assert_eq!(state.accept(&message(line)), Ok(Verdict::Unchanged), "{line}");
    }
    let cleared = state.accept(&message("CLEARDB")).unwrap();
    assert_eq!(cleared, Verdict::Accept(Box::new(ProxyState::default().under_lease())));
}

#[test]
fn refusals_are_lines_that_coordinators_read() {
    let state = state_after(&["SETDB 5 NOFLAG db h:1 migrating p:1 0-5 db h:2 importing p:2 6-9"]);
    let old = state.accept(&message("SETDB 4 NOFLAG")).unwrap_err();
    assert_eq!(old.to_string(), "OLD_EPOCH known 5");
    let Message::Releasing(later) = message("RELEASING 6 NOFLAG db h:1 0-5") else { panic!() };
    let not_yet = state.releasing(&later).unwrap_err().to_string();
    assert_eq!(not_yet, "TRYAGAIN SETDB of epoch 6 has not arrived; known 5");
    let Message::Import(import) = message("IMPORT 5 db p:2 6-10") else { panic!() };
    let not_here = state.importing(&import).unwrap_err().to_string();
    assert_eq!(not_here, "ERR slots 6-10 of db are not importing here");
}

#[test]
fn only_a_move_that_is_under_way_can_be_released() {
    let state = state_after(&[
        "SETDB 5 NOFLAG db h:1 migrating p:1 0-5 db h:1 6-9 db h:1 migrating p:1 10-19 pairing=4",
    ]);
    for (line, found) in [
        ("RELEASING 5 NOFLAG db h:1 0-5", 1),
        ("RELEASING 5 NOFLAG db h:1 migrating p:1 0-5", 1),
        ("RELEASING 5 NOFLAG db h:1 migrating p:1 10-19 pairing=4", 1),
        ("RELEASING 5 NOFLAG db h:1 10-19", 1),
        ("RELEASING 5 NOFLAG", 0),
    ] {
        let Message::Releasing(asked) = message(line) else { panic!() };
        assert_eq!(state.releasing(&asked).unwrap().len(), found, "{line}");
    }
    for line in [
        "RELEASING 5 NOFLAG db h:1 6-9",
        "RELEASING 5 NOFLAG db h:1 migrating p:2 0-5",
        "RELEASING 5 NOFLAG db h:1 migrating p:1 0-5 pairing=4",
        "RELEASING 5 NOFLAG db h:1 migrating p:1 10-19 pairing=3",
        "RELEASING 5 NOFLAG db h:2 0-5",
        "RELEASING 4 NOFLAG db h:1 0-5",
    ] {
        let Message::Releasing(asked) = message(line) else { panic!() };
        assert!(state.releasing(&asked).is_err(), "{line}");
    }
}

#[test]
fn a_release_outlives_newer_epochs_but_not_its_move() {
    let state = state_after(&["SETDB 5 NOFLAG db h:1 migrating p:1 0-5 pairing=3"]);
    let state = state.with_released(state.moves().collect::<Vec<_>>());
    assert_eq!(state.released().count(), 1);
    let after = |line: &str| match state.accept(&message(line)).unwrap() {
        Verdict::Accept(next) => next.released().count(),
        Verdict::Unchanged => panic!("known"),
    };
    assert_eq!(after("SETDB 6 NOFLAG db h:1 migrating p:1 0-5 pairing=3 db h:1 7-8"), 1);
    assert_eq!(after("SETDB 6 NOFLAG db h:1 migrating p:2 0-5 pairing=3"), 0);
    // Cancelled and recorded again since, without a push to this proxy.
    assert_eq!(after("SETDB 8 NOFLAG db h:1 migrating p:1 0-5 pairing=5"), 0);
    assert_eq!(after("SETDB 6 NOFLAG db h:1 0-5"), 0);
    assert_eq!(after("SETDB 6 NOFLAG"), 0);
}

#[test]
fn an_import_is_current_while_it_is_announced() {
    let Message::Import(import) = message("IMPORT 3 db p:2 6-9") else { panic!() };
    let now = state_after(&["SETDB 5 NOFLAG db h:2 importing p:2 6-9"]);
    assert_eq!(now.importing(&import), Ok(address("h:2")));
    let again = state_after(&["SETDB 7 NOFLAG db h:2 importing p:2 6-9 pairing=6"]);
    assert!(matches!(again.importing(&import), Err(Refusal::NotImporting { .. })), "of another move");
    let elsewhere = state_after(&["SETDB 6 NOFLAG db h:2 importing p:3 6-9"]);
    assert!(matches!(elsewhere.importing(&import), Err(Refusal::NotImporting { .. })));
    let owner = state_after(&["SETDB 5 NOFLAG db h:2 0-100"]);
    assert!(matches!(owner.importing(&import), Err(Refusal::NotImporting { .. })));
}

/// The owner of a slot as text.
fn at(routing: &Routing, slot: u16) -> String {
    match database(routing).place(Slot::new(slot).unwrap()) {
        Place::Unowned => "unowned".to_owned(),
        Place::Own { node, gate: None, .. } => format!("own {node}"),
        Place::Own { node, gate: Some(gate), .. } => format!("own {node} gate to {}", gate.target()),
        Place::Peer { proxy, replica: None } => format!("peer {proxy}"),
        Place::Peer { proxy, replica: Some(replica) } => format!("peer {proxy} replica {replica}"),
    }
}

#[test]
fn the_newer_claim_on_a_slot_wins_and_own_wins_a_tie() {
    for (own, peers, expected) in
        [(5, 5, "own h:1"), (6, 5, "own h:1"), (5, 6, "peer p:1"), (5, 0, "own h:1"), (0, 5, "peer p:1")]
    {
        let mut lines = Vec::new();
        if own > 0 {
            lines.push(format!("SETDB {own} NOFLAG db h:1 0-10"));
        }
        if peers > 0 {
            lines.push(format!("SETPEER {peers} NOFLAG db p:1 5-20"));
        }
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        assert_eq!(at(&routing(&lines), 7), expected, "{own} {peers}");
    }
    let gap = routing(&["SETDB 5 NOFLAG db h:1 0-10", "SETPEER 6 NOFLAG db p:1 20-30"]);
    assert_eq!([at(&gap, 10), at(&gap, 11), at(&gap, 20)], ["own h:1", "unowned", "peer p:1"]);
}

#[test]
fn a_moving_slot_has_a_gate_at_its_source_and_stays_there_for_its_target() {
    let source = routing(&["SETDB 5 NOFLAG db h:1 0-9 db h:1 migrating p:2 10-19"]);
    assert_eq!([at(&source, 9), at(&source, 10)], ["own h:1", "own h:1 gate to p:2"]);
    let target = routing(&["SETDB 5 NOFLAG db h:1 importing p:2 10-19", "SETPEER 5 NOFLAG db p:2 0-19"]);
    assert_eq!(at(&target, 10), "peer p:2");
    let lonely = routing(&["SETDB 5 NOFLAG db h:1 importing p:2 10-19"]);
    assert_eq!(at(&lonely, 10), "peer p:2");
    let within = routing(&["SETDB 5 NOFLAG db h:1 migrating me:1 0-9 db h:2 importing me:1 0-9"]);
    assert_eq!(at(&within, 3), "own h:1 gate to me:1");
    assert_eq!(database(&within).primaries(), [address("h:1"), address("h:2")]);
}

#[test]
fn replicas_of_this_host_serve_readers_where_it_is_sure_what_they_hold() {
    let peers = "SETPEER 5 NOFLAG db p:1 0-100 db p:2 101-200";
    let one = "SETREPL 5 NOFLAG db n:1 p:1 primary db r:1 me:1 replica-of n:1 db n:2 p:2 primary db n:3 p:2 primary \
               db r:2 me:1 replica-of n:2";
    let routing = routing(&[peers, one]);
    assert_eq!([at(&routing, 1), at(&routing, 150)], ["peer p:1 replica r:1", "peer p:2"]);
    assert_eq!(database(&routing).replicas().len(), 2);
}

#[test]
fn clients_see_proxies_with_merged_ranges_and_replicas_without_slots() {
    let routing = routing(&[
        "SETDB 7 NOFLAG db h:1 0-9 db h:2 10-19 db h:1 30-39",
        "SETPEER 5 NOFLAG db p:1 20-29 db p:1 40-16383",
        "SETREPL 5 NOFLAG db h:1 me:1 primary db h:2 me:1 primary db n:1 p:1 primary db r:1 p:3 replica-of n:1 \
         db r:2 me:1 replica-of n:1 db r:3 p:1 replica-of h:1 db new:1 p:4 primary",
    ]);
    let topology = database(&routing).topology();
    let shown: Vec<String> = topology
        .shards
        .iter()
        .map(|shard| {
            let ranges: Vec<String> = shard.ranges.iter().map(ToString::to_string).collect();
            let replicas: Vec<&str> = shard.replicas.iter().map(Address::as_str).collect();
            format!("{} {} [{}]", shard.proxy, ranges.join(","), replicas.join(","))
        })
        .collect();
    assert_eq!(shown, ["me:1 0-19,30-39 []", "p:1 20-29,40-16383 [p:3]"]);
    assert_eq!(topology.idle, [address("p:4")]);
    assert_eq!((topology.assigned(), topology.known_nodes(), topology.epoch.0), (16_384, 4, 7));
    assert_eq!(topology.ranges().len(), 4);
}

#[test]
fn ids_are_made_of_database_and_proxy() {
    let (one, other) = (ClusterName::new("one").unwrap(), ClusterName::new("other").unwrap());
    let id = node_id(&one, &address("p:1"));
    assert!(id.len() == 40 && id.chars().all(|c| c.is_ascii_hexdigit()));
    assert_eq!(id, node_id(&one, &address("p:1")));
    assert_ne!(id, node_id(&other, &address("p:1")));
    assert_ne!(id, node_id(&one, &address("p:2")));
    assert_ne!(id, shard_id(&one, &address("p:1")));
}

fn conf(users: &str) -> Routing {
    routing(&[&format!("SETCONF 1 NOFLAG {users}")])
}

fn who(routing: &Routing, user: Option<&str>, password: &str) -> String {
    match routing.log_in(user.map(str::as_bytes), password.as_bytes()) {
        Ok(login) => format!("{} {}", login.database, login.user),
        Err(LoginRefused::WrongPassword) => "wrong".to_owned(),
        Err(LoginRefused::NoPasswordNeeded) => "not needed".to_owned(),
    }
}

#[test]
fn one_open_database_needs_no_word() {
    let open = conf("db {}");
    assert!(matches!(open.entrance(), Entrance::Open(login) if login.database.as_str() == "db"));
    assert_eq!(who(&open, None, "x"), "not needed");
    assert_eq!(who(&open, Some("default"), "x"), "db default");
    assert_eq!(who(&open, Some("db"), ""), "db default");
    assert_eq!(who(&open, Some("nobody"), ""), "wrong");
    assert_eq!(ProxyState::default().databases().len(), 0);
    assert_eq!(routing(&[]).entrance(), Entrance::Nothing);
}

#[test]
fn users_have_passwords_and_belong_to_databases() {
    let hash = capstan_redis_protocol::nmctl::PasswordHash::of(b"secret");
    let users = format!(
        r#"{{"users":[{{"name":"default","password_sha256":["{hash}"]}},{{"name":"app","password_sha256":["{hash}"],"commands":"read"}}]}}"#
    );
    let one = conf(&format!("db {users}"));
    assert_eq!(one.entrance(), Entrance::Authenticate);
    assert_eq!(who(&one, None, "secret"), "db default");
    assert_eq!(who(&one, None, "wrong"), "wrong");
    assert_eq!(who(&one, Some("app"), "secret"), "db app");
    assert_eq!(who(&one, Some("app"), ""), "wrong");
    assert_eq!(who(&one, Some("db/app"), "secret"), "db app");
    assert_eq!(who(&one, Some("db"), "secret"), "db default");
    let several = conf(&format!("a {users} b {{}} c {users}"));
    assert_eq!(several.entrance(), Entrance::NameDatabase);
    assert_eq!(who(&several, Some("b"), ""), "b default");
    assert_eq!(who(&several, Some("a/app"), "secret"), "a app");
    assert_eq!(who(&several, Some("app"), "secret"), "wrong", "two databases have that user");
    assert_eq!(who(&several, Some("x/app"), "secret"), "wrong");
}

#[test]
fn who_names_no_database_uses_the_default_one() {
    let several = conf(r#"a {} b {"default":true} c {}"#);
    assert!(matches!(several.entrance(), Entrance::Open(login) if login.database.as_str() == "b"));
    assert_eq!(who(&several, Some("a"), ""), "a default");
    let two = conf(r#"a {"default":true} b {"default":true}"#);
    assert_eq!(two.entrance(), Entrance::NameDatabase, "ambiguous");
    let hash = capstan_redis_protocol::nmctl::PasswordHash::of(b"secret");
    let user = format!(r#""users":[{{"name":"default","password_sha256":["{hash}"]}}]"#);
    let locked = conf(&format!(r#"a {{{user}}} b {{"default":true,{user}}}"#));
    assert_eq!(locked.entrance(), Entrance::Authenticate);
    assert_eq!(who(&locked, None, "secret"), "b default");
    assert_eq!(who(&locked, None, "wrong"), "wrong");
}

fn full() -> ProxyState {
    let state = state_after(&[
        "SETDB 5 NOFLAG db h:1 migrating p:1 0-5 pairing=3 db h:1 6-9 other h:2 importing p:2 1-1",
        "SETPEER 6 NOFLAG db p:1 10-16383",
        "SETREPL 7 NOFLAG db h:1 me:1 primary db r:1 p:1 replica-of h:1",
        r#"SETCONF 8 NOFLAG db {"mode":"single","users":[{"name":"app"}],"later":[1,2]}"#,
    ]);
    state.with_released(state.moves().collect::<Vec<_>>()).under_lease()
}

#[test]
fn a_state_is_found_again_whole() {
    let dir = capstan_testkit::TempDir::new("proxy-state").unwrap();
    let file = StateFile::at(dir.join("state"));
    assert_eq!(file.load().unwrap(), ProxyState::default());
    for state in [ProxyState::default(), state_after(&["SETPEER 1 NOFLAG"]), full()] {
        file.save(&state).unwrap();
        assert_eq!(file.load().unwrap(), state);
    }
    assert_eq!(full().released().count(), 1);
}

#[test]
fn a_damaged_file_is_never_half_believed() {
    let dir = capstan_testkit::TempDir::new("proxy-state").unwrap();
    let file = StateFile::at(dir.join("state"));
    file.save(&full()).unwrap();
    let bytes = std::fs::read(file.path()).unwrap();
    for at in (0..bytes.len()).step_by(5) {
        let mut damaged = bytes.clone();
        damaged[at] ^= 1;
        std::fs::write(file.path(), &damaged).unwrap();
        assert!(file.load().is_err(), "bit flipped at {at}");
        std::fs::write(file.path(), &bytes[..at]).unwrap();
        assert!(file.load().is_err(), "cut at {at}");
    }
    let text = file.load().unwrap_err().to_string();
    assert!(text.contains("Move the file away"), "{text}");
}

#[test]
fn the_replicas_to_wait_for_are_ordered_by_epoch_and_revision_and_survive_a_restart() {
    let first = "SETSYNC 5 NOFLAG db h:1 7 r:1,r:2 db h:2 9 none";
    let state = state_after(&[first]);
    let members = |state: &ProxyState| -> Vec<String> {
        let routing = Routing::of(state, &address("me:1"), |_| None);
        routing.members(&address("h:1")).iter().map(ToString::to_string).collect()
    };
    assert_eq!(members(&state), ["r:1", "r:2"]);
    let after = |line: &str| match state.accept(&message(line)) {
        Ok(Verdict::Accept(next)) => *next,
        Ok(Verdict::Unchanged) | Err(_) => state.clone(),
    };
    let cases = [
        (first, Fate::Known, 2),
        ("SETSYNC 5 NOFLAG db h:1 6 r:3", Fate::Known, 2),
        ("SETSYNC 5 NOFLAG db h:1 8 r:3", Fate::Obeyed, 1),
        ("SETSYNC 6 NOFLAG db h:1 1 none", Fate::Obeyed, 0),
        ("SETSYNC 5 FORCE db h:1 1 r:4", Fate::Obeyed, 1),
        ("SETSYNC 5 NOFLAG db h:3 1 r:4", Fate::Obeyed, 2),
        ("SETSYNC 4 NOFLAG db h:1 8 none", Fate::Old, 2),
    ];
    for (line, expected, count) in cases {
        assert_eq!(fate(&state, line), expected, "{line}");
        assert_eq!(members(&after(line)).len(), count, "{line}");
    }
    let dir = capstan_testkit::TempDir::new("proxy-state").unwrap();
    let file = StateFile::at(dir.join("state"));
    file.save_in_sync(&state).unwrap();
    file.save(&state).unwrap();
    assert_eq!(file.load().unwrap(), state);
}

#[test]
fn a_node_hands_over_only_by_the_message_that_takes_its_slots() {
    let own = "SETDB 1 NOFLAG db h:1 0-9 db h:2 10-19";
    let handed = |lines: &[&str]| -> Vec<String> {
        let state = state_after(lines);
        state.handed_over().iter().map(ToString::to_string).collect()
    };
    let none: [&str; 0] = [];
    assert_eq!(handed(&[own, "SETDB 2 HANDOVER db h:2 10-19"]), ["h:1"]);
    assert_eq!(handed(&[own, "SETDB 2 NOFLAG db h:2 10-19"]), none);
    assert_eq!(handed(&[own, "SETDB 2 NOFLAG db h:2 10-19", "SETDB 3 HANDOVER"]), ["h:2"]);
    assert_eq!(handed(&[own, "SETDB 2 HANDOVER db h:2 10-19", "SETDB 3 HANDOVER db h:2 10-19"]), none);
}
