//! Whose data does a node hold, and is it complete? Decided from the record and the observed state.

use capstan_redis_proxy::nodes::Data;

use super::probe::Seen;
use super::record::Record;
use super::wanted::{Kind, Order, Persistence, Role, Wanted};
use crate::shard::Succession;
use crate::spec::Acks;

/// What a change of owner means for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Handover {
    /// It belongs to the owner.
    Keep,
    /// It had no owner and is empty: only the label changes.
    Relabel,
    /// It belongs to another owner: it is removed before anything else happens.
    Wipe,
}

/// Decides what a change of owner means for the data. `keys` is the number of keys of the running process; `None` if
/// none runs.
#[must_use]
pub fn handover(record: &Record, wanted: &Wanted, keys: Option<u64>) -> Handover {
    if record.owner == wanted.owner {
        Handover::Keep
    } else if record.owner.is_none() && !record.had_keys && keys == Some(0) {
        Handover::Relabel
    } else {
        Handover::Wipe
    }
}

/// How much of its data a process holds that replies and is not loading. Only the first observation of a
/// process decides: keys that disappear later were deleted.
///
/// Between two observations a node may have received its first keys and replicated them. So a node without
/// persistence counts as empty whenever it was ready before: a false empty node is cheap, an erased replica
/// is not.
#[must_use]
pub fn data(record: &Record, wanted: &Wanted, seen: &Seen) -> Data {
    if record.run_id == seen.run_id {
        return record.data;
    }
    let forgets = match (wanted.kind, wanted.persistence) {
        (Kind::Supervised, Persistence::None | Persistence::Rdb) => !record.saved,
        (Kind::Supervised, Persistence::Aof) | (Kind::External, _) => false,
    };
    let was_ready = record.owner.is_some() && !record.run_id.is_empty();
    let had_keys = record.had_keys || (forgets && was_ready);
    match (had_keys, seen.keys) {
        (true, 0) => Data::Gone,
        (true, _) if forgets => Data::Older,
        (true, _) => Data::Whole.min(record.data),
        // It never had any data that it could lack.
        (false, _) => record.data,
    }
}

/// The judgment of a process that replies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// It is loading its data from disk.
    Loading,
    /// It may serve.
    Sound,
    /// A primary that restarted with less than it had, while another node may have everything.
    Older,
    /// A primary that had, or may have had, keys in its last process and has none now.
    Lost,
}

/// Judges a process that replies. A replica that restarts with less gets everything from its primary. A loss accepted by
/// an operator is not a loss. An older snapshot is what the cluster's persistence promises, if no other node has more.
/// The successor in a planned handover that restarted has no link to the previous primary, which may have written since.
/// A server writes to its append-only file before it replies, except while an earlier sync takes long: one that was killed
/// may lack its last writes. With `acks: replica` every other member has what was acknowledged of them.
/// A directory without any data is what a new shard begins with; where a primary has served before, it is a lost disk.
#[must_use]
pub fn verdict(record: &Record, seen: &Seen, order: &Order, accepted: bool) -> Verdict {
    let leads = order.role == Role::Primary && !accepted;
    let successor = record.followed && order.succession == Succession::Agreed;
    // After a regular stop nothing is missing.
    let outdated = successor || (order.acks == Acks::Replica && !record.saved);
    match record.data {
        _ if seen.loading => Verdict::Loading,
        Data::Gone if leads && record.fresh && !order.established => Verdict::Sound,
        Data::Gone if leads => Verdict::Lost,
        Data::Older if leads && !order.alone => Verdict::Older,
        Data::Whole if leads && !order.alone && outdated => Verdict::Older,
        Data::Current | Data::Whole | Data::Older | Data::Gone => Verdict::Sound,
    }
}

/// The next step to a node's role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RoleStep {
    /// Nothing.
    Done,
    /// `REPLICAOF NO ONE`.
    Promote,
    /// `REPLICAOF host port`, after a check of that primary.
    Follow,
}

/// The next step from the observed role to the wanted one.
#[must_use]
pub fn role_step(role: &Role, seen: &Seen) -> RoleStep {
    match (role, &seen.replica_of) {
        (Role::Primary, None) => RoleStep::Done,
        (Role::Primary, Some(_)) => RoleStep::Promote,
        (Role::ReplicaOf(primary), Some(followed)) if primary == followed => RoleStep::Done,
        (Role::ReplicaOf(_), _) => RoleStep::Follow,
    }
}

