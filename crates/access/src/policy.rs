//! Who is known and what may they do, at one revision? Compiled from a snapshot, so that a decision looks nothing up
//! but a name.

use std::collections::HashMap;
use std::sync::Arc;

use capstan_meta::Revision;
use capstan_meta::record::BadValue;
use capstan_meta::view::Snapshot;

use crate::grant::Grant;
use crate::keys::{AccessKeys, Identities, IdentityName, KeyId, RoleName, Roles, SessionId, Sessions};
use crate::secret::{Token, TokenKind};
use crate::spec::{IdentityKind, IdentityRecord, KeyRecord, RoleRecord, SessionRecord};

/// The roles that are always there, and what each allows.
pub const BUILT_IN: [(&str, &[&str]); 3] =
    [("viewer", &["*:view"]), ("operator", &["*:view,operate"]), ("admin", &["*:*"])];

/// Where a request comes from, once its credential was accepted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Identity {
    /// Its name: what events and records carry as the actor.
    pub name: String,
    /// The access key that was presented, or with which the session was opened.
    pub key: Option<KeyId>,
    pub(crate) basis: Basis,
}

/// What an identity's permissions are taken from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Basis {
    /// The record of this identity.
    Known(IdentityName),
    /// A built-in role: requests without a credential.
    Role(&'static str),
}

impl Identity {
    /// An identity that is looked up by its name, without a key.
    #[must_use]
    pub fn named(name: IdentityName) -> Identity {
        Identity { name: name.to_string(), key: None, basis: Basis::Known(name) }
    }

    /// The same identity, limited to what this access key may do.
    #[must_use]
    pub fn with_key(self, key: KeyId) -> Identity {
        Identity { key: Some(key), ..self }
    }

    /// Whether the request had no credential.
    #[must_use]
    pub fn is_anonymous(&self) -> bool {
        matches!(self.basis, Basis::Role(_))
    }

    pub(crate) fn anonymous(role: &'static str) -> Identity {
        Identity { name: "anonymous".to_owned(), key: None, basis: Basis::Role(role) }
    }
}

/// A grant and what it was given through.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Held {
    pub(crate) grant: Grant,
    /// The role that it is part of; nothing if it was given to the identity itself.
    pub(crate) role: Option<RoleName>,
}

/// One identity with all that it may do.
#[derive(Clone, Debug)]
pub(crate) struct Member {
    pub(crate) record: Arc<IdentityRecord>,
    pub(crate) held: Vec<Held>,
    /// Roles that it has and that do not exist.
    pub(crate) missing: Vec<RoleName>,
}

/// What a policy is compiled from.
#[derive(Clone, Debug, Default)]
pub struct Records {
    /// Roles made by operators.
    pub roles: Vec<(RoleName, RoleRecord)>,
    /// Users and accounts.
    pub identities: Vec<(IdentityName, IdentityRecord)>,
    /// Access keys.
    pub keys: Vec<(KeyId, KeyRecord)>,
    /// Sessions.
    pub sessions: Vec<(SessionId, SessionRecord)>,
}

/// Everything that decisions are made from. Immutable.
#[derive(Clone, Debug)]
pub struct Policy {
    /// The revision that it shows.
    pub revision: Revision,
    members: HashMap<IdentityName, Member>,
    keys: HashMap<KeyId, Arc<KeyRecord>>,
    sessions: HashMap<SessionId, Arc<SessionRecord>>,
    roles: HashMap<RoleName, Vec<Grant>>,
    /// Records that cannot be read. What they would allow is not allowed.
    pub bad: Vec<BadValue>,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy {
            revision: Revision::ZERO,
            members: HashMap::new(),
            keys: HashMap::new(),
            sessions: HashMap::new(),
            roles: built_in(),
            bad: Vec::new(),
        }
    }
}

fn built_in() -> HashMap<RoleName, Vec<Grant>> {
    let role = |(name, grants): (&str, &[&str])| {
        // A grant that did not parse would be left out: the role allows less. A test walks all of them.
        let grants = grants.iter().filter_map(|grant| grant.parse().ok()).collect();
        Some((RoleName::new(name).ok()?, grants))
    };
    BUILT_IN.into_iter().filter_map(role).collect()
}

impl Policy {
    /// Compiles a snapshot that covers identities, keys, roles and sessions.
    #[must_use]
    pub fn of(snapshot: &Snapshot) -> Policy {
        let (identities, keys) = (snapshot.list(&Identities {}), snapshot.list(&AccessKeys {}));
        let (roles, sessions) = (snapshot.list(&Roles {}), snapshot.list(&Sessions {}));
        let bad = [&identities.bad, &keys.bad, &roles.bad, &sessions.bad].into_iter().flatten().cloned();
        let mut policy = Policy::compile(Records {
            roles: roles.iter().map(|(key, stored)| (key.role.clone(), stored.record.clone())).collect(),
            identities: identities
                .iter()
                .map(|(key, stored)| (key.identity.clone(), stored.record.clone()))
                .collect(),
            keys: keys.iter().map(|(key, stored)| (key.id.clone(), stored.record.clone())).collect(),
            sessions: sessions
                .iter()
                .map(|(key, stored)| (key.session.clone(), stored.record.clone()))
                .collect(),
        });
        policy.revision = snapshot.revision();
        policy.bad = bad.collect();
        policy
    }

