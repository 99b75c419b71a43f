//! What are users and roles, and how do they change? Pure; every refusal is etcd's own.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use serde::{Deserialize, Serialize};

use crate::kv::KeyRange;

/// The user that must exist before anyone is asked for a token, and the role that may do everything.
pub(super) const ROOT: &str = "root";

/// The record is written as a whole with every change.
const MAX_BYTES: usize = 1 << 20;

/// All users and roles.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Record {
    /// Whether calls need a user.
    pub(super) enabled: bool,
    /// Grows with every change; tokens that name an older one are not taken.
    pub(super) revision: u64,
    pub(super) users: BTreeMap<String, User>,
    pub(super) roles: BTreeMap<String, Vec<Permission>>,
}

/// One user.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct User {
    /// The hash of its password; a user without one cannot sign in.
    pub(super) password: Option<String>,
    pub(super) roles: BTreeSet<String>,
}

/// What a role may do with some keys.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Permission {
    pub(super) start: Vec<u8>,
    pub(super) end: Vec<u8>,
    pub(super) access: Allowed,
}

/// Reading, writing, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) enum Allowed {
    Read,
    Write,
    ReadWrite,
}

impl Permission {
    pub(super) fn keys(&self) -> KeyRange {
        KeyRange::span(self.start.clone(), self.end.clone())
    }

    fn order(&self) -> (&[u8], &[u8]) {
        (&self.start, &self.end)
    }
}

/// One change of users and roles.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Enable,
    Disable,
    AddUser { name: String, password: Option<String> },
    DeleteUser { name: String },
    SetPassword { name: String, password: String },
    GrantRole { user: String, role: String },
    RevokeRole { user: String, role: String },
    AddRole { name: String },
    DeleteRole { name: String },
    GrantPermission { role: String, permission: Permission },
    RevokePermission { role: String, start: Vec<u8>, end: Vec<u8> },
}

/// Why a change or a call is refused, in etcd's words.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(in crate::wire) enum Refusal {
    #[error("root user does not exist")]
    RootUserMissing,
    #[error("root user does not have root role")]
    RootRoleMissing,
    #[error("user name is empty")]
    UserEmpty,
    #[error("user name already exists")]
    UserExists,
    #[error("user name not found")]
    UserNotFound,
    #[error("role name is empty")]
    RoleEmpty,
    #[error("role name already exists")]
    RoleExists,
    #[error("role name not found")]
    RoleNotFound,
    #[error("role is not granted to the user")]
    RoleNotGranted,
    #[error("permission is not granted to the role")]
    PermissionNotGranted,
    #[error("permission not given")]
    PermissionNotGiven,
    #[error("invalid auth management")]
    InvalidManagement,
    #[error("authentication is not enabled")]
    NotEnabled,
    #[error("authentication failed, invalid user ID or password")]
    SignInFailed,
    #[error("permission denied")]
    Denied,
    #[error("invalid auth token")]
    InvalidToken,
    #[error("revision of auth store is old")]
    OldRevision,
    #[error("too many requests")]
    TooMany,
    #[error("too many users and roles")]
    TooLarge,
}

impl Default for Record {
    fn default() -> Record {
        Record { enabled: false, revision: 1, users: BTreeMap::new(), roles: BTreeMap::new() }
    }
}

impl Record {
    /// Reads what [`Record::bytes`] made; nothing at all is the record of a store that never had users.
    pub(super) fn read(bytes: &[u8]) -> Result<Record, serde_json::Error> {
        if bytes.is_empty() { Ok(Record::default()) } else { serde_json::from_slice(bytes) }
    }

    pub(super) fn bytes(&self) -> Result<Bytes, Refusal> {
        let bytes = serde_json::to_vec(self).map_err(|_| Refusal::TooLarge)?;
        if bytes.len() > MAX_BYTES { Err(Refusal::TooLarge) } else { Ok(bytes.into()) }
    }