/// Whether a node may replicate from a primary: an empty one would erase it.
#[must_use]
pub fn may_follow(own: &Seen, primary: &Seen) -> bool {
    !primary.loading && (primary.keys > 0 || own.keys == 0)
}

#[cfg(test)]
mod tests {
    use super::super::Incarnation;
    use super::super::wanted::{Former, Kind, Persistence};
    use super::*;

    fn owned_by(name: &str, incarnation: u64) -> Wanted {
        Wanted {
            node: "127.0.0.1:7001".parse().unwrap(),
            kind: Kind::Supervised,
            owner: Some((name.parse().unwrap(), Incarnation(incarnation))),
            max_memory: None,
            eviction: false,
            persistence: Persistence::None,
            password: None,
            former: Former::Erased,
            peers: Vec::new(),
        }
    }

    #[test]
    fn data_of_somebody_else_goes() {
        let wanted = owned_by("demo", 2);
        let free = Wanted { owner: None, ..wanted.clone() };
        let of =
            |wanted: &Wanted, had_keys| Record { owner: wanted.owner.clone(), had_keys, ..Record::default() };
        let cases = [
            (of(&wanted, true), Some(5), Handover::Keep),
            (of(&free, false), Some(0), Handover::Relabel),
            (of(&free, false), None, Handover::Wipe),
            (of(&free, false), Some(1), Handover::Wipe),
            (of(&free, true), Some(0), Handover::Wipe),
            (of(&owned_by("demo", 1), true), Some(5), Handover::Wipe),
            (of(&owned_by("other", 2), false), Some(0), Handover::Wipe),
        ];
        for (record, keys, expected) in cases {
            assert_eq!(handover(&record, &wanted, keys), expected, "{record:?} {keys:?}");
        }
    }

    fn seen(run_id: &str, keys: u64) -> Seen {
        Seen { run_id: run_id.to_owned(), keys, ..Seen::default() }
    }

    #[test]
    fn a_new_life_is_judged_by_what_survives() {
        let wanted = owned_by("demo", 1);
        let with = |persistence| Wanted { persistence, ..wanted.clone() };
        let ready = Record { owner: wanted.owner.clone(), run_id: "old".to_owned(), ..Record::default() };
        let full = Record { had_keys: true, ..ready.clone() };
        let (none, aof, rdb) = (wanted.clone(), with(Persistence::Aof), with(Persistence::Rdb));
        let cases = [
            (&full, &none, seen("old", 0), Data::Current, "keys that vanish later were deleted"),
            (&full, &none, seen("new", 0), Data::Gone, "no persistence"),
            (&ready, &none, seen("new", 0), Data::Gone, "its first keys may not have been observed"),
            (&full, &rdb, seen("new", 3), Data::Older, "the last snapshot"),
            (&full, &rdb, seen("new", 0), Data::Gone, "no snapshot"),
            (&full, &aof, seen("new", 3), Data::Whole, "its file has all but the last second"),
            (&full, &aof, seen("new", 0), Data::Gone, "its file is gone"),
            (&ready, &aof, seen("new", 0), Data::Current, "it never had keys"),
        ];
        for (record, wanted, seen, expected, why) in cases {
            assert_eq!(data(record, wanted, &seen), expected, "{why}");
        }
        let stopped = Record { saved: true, ..full.clone() };
        assert_eq!(data(&stopped, &none, &seen("new", 3)), Data::Whole, "an orderly stop");
        let first = Record { run_id: String::new(), ..ready };
        assert_eq!(data(&first, &none, &seen("new", 0)), Data::Current, "its first life");
        let doubted = Record { data: Data::Gone, ..full };
        assert_eq!(
            data(&doubted, &aof, &seen("new", 3)),
            Data::Gone,
            "what was lost stays lost over a restart"
        );
    }

    #[test]
    fn a_primary_that_lacks_data_does_not_serve_and_a_replica_is_filled_again() {
        let leads = |alone| Order { alone, ..Order::from(Role::Primary) };
        let follows = Order::from(Role::ReplicaOf("127.0.0.1:7002".parse().unwrap()));
        let loading = Seen { loading: true, ..Seen::default() };
        let here = Seen::default();
        let cases = [
            (Data::Gone, &here, leads(true), false, Verdict::Lost),
            (Data::Gone, &here, leads(true), true, Verdict::Sound),
            (Data::Gone, &loading, leads(true), false, Verdict::Loading),
            (Data::Gone, &here, follows, false, Verdict::Sound),
            (Data::Older, &here, leads(false), false, Verdict::Older),
            (Data::Older, &here, leads(true), false, Verdict::Sound),
            (Data::Whole, &here, leads(false), false, Verdict::Sound),
            (Data::Current, &here, leads(false), false, Verdict::Sound),
        ];
        for (data, seen, order, accepted, expected) in cases {
            let record = Record { data, ..Record::default() };
            assert_eq!(verdict(&record, seen, &order, accepted), expected, "{data:?} {order:?} {accepted}");
        }
    }

