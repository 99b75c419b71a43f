//! Messages as in the specification, invalid ones, and round trips of arbitrary ones.

use proptest::collection::vec;
use proptest::prelude::*;

use super::*;

fn parse(line: &str) -> Result<Message, WrongMessage> {
    Message::parse(line.split(' ').map(str::as_bytes))
}

fn wrong(line: &str) -> String {
    parse(line).unwrap_err().to_string()
}

fn range(first: u32, last: u32) -> SlotRange {
    SlotRange::new(first, last).unwrap()
}

#[test]
fn messages_are_as_in_the_documents() {
    let message =
        parse("setdb 3 NoFlag db 10.0.0.1:6001 0-1000 db 10.0.0.1:6002 MIGRATING 10.0.0.2:5299 1001-2000");
    let Ok(Message::SetDb(parsed)) = message else { panic!("{message:?}") };
    assert_eq!((parsed.epoch, parsed.flags), (Epoch(3), Flags::default()));
    assert_eq!(parsed.entries[0].claim, Claim::Stable(range(0, 1000)));
    let to = "10.0.0.2:5299".parse().unwrap();
    assert_eq!(parsed.entries[1].claim, Claim::Migrating { to, range: range(1001, 2000), pairing: None });
    let Ok(Message::SetPeer(parsed)) = parse("SETPEER 9 FORCE,LATER db h:1 7") else { panic!() };
    assert_eq!(parsed.flags, Flags { force: true, others: vec!["LATER".into()], ..Flags::default() });
    assert_eq!(parsed.entries[0].claim, Claim::Stable(range(7, 7)));
    assert_eq!(parse("ListDb"), Ok(Message::ListDb));
    assert_eq!(parse("cleardb"), Ok(Message::ClearDb));
    let Ok(Message::SetDb(parsed)) = parse("SETDB 1 NOFLAG") else { panic!() };
    assert!(parsed.entries.is_empty());
}

#[test]
fn a_move_may_say_since_when_its_ends_belong_together() {
    let line =
        "SETDB 3 NOFLAG db h:1 migrating h:2 0-5 Pairing=7 db h:1 importing h:3 9-9 pairing=8 db h:1 6-8";
    let Ok(Message::SetDb(parsed)) = parse(line) else { panic!() };
    let pairings: Vec<Option<Epoch>> = parsed.entries.iter().map(|entry| entry.claim.pairing()).collect();
    assert_eq!(pairings, [Some(Epoch(7)), Some(Epoch(8)), None]);
    let Ok(Message::Import(import)) = parse("IMPORT 3 db h:1 0-5 pairing=7 cafe") else { panic!() };
    assert_eq!((import.pairing, import.session.as_deref()), (Some(Epoch(7)), Some("cafe")));
}

#[test]
fn a_range_may_move_between_two_nodes_of_a_host() {
    assert!(parse("SETDB 1 NOFLAG db h:1 migrating h:9 0-5 db h:2 importing h:9 0-5").is_ok());
}