    /// Compiles records.
    #[must_use]
    pub fn compile(records: Records) -> Policy {
        let mut policy = Policy::default();
        for (name, role) in records.roles {
            // A record cannot change what a built-in role means.
            policy.roles.entry(name).or_insert(role.grants);
        }
        for (name, identity) in records.identities {
            let member = policy.member(Arc::new(identity));
            policy.members.insert(name, member);
        }
        policy.keys = records.keys.into_iter().map(|(id, key)| (id, Arc::new(key))).collect();
        policy.sessions = records.sessions.into_iter().map(|(id, session)| (id, Arc::new(session))).collect();
        policy
    }

    fn member(&self, record: Arc<IdentityRecord>) -> Member {
        let own = record.grants.iter().map(|grant| Held { grant: grant.clone(), role: None });
        let mut held: Vec<Held> = own.collect();
        let mut missing = Vec::new();
        for role in &record.roles {
            match self.roles.get(role) {
                None => missing.push(role.clone()),
                Some(grants) => {
                    let grants = grants.iter();
                    held.extend(grants.map(|grant| Held { grant: grant.clone(), role: Some(role.clone()) }));
                }
            }
        }
        Member { record, held, missing }
    }

    pub(crate) fn identity(&self, name: &IdentityName) -> Option<&Member> {
        self.members.get(name)
    }

    pub(crate) fn role(&self, name: &str) -> &[Grant] {
        RoleName::new(name).ok().and_then(|name| self.roles.get(&name)).map_or(&[], Vec::as_slice)
    }

    pub(crate) fn key(&self, id: &KeyId) -> Option<&Arc<KeyRecord>> {
        self.keys.get(id)
    }

    /// Whether there is an identity that is not disabled and has the role `admin`.
    #[must_use]
    pub fn has_admin(&self) -> bool {
        let admin = |member: &Member| member.record.roles.iter().any(|role| role.as_str() == "admin");
        self.members.values().any(|member| !member.record.disabled && admin(member))
    }

    /// Whether a record with this token's id is known, whatever it says.
    #[must_use]
    pub fn knows(&self, token: &Token) -> bool {
        match token.kind {
            TokenKind::AccessKey => KeyId::new(&token.id).is_ok_and(|id| self.keys.contains_key(&id)),
            TokenKind::Session => SessionId::new(&token.id).is_ok_and(|id| self.sessions.contains_key(&id)),
            // It opens one route, which does not ask here.
            TokenKind::Join => false,
        }
    }

    /// The identity that a token stands for at this time, if the token is valid.
    #[must_use]
    pub fn identify(&self, token: &Token, unix_now: u64) -> Option<Identity> {
        match token.kind {
            TokenKind::AccessKey => {
                let id = KeyId::new(&token.id).ok()?;
                let record = self.live_key(&id, unix_now)?;
                token.has_hash(&record.hash.0).then(|| self.stands_for(&record.identity, Some(id)))?
            }
            TokenKind::Session => {
                let record = self.sessions.get(&SessionId::new(&token.id).ok()?)?;
                let is_live = record.expires_at > unix_now
                    && record.key.as_ref().is_none_or(|key| self.live_key(key, unix_now).is_some());
                (is_live && token.has_hash(&record.hash.0))
                    .then(|| self.stands_for(&record.identity, record.key.clone()))?
            }
            TokenKind::Join => None,
        }
    }

    fn live_key(&self, id: &KeyId, unix_now: u64) -> Option<&Arc<KeyRecord>> {
        self.keys.get(id).filter(|record| record.expires_at.is_none_or(|end| end > unix_now))
    }

    fn stands_for(&self, name: &IdentityName, key: Option<KeyId>) -> Option<Identity> {
        let member = self.members.get(name)?;
        let identity = Identity { key, ..Identity::named(name.clone()) };
        (!member.record.disabled).then_some(identity)
    }

    /// The password hash of a user that may sign in.
    #[must_use]
    pub fn password_of(&self, name: &IdentityName) -> Option<&str> {
        let record = &self.members.get(name)?.record;
        let may = record.kind == IdentityKind::User && !record.disabled;
        record.password.as_ref().filter(|_| may).map(|hash| hash.0.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_built_in_role_has_all_of_its_grants() {
        let policy = Policy::default();
        for (role, grants) in BUILT_IN {
            assert_eq!(policy.role(role).len(), grants.len(), "{role}");
        }
    }
}
