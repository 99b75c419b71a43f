//! May this user do that? Computed from the record once a change; pure.

use std::collections::HashMap;

use super::range::Ranges;
use super::record::{Allowed, Permission, ROOT, Record, Refusal};
use crate::kv::KeyRange;

/// The record, ready for decisions.
#[derive(Debug, Default)]
pub(super) struct Rules {
    pub(super) record: Record,
    grants: HashMap<String, Grants>,
}

/// What all roles of a user give it together.
#[derive(Debug, Default)]
struct Grants {
    root: bool,
    read: Ranges,
    write: Ranges,
}

/// What a call does with keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::wire) enum Access {
    Read,
    Write,
}

impl Rules {
    pub(super) fn new(record: Record) -> Rules {
        let grants = record.users.iter().map(|(name, user)| {
            let permissions = || user.roles.iter().filter_map(|role| record.roles.get(role)).flatten();
            let with = |wanted: Allowed| {
                let keys: Vec<_> = permissions()
                    .filter(|permission| allows(permission, wanted))
                    .map(Permission::keys)
                    .collect();
                Ranges::of(&keys)
            };
            let (root, read, write) = (user.roles.contains(ROOT), with(Allowed::Read), with(Allowed::Write));
            (name.clone(), Grants { root, read, write })
        });
        let grants = grants.collect();
        Rules { record, grants }
    }

    /// Whether a user may read or write every key of a range.
    pub(super) fn keys(&self, user: Option<&str>, access: Access, keys: &KeyRange) -> Result<(), Refusal> {
        let grants = self.grants(user)?;
        let allowed = match access {
            Access::Read => &grants.read,
            Access::Write => &grants.write,
        };
        if grants.root || allowed.cover(keys) { Ok(()) } else { Err(Refusal::Denied) }
    }

    /// Whether a user may do what only root may.
    pub(super) fn root(&self, user: Option<&str>) -> Result<(), Refusal> {
        if self.grants(user)?.root { Ok(()) } else { Err(Refusal::Denied) }
    }

    /// Whether there is such a user.
    pub(super) fn known(&self, user: Option<&str>) -> Result<(), Refusal> {
        self.grants(user).map(drop)
    }

    fn grants(&self, user: Option<&str>) -> Result<&Grants, Refusal> {
        self.grants.get(user.ok_or(Refusal::UserEmpty)?).ok_or(Refusal::Denied)
    }
}

fn allows(permission: &Permission, wanted: Allowed) -> bool {
    permission.access == wanted || permission.access == Allowed::ReadWrite
}

#[cfg(test)]
mod tests {
    use super::super::record::User;
    use super::*;

    fn rules() -> Rules {
        let permission = |start: &str, end: &str, access| Permission {
            start: start.to_owned().into(),
            end: end.to_owned().into(),
            access,
        };
        let mut record = Record::default();
        let user = |roles: &[&str]| User {
            password: None,
            roles: roles.iter().map(|role| (*role).to_owned()).collect(),
        };
        record.roles.insert("reader".into(), vec![permission("a", "c", Allowed::Read)]);
        record.roles.insert("writer".into(), vec![permission("b", "d", Allowed::ReadWrite)]);
        record.users.insert("ann".into(), user(&["reader", "writer", "gone"]));
        record.users.insert("root".into(), user(&[ROOT]));
        record.users.insert("nobody".into(), user(&[]));
        Rules::new(record)
    }

    #[test]
    fn roles_add_up_and_nothing_else_is_allowed() {
        let rules = rules();
        let (ann, span) = (Some("ann"), |start: &'static str, end: &'static str| KeyRange::span(start, end));
        assert_eq!(rules.keys(ann, Access::Read, &span("a", "d")), Ok(()));
        assert_eq!(rules.keys(ann, Access::Write, &span("b", "d")), Ok(()));
        assert_eq!(rules.keys(ann, Access::Write, &span("a", "d")), Err(Refusal::Denied));
        assert_eq!(rules.keys(ann, Access::Read, &span("a", "e")), Err(Refusal::Denied));
        assert_eq!(rules.root(ann), Err(Refusal::Denied));
        assert_eq!(rules.keys(Some("root"), Access::Write, &KeyRange::all()), Ok(()));
        assert_eq!(rules.root(Some("root")), Ok(()));
    }

    #[test]
    fn without_a_user_and_with_an_unknown_one_nothing_is_allowed() {
        let rules = rules();
        let key = KeyRange::one("a");
        assert_eq!(rules.keys(None, Access::Read, &key), Err(Refusal::UserEmpty));
        assert_eq!(rules.keys(Some("ghost"), Access::Read, &key), Err(Refusal::Denied));
        assert_eq!(rules.keys(Some("nobody"), Access::Read, &key), Err(Refusal::Denied));
        assert_eq!(rules.known(Some("nobody")), Ok(()));
        assert_eq!(rules.known(None), Err(Refusal::UserEmpty));
    }
}