#[test]
fn wrong_grammar_is_explained() {
    for (line, text) in [
        ("FOO", "ERR unknown NMCTL subcommand 'FOO'."),
        ("SETDB", "ERR NMCTL SETDB: an epoch, at least 1 is missing"),
        ("SETDB 0 NOFLAG", "ERR NMCTL SETDB: '0' is not an epoch"),
        ("SETDB x NOFLAG", "ERR NMCTL SETDB: 'x' is not an epoch"),
        ("SETDB 1", "ERR NMCTL SETDB: flags is missing"),
        ("SETDB 1 NO FLAG", "ERR NMCTL SETDB: an address is missing"),
        ("SETDB 1 ,", "ERR NMCTL SETDB: ',' is not a list of flags"),
        ("SETDB 1 NOFLAG a/b h:1 0-1", "ERR NMCTL SETDB: 'a/b' is not the name of a database"),
        ("SETDB 1 NOFLAG db h 0-1", "ERR NMCTL SETDB: 'h' is not an address"),
        ("SETDB 1 NOFLAG db h:1", "ERR NMCTL SETDB: a range of slots is missing"),
        ("SETDB 1 NOFLAG db h:1 5-3", "ERR NMCTL SETDB: '5-3' is not a range of slots within 0-16383"),
        ("SETDB 1 NOFLAG db h:1 0-16384", "ERR NMCTL SETDB: '0-16384' is not a range"),
        ("SETDB 1 NOFLAG db h:1 -1", "ERR NMCTL SETDB: '-1' is not a range"),
        ("SETDB 1 NOFLAG db h:1 +1-2", "ERR NMCTL SETDB: '+1-2' is not a range"),
        ("SETDB 1 NOFLAG db h:1 0-99999999999999999999", "ERR NMCTL SETDB: '0-99999999999999999999' is not"),
        ("SETDB 1 NOFLAG db h:1 moving h:2 0-1", "ERR NMCTL SETDB: 'moving' is not a range of slots"),
        ("SETPEER 1 NOFLAG db h:1 migrating h:2 0-1", "ERR NMCTL SETPEER: 'migrating' is not a range"),
        ("SETREPL 1 NOFLAG db h:1 h:2 boss", "ERR NMCTL SETREPL: 'boss' is not primary or replica-of"),
        (
            "SETREPL 1 NOFLAG db h:1 h:2 primary db h:1 h:2 primary",
            "ERR NMCTL SETREPL: node h:1 is described",
        ),
        ("SETCONF 1 NOFLAG db {", "ERR NMCTL SETCONF: '{' is not the settings of a database as JSON"),
        ("SETCONF 1 NOFLAG db {} db {}", "ERR NMCTL SETCONF: database db is described twice"),
        ("LEASE c 0 1", "ERR NMCTL LEASE: '0' is not a number of coordinators"),
        ("LEASE c 1 99999999", "ERR NMCTL LEASE: '99999999' is not a time in milliseconds"),
        ("LEASE c 1 5 0 x", "ERR NMCTL LEASE: '0' is not an epoch, at least 1"),
        ("LEASE c 1 5 7", "ERR NMCTL LEASE: a reading of the proxy's clock is missing"),
        ("FENCE 0", "ERR NMCTL FENCE: '0' is not an epoch"),
        ("LEASE  1 5", "ERR NMCTL LEASE: '' is not the name of a coordinator"),
        (
            "SETDB 1 NOFLAG db h:1 migrating h:2 0-1 pairing=0",
            "ERR NMCTL SETDB: 'pairing=0' is not a pairing",
        ),
        ("SETDB 1 NOFLAG db h:1 0-1 pairing=3", "ERR NMCTL SETDB: an address is missing"),
        ("IMPORT 1 db h:1", "ERR NMCTL IMPORT: a range of slots is missing"),
        ("INFO all", "ERR NMCTL INFO takes no further arguments"),
    ] {
        assert!(wrong(line).starts_with(text), "{line}: {}", wrong(line));
    }
    assert!(Message::parse([]).is_err());
}

#[test]
fn two_claims_on_one_slot_are_refused() {
    assert_eq!(
        wrong("SETDB 1 NOFLAG db h:1 0-10 other h:2 5-6 db h:2 migrating p:1 10-20"),
        "ERR NMCTL SETDB: slot 10 of db is claimed by h:1 and by h:2"
    );
    assert!(wrong("SETPEER 1 NOFLAG db h:1 0-10 db h:1 10-20").contains("slot 10 of db"));
    assert!(wrong("SETDB 1 NOFLAG db h:1 importing p:1 0-1 db h:2 importing p:2 1-2").contains("slot 1"));
}

#[test]
fn an_endless_message_is_refused() {
    let many = (0..=MAX_ENTRIES).flat_map(|_| [&b"db"[..], b"h:1", b"1-1"]);
    let refused = Message::parse([&b"SETDB"[..], b"1", b"NOFLAG"].into_iter().chain(many));
    assert_eq!(refused, Err(WrongMessage::TooMany { message: "SETDB" }));
}

