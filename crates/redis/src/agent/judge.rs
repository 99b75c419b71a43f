//! Whose data does a node hold, and is it all there? Decided from what is remembered and what is seen.

use super::probe::Seen;
use super::record::Record;
use super::wanted::{Kind, Persistence, Role, Wanted};

/// What a change of owner means for the data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Handover {
    /// It is the owner's.
    Keep,
    /// It was nobody's and nothing is there: only the name changes.
    Relabel,
    /// It is somebody else's: it goes before anything else happens.
    Wipe,
}

/// `keys` is what the running process holds; `None` if none runs.
pub(super) fn handover(record: &Record, wanted: &Wanted, keys: Option<u64>) -> Handover {
    if record.owner == wanted.owner {
        Handover::Keep
    } else if record.owner.is_none() && !record.had_keys && keys == Some(0) {
        Handover::Relabel
    } else {
        Handover::Wipe
    }
}

/// What is to be thought of a process that answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// It reads its data from disk.
    Loading,
    /// It may serve.
    Sound,
    /// It is a primary that had, or may have had, keys in its last life and has none in this one.
    Lost,
}

/// Only the first look at a life decides: keys that vanish later were deleted. A replica that comes back empty gets
/// everything from its primary. A loss that an operator or coordinator has accepted is none.
///
/// Between two looks a node may have got its first keys, and sent them to a replica. So one that keeps nothing on disk
/// counts as lost whenever it was ready before: an empty node too many is cheap, a replica that is wiped is not.
pub(super) fn verdict(record: &Record, wanted: &Wanted, seen: &Seen, role: &Role, accepted: bool) -> Verdict {
    let new_life = record.run_id != seen.run_id;
    let leads = *role == Role::Primary;
    let forgets = match (wanted.kind, wanted.persistence) {
        (Kind::Supervised, Persistence::None | Persistence::Rdb) => !record.saved,
        (Kind::Supervised, Persistence::Aof) | (Kind::External, _) => false,
    };
    let was_ready = record.owner.is_some() && !record.run_id.is_empty();
    let had_keys = record.had_keys || (forgets && was_ready);
    if seen.loading {
        Verdict::Loading
    } else if new_life && had_keys && seen.keys == 0 && leads && !accepted {
        Verdict::Lost
    } else {
        Verdict::Sound
    }
}

/// What to do so that a node has its role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RoleStep {
    /// Nothing.
    Done,
    /// `REPLICAOF NO ONE`.
    Promote,
    /// `REPLICAOF host port`, after a look at that primary.
    Follow,
}

pub(super) fn role_step(role: &Role, seen: &Seen) -> RoleStep {
    match (role, &seen.replica_of) {
        (Role::Primary, None) => RoleStep::Done,
        (Role::Primary, Some(_)) => RoleStep::Promote,
        (Role::ReplicaOf(primary), Some(followed)) if primary == followed => RoleStep::Done,
        (Role::ReplicaOf(_), _) => RoleStep::Follow,
    }
}

/// Whether a node may follow a primary: an empty one would wipe it.
pub(super) fn may_follow(own: &Seen, primary: &Seen) -> bool {
    !primary.loading && (primary.keys > 0 || own.keys == 0)
}

#[cfg(test)]
mod tests {
    use super::super::wanted::{Incarnation, Kind, Persistence};
    use super::*;

    fn owned_by(name: &str, incarnation: u64) -> Wanted {
        Wanted {
            node: "127.0.0.1:7001".parse().unwrap(),
            kind: Kind::Supervised,
            owner: Some((name.parse().unwrap(), Incarnation(incarnation))),
            max_memory: None,
            persistence: Persistence::None,
            password: None,
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

    #[test]
    fn an_emptied_primary_is_lost_once() {
        let record = Record { run_id: "old".to_owned(), had_keys: true, ..Record::default() };
        let seen = |run_id: &str, keys, loading| Seen {
            run_id: run_id.to_owned(),
            keys,
            loading,
            ..Seen::default()
        };
        let replica = Role::ReplicaOf("127.0.0.1:7002".parse().unwrap());
        let cases = [
            (seen("new", 0, false), Role::Primary, false, Verdict::Lost),
            (seen("new", 0, false), Role::Primary, true, Verdict::Sound),
            (seen("new", 0, true), Role::Primary, false, Verdict::Loading),
            (seen("new", 3, false), Role::Primary, false, Verdict::Sound),
            (seen("old", 0, false), Role::Primary, false, Verdict::Sound),
            (seen("new", 0, false), replica, false, Verdict::Sound),
        ];
        let wanted = owned_by("demo", 1);
        for (seen, role, accepted, expected) in cases {
            assert_eq!(verdict(&record, &wanted, &seen, &role, accepted), expected, "{seen:?} {role:?}");
        }
    }

    #[test]
    fn a_primary_that_keeps_nothing_is_lost_even_if_nobody_saw_its_keys() {
        let wanted = owned_by("demo", 1);
        let ready = Record { owner: wanted.owner.clone(), run_id: "old".to_owned(), ..Record::default() };
        let of = |record: &Record, wanted: &Wanted| {
            let seen = Seen { run_id: "new".to_owned(), ..Seen::default() };
            verdict(record, wanted, &seen, &Role::Primary, false)
        };
        assert_eq!(of(&ready, &wanted), Verdict::Lost);
        let with = |persistence| Wanted { persistence, ..wanted.clone() };
        assert_eq!(of(&ready, &with(Persistence::Rdb)), Verdict::Lost);
        assert_eq!(of(&ready, &with(Persistence::Aof)), Verdict::Sound, "what was answered is on disk");
        assert_eq!(of(&Record { saved: true, ..ready.clone() }, &wanted), Verdict::Sound, "an orderly stop");
        assert_eq!(
            of(&Record { run_id: String::new(), ..ready.clone() }, &wanted),
            Verdict::Sound,
            "its first life"
        );
        let free = Wanted { owner: None, ..wanted.clone() };
        assert_eq!(of(&Record { owner: None, ..ready }, &free), Verdict::Sound);
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