    /// The record after a change.
    pub(super) fn changed(&self, change: Change) -> Result<Record, Refusal> {
        let mut next = self.clone();
        next.apply(change)?;
        if next != *self {
            next.revision += 1;
        }
        Ok(next)
    }

    fn apply(&mut self, change: Change) -> Result<(), Refusal> {
        match change {
            Change::Enable => self.enable(),
            Change::Disable => {
                self.enabled = false;
                Ok(())
            }
            Change::AddUser { name, password } => self.add_user(name, password),
            Change::DeleteUser { name } => self.delete_user(&name),
            Change::SetPassword { name, password } => {
                self.user(&name)?.password = Some(password);
                Ok(())
            }
            Change::GrantRole { user, role } => self.grant_role(&user, role),
            Change::RevokeRole { user, role } => self.revoke_role(&user, &role),
            Change::AddRole { name } => self.add_role(name),
            Change::DeleteRole { name } => self.delete_role(&name),
            Change::GrantPermission { role, permission } => self.grant(&role, permission),
            Change::RevokePermission { role, start, end } => self.revoke(&role, &start, &end),
        }
    }

    fn enable(&mut self) -> Result<(), Refusal> {
        let root = self.users.get(ROOT).ok_or(Refusal::RootUserMissing)?;
        if !root.roles.contains(ROOT) {
            return Err(Refusal::RootRoleMissing);
        }
        self.enabled = true;
        Ok(())
    }