#[test]
fn settings_have_defaults_and_keep_what_they_do_not_know() {
    let Ok(Message::SetConf(parsed)) =
        parse(r#"SETCONF 1 NOFLAG a {} b {"mode":"single","split":true,"persistence":"aof"}"#)
    else {
        panic!()
    };
    assert_eq!(parsed.databases[0].1, Settings::default());
    assert_eq!((parsed.databases[1].1.mode, parsed.databases[1].1.split), (Mode::Single, true));
    assert_eq!(parsed.databases[1].1.others["persistence"], "aof");
    assert!(wrong(r#"SETCONF 1 NOFLAG a {"mode":"both"}"#).contains("is not the settings"));
}

#[test]
fn a_password_is_one_of_those_listed() {
    let mut user = User { name: "app".into(), password_sha256: Vec::new(), commands: Rights::All };
    assert!(user.accepts(b"anything"));
    user.password_sha256 = vec![PasswordHash::of(b"one"), PasswordHash::of(b"two")];
    assert!(user.accepts(b"one") && user.accepts(b"two") && !user.accepts(b"three") && !user.accepts(b""));
    let sha = "2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae";
    assert!(PasswordHash::of(b"foo").same_as(&sha.parse().unwrap()));
    assert_eq!(PasswordHash::of(b"foo").to_string(), sha);
    assert!("xyz".parse::<PasswordHash>().is_err());
    assert!(!format!("{user:?}").contains("7692"));
}

fn address() -> impl Strategy<Value = Address> {
    "(host-[a-z]{1,5}|10\\.0\\.0\\.[1-9]|\\[::1\\]):[1-9][0-9]{0,3}".prop_map(|text| text.parse().unwrap())
}

fn name() -> impl Strategy<Value = ClusterName> {
    "[a-z][a-z0-9-]{0,8}[a-z0-9]".prop_map(|text| ClusterName::new(text).unwrap())
}

fn flags() -> impl Strategy<Value = Flags> {
    (any::<bool>(), any::<bool>(), vec("[A-E][a-z]{1,4}", 0..3)).prop_map(|(force, handover, others)| Flags {
        force,
        handover,
        others,
    })
}

fn head() -> impl Strategy<Value = (Epoch, Flags)> {
    ((1..=u64::MAX).prop_map(Epoch), flags())
}

fn standing() -> impl Strategy<Value = Standing> {
    prop_oneof![
        Just(Standing::Unstated),
        Just(Standing::Detached),
        vec("[0-9a-f]{1,16}", 1..5).prop_map(Standing::Registered),
    ]
}

fn pairing() -> impl Strategy<Value = Option<Epoch>> {
    prop::option::of((1..=u64::MAX).prop_map(Epoch))
}

/// Ranges that do not overlap, given by their boundaries.
fn entries(tags: bool) -> impl Strategy<Value = Vec<Entry>> {
    let cuts = prop::collection::btree_set(0u32..16_384, 1..12);
    (cuts, vec((address(), address(), 0..if tags { 3 } else { 1 }), 12), name(), pairing()).prop_map(
        |(cuts, lines, db, pairing)| {
            let cuts: Vec<u32> = cuts.into_iter().collect();
            let lines = cuts.windows(2).zip(lines).map(|(cut, (address, other, tag))| {
                let range = range(cut[0], cut[1] - 1);
                let claim = match tag {
                    0 => Claim::Stable(range),
                    1 => Claim::Migrating { to: other, range, pairing },
                    _ => Claim::Importing { from: other, range, pairing },
                };
                Entry { db: db.clone(), address, claim }
            });
            lines.collect()
        },
    )
}

fn announcement(tags: bool) -> impl Strategy<Value = Announcement> {
    (head(), entries(tags)).prop_map(|((epoch, flags), entries)| Announcement { epoch, flags, entries })
}

fn settings() -> impl Strategy<Value = Settings> {
    let mode = prop_oneof![Just(Mode::Cluster), Just(Mode::Single)];
    let user = ("[a-z]{1,8}", vec(any::<[u8; 4]>(), 0..3)).prop_map(|(name, passwords)| User {
        name,
        password_sha256: passwords.iter().map(|password| PasswordHash::of(password)).collect(),
        commands: Rights::Read,
    });
    let acks = prop_oneof![Just(Acks::Primary), Just(Acks::Replica)];
    (mode, acks, any::<bool>(), any::<bool>(), vec(user, 0..3)).prop_map(
        |(mode, acks, split, default, users)| Settings {
            default,
            mode,
            acks,
            split,
            users,
            others: serde_json::Map::default(),
        },
    )
}

fn message() -> impl Strategy<Value = Message> {
    let roles =
        prop::collection::btree_map(address(), (name(), address(), prop::option::of(address())), 0..6);
    let databases = prop::collection::btree_map(name(), settings(), 0..4);
    prop_oneof![
        announcement(true).prop_map(Message::SetDb),
        announcement(false).prop_map(Message::SetPeer),
        announcement(true).prop_map(Message::Releasing),
        (head(), roles).prop_map(|((epoch, flags), roles)| {
            let role = |(node, (db, proxy, replica_of))| NodeRole { db, node, proxy, replica_of };
            Message::SetRepl(SetRepl { epoch, flags, nodes: roles.into_iter().map(role).collect() })
        }),
        (head(), databases).prop_map(|((epoch, flags), databases)| {
            Message::SetConf(SetConf { epoch, flags, databases: databases.into_iter().collect() })
        }),
        (head(), prop::collection::btree_map(address(), (name(), any::<u64>(), vec(address(), 0..4)), 0..4))
            .prop_map(|((epoch, flags), shards)| {
                let shard = |(node, (db, revision, members))| InSync { db, node, revision, members };
                Message::SetSync(SetSync { epoch, flags, shards: shards.into_iter().map(shard).collect() })
            }),
        (
            "[!-~]{1,20}",
            1..1000u32,
            1..3_600_000u64,
            proptest::option::of((1..u64::MAX, "[!-~]{1,20}", standing()))
        )
            .prop_map(|(coordinator, needed, ttl_ms, basis)| {
                let basis =
                    basis.map(|(epoch, clock, standing)| Basis { epoch: Epoch(epoch), clock, standing });
                Message::Lease(LeaseGrant { coordinator, needed, ttl_ms, basis })
            }),
        (1..u64::MAX).prop_map(|epoch| Message::Fence(Epoch(epoch))),
        (1..u64::MAX, name(), 0..16_384u32, pairing(), proptest::option::of("[a-z]{1,9}")).prop_map(
            |(epoch, db, slot, pairing, session)| {
                let from = "h:1".parse().unwrap();
                let range = range(slot, slot);
                Message::Import(Import { epoch: Epoch(epoch), db, from, range, pairing, session })
            }
        ),
        Just(Message::ListDb),
        Just(Message::ClearDb),
        Just(Message::Moves),
        Just(Message::Epoch),
        Just(Message::Info),
    ]
}

proptest! {
    #[test]
    fn what_is_written_is_read(message in message(), lower in any::<bool>()) {
        let mut words = message.words();
        if lower {
            words[..2].iter_mut().for_each(|word| *word = word.to_lowercase());
        }
        prop_assert_eq!(Message::parse(words[1..].iter().map(String::as_bytes)), Ok(message));
    }

    #[test]
    fn any_words_are_read_or_refused(
        words in vec(prop_oneof!["[ -~]{0,12}", "SETDB|SETPEER|SETREPL|SETCONF|SETSYNC|LEASE|FENCE|IMPORT", "[0-9]{1,6}(-[0-9]{1,6})?",
            "NOFLAG|FORCE|db|h:1|migrating|importing|pairing=[0-9]|primary|replica-of|\\{\\}"], 0..12),
    ) {
        if let Ok(message) = Message::parse(words.iter().map(String::as_bytes)) {
            let again = message.words();
            prop_assert_eq!(Message::parse(again[1..].iter().map(String::as_bytes)), Ok(message));
        }
    }
}