    #[test]
    fn a_new_directory_is_a_beginning_or_a_lost_disk() {
        let new = Order::from(Role::Primary);
        let served = Order { established: true, ..new.clone() };
        let follows = Order { established: true, ..Order::from(Role::ReplicaOf("h:1".parse().unwrap())) };
        let fresh = Record { data: Data::Gone, fresh: true, ..Record::default() };
        let restarted = Record { fresh: false, ..fresh.clone() };
        let here = Seen::default();
        assert_eq!(verdict(&fresh, &here, &new, false), Verdict::Sound, "a new shard");
        assert_eq!(verdict(&fresh, &here, &served, false), Verdict::Lost);
        assert_eq!(verdict(&fresh, &here, &served, true), Verdict::Sound, "accepted");
        assert_eq!(verdict(&fresh, &here, &follows, false), Verdict::Sound, "its primary has the data");
        assert_eq!(verdict(&restarted, &here, &new, false), Verdict::Lost);
        let wanted = owned_by("demo", 1);
        let first = Record { owner: wanted.owner.clone(), ..fresh };
        assert_eq!(data(&first, &wanted, &seen("new", 0)), Data::Gone, "not promoted before it was linked");
    }

    #[test]
    fn a_successor_that_restarted_does_not_serve_what_it_had() {
        let forced = Order { succession: Succession::Forced, alone: false, ..Order::from(Role::Primary) };
        let agreed = Order { succession: Succession::Agreed, ..forced.clone() };
        let alone = Order { alone: true, ..agreed.clone() };
        let followed = |data| Record { data, followed: true, ..Record::default() };
        let here = Seen::default();
        for (data, order, expected, why) in [
            (Data::Whole, &agreed, Verdict::Older, "the previous primary may have more"),
            (Data::Current, &agreed, Verdict::Sound, "it is still linked, and takes over"),
            (Data::Whole, &forced, Verdict::Sound, "the coordinators found that nothing more can return"),
            (Data::Whole, &alone, Verdict::Sound, "no other node has more"),
        ] {
            assert_eq!(verdict(&followed(data), &here, order, false), expected, "{why}");
        }
    }

    #[test]
    fn a_killed_primary_does_not_overrule_members_that_acknowledged() {
        let member = Order { acks: Acks::Replica, alone: false, ..Order::from(Role::Primary) };
        let alone = Order { alone: true, ..member.clone() };
        let asynchronous = Order { acks: Acks::Primary, ..member.clone() };
        let killed = Record { data: Data::Whole, ..Record::default() };
        let stopped = Record { saved: true, ..killed.clone() };
        let here = Seen::default();
        assert_eq!(verdict(&killed, &here, &member, false), Verdict::Older);
        assert_eq!(verdict(&stopped, &here, &member, false), Verdict::Sound, "an orderly stop");
        assert_eq!(verdict(&killed, &here, &alone, false), Verdict::Sound, "no other node has more");
        assert_eq!(verdict(&killed, &here, &asynchronous, false), Verdict::Sound, "within the stated window");
    }

    #[test]
    fn roles_are_reached_and_an_empty_primary_is_not_followed() {
        let primary: crate::Address = "127.0.0.1:7002".parse().unwrap();
        let leads = Seen::default();
        let follows = Seen { replica_of: Some(primary.clone()), ..Seen::default() };
        let replica = Role::ReplicaOf(primary);
        assert_eq!(role_step(&Role::Primary, &leads), RoleStep::Done);
        assert_eq!(role_step(&Role::Primary, &follows), RoleStep::Promote);
        assert_eq!(role_step(&replica, &follows), RoleStep::Done);
        assert_eq!(role_step(&replica, &leads), RoleStep::Follow);
        let (full, empty) = (Seen { keys: 1, ..Seen::default() }, Seen::default());
        assert!(may_follow(&full, &full) && may_follow(&empty, &empty) && may_follow(&empty, &full));
        assert!(!may_follow(&full, &empty));
        assert!(!may_follow(&empty, &Seen { loading: true, ..Seen::default() }));
    }
}