    fn add_user(&mut self, name: String, password: Option<String>) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::UserEmpty);
        }
        if self.users.contains_key(&name) {
            return Err(Refusal::UserExists);
        }
        self.users.insert(name, User { password, roles: BTreeSet::new() });
        Ok(())
    }

    fn delete_user(&mut self, name: &str) -> Result<(), Refusal> {
        if self.enabled && name == ROOT {
            return Err(Refusal::InvalidManagement);
        }
        self.users.remove(name).map(drop).ok_or(Refusal::UserNotFound)
    }

    fn grant_role(&mut self, user: &str, role: String) -> Result<(), Refusal> {
        let known = role == ROOT || self.roles.contains_key(&role);
        let user = self.user(user)?;
        if !known {
            return Err(Refusal::RoleNotFound);
        }
        user.roles.insert(role);
        Ok(())
    }

    fn revoke_role(&mut self, user: &str, role: &str) -> Result<(), Refusal> {
        if self.enabled && user == ROOT && role == ROOT {
            return Err(Refusal::InvalidManagement);
        }
        if self.user(user)?.roles.remove(role) { Ok(()) } else { Err(Refusal::RoleNotGranted) }
    }

    fn add_role(&mut self, name: String) -> Result<(), Refusal> {
        if name.is_empty() {
            return Err(Refusal::RoleEmpty);
        }
        if self.roles.contains_key(&name) {
            return Err(Refusal::RoleExists);
        }
        self.roles.insert(name, Vec::new());
        Ok(())
    }

    fn delete_role(&mut self, name: &str) -> Result<(), Refusal> {
        if self.enabled && name == ROOT {
            return Err(Refusal::InvalidManagement);
        }
        self.roles.remove(name).ok_or(Refusal::RoleNotFound)?;
        self.users.values_mut().for_each(|user| user.roles.retain(|role| role != name));
        Ok(())
    }

    fn grant(&mut self, role: &str, permission: Permission) -> Result<(), Refusal> {
        if permission.keys().is_empty() {
            return Err(Refusal::InvalidManagement);
        }
        let permissions = self.roles.get_mut(role).ok_or(Refusal::RoleNotFound)?;
        match permissions.binary_search_by(|known| known.order().cmp(&permission.order())) {
            Ok(at) => permissions[at] = permission,
            Err(at) => permissions.insert(at, permission),
        }
        Ok(())
    }

    fn revoke(&mut self, role: &str, start: &[u8], end: &[u8]) -> Result<(), Refusal> {
        let permissions = self.roles.get_mut(role).ok_or(Refusal::RoleNotFound)?;
        let at = permissions.iter().position(|known| known.order() == (start, end));
        permissions.remove(at.ok_or(Refusal::PermissionNotGranted)?);
        Ok(())
    }

    fn user(&mut self, name: &str) -> Result<&mut User, Refusal> {
        self.users.get_mut(name).ok_or(Refusal::UserNotFound)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn with(changes: &[Change]) -> Record {
        changes.iter().fold(Record::default(), |record, change| record.changed(change.clone()).unwrap())
    }

    fn add_user(name: &str) -> Change {
        Change::AddUser { name: name.into(), password: Some("hash".into()) }
    }

    fn grant_role(user: &str, role: &str) -> Change {
        Change::GrantRole { user: user.into(), role: role.into() }
    }

    fn permission(access: Allowed) -> Change {
        let permission = Permission { start: "a".into(), end: "b".into(), access };
        Change::GrantPermission { role: "r".into(), permission }
    }

    #[test]
    fn root_cannot_be_taken_away_while_users_are_asked_for() {
        let bare = Record::default();
        assert_eq!(bare.changed(Change::Enable), Err(Refusal::RootUserMissing));
        let user = with(&[add_user(ROOT)]);
        assert_eq!(user.changed(Change::Enable), Err(Refusal::RootRoleMissing));
        let on = with(&[add_user(ROOT), grant_role(ROOT, ROOT), Change::Enable]);
        assert!(on.enabled);
        let role = || ROOT.to_owned();
        for change in [
            Change::DeleteUser { name: role() },
            Change::DeleteRole { name: role() },
            Change::RevokeRole { user: role(), role: role() },
        ] {
            assert_eq!(on.changed(change), Err(Refusal::InvalidManagement));
        }
        assert!(!on.changed(Change::Disable).unwrap().enabled);
    }

    #[test]
    fn a_permission_is_replaced_by_one_for_the_same_keys() {
        let role = with(&[
            Change::AddRole { name: "r".into() },
            permission(Allowed::Read),
            permission(Allowed::Write),
        ]);
        assert_eq!(role.roles["r"].len(), 1);
        assert_eq!(role.roles["r"][0].access, Allowed::Write);
        let revoke = |end: &str| Change::RevokePermission {
            role: "r".into(),
            start: "a".into(),
            end: end.to_owned().into(),
        };
        assert_eq!(role.changed(revoke("c")), Err(Refusal::PermissionNotGranted));
        assert!(role.changed(revoke("b")).unwrap().roles["r"].is_empty());
    }

    #[test]
    fn a_deleted_role_is_taken_from_its_users() {
        let role = || "r".to_owned();
        let record = with(&[add_user("u"), Change::AddRole { name: role() }, grant_role("u", "r")]);
        assert_eq!(record.changed(grant_role("u", "x")), Err(Refusal::RoleNotFound));
        assert_eq!(record.changed(grant_role("x", "r")), Err(Refusal::UserNotFound));
        let gone = record.changed(Change::DeleteRole { name: role() }).unwrap();
        assert!(gone.users["u"].roles.is_empty());
        assert_eq!(
            gone.changed(Change::RevokeRole { user: "u".into(), role: role() }),
            Err(Refusal::RoleNotGranted)
        );
    }

    #[test]
    fn a_record_comes_back_and_grows_only_with_changes() {
        let record =
            with(&[add_user("u"), Change::AddRole { name: "r".into() }, permission(Allowed::ReadWrite)]);
        assert_eq!(Record::read(&record.bytes().unwrap()).unwrap(), record);
        assert_eq!(record.revision, 4);
        assert_eq!(record.changed(Change::Disable).unwrap().revision, 4);
        assert!(Record::read(b"{\"enabled\":false}").is_err());
        assert_eq!(Record::read(b"").unwrap(), Record::default());
    }
}
