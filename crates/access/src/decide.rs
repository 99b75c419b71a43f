//! May this identity do this to that? One pure function; everything that no grant allows is denied.

use std::fmt;

use crate::grant::{Grant, Verb};
use crate::keys::{IdentityName, KeyId, RoleName};
use crate::object::Object;
use crate::policy::{Basis, Identity, Policy};

/// Whether a request is allowed, and why.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision<'p> {
    /// It is allowed by this grant.
    Allowed {
        /// The grant.
        grant: &'p Grant,
        /// The role that the grant is part of; nothing if it was given to the identity itself.
        role: Option<&'p str>,
    },
    /// It is denied.
    Denied(Denial<'p>),
}

/// Why a request is denied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Denial<'p> {
    /// No such identity.
    Unknown,
    /// The identity is disabled.
    Disabled,
    /// Neither its grants nor its roles allow it. Roles that it has and that do not exist are named.
    NoGrant {
        /// The roles that do not exist.
        missing: &'p [RoleName],
    },
    /// The identity may, its access key may not.
    OutOfScope {
        /// The key.
        key: KeyId,
    },
    /// The access key was revoked.
    NoKey,
}

impl Decision<'_> {
    /// Whether the request may go on.
    #[must_use]
    pub fn is_allowed(&self) -> bool {
        matches!(self, Decision::Allowed { .. })
    }
}

/// Decides about one request.
#[must_use]
pub fn decide<'p>(policy: &'p Policy, identity: &Identity, verb: Verb, object: &Object) -> Decision<'p> {
    let allowed = match &identity.basis {
        Basis::Known(name) => by_record(policy, name, verb, object),
        Basis::Role(role) => by_role(policy, role, verb, object),
    };
    match (&identity.key, allowed.is_allowed()) {
        (None, _) | (_, false) => allowed,
        (Some(key), true) => within_scope(policy, key, verb, object).map_or(allowed, Decision::Denied),
    }
}

fn by_record<'p>(policy: &'p Policy, name: &IdentityName, verb: Verb, object: &Object) -> Decision<'p> {
    let Some(member) = policy.identity(name) else { return Decision::Denied(Denial::Unknown) };
    if member.record.disabled {
        return Decision::Denied(Denial::Disabled);
    }
    match member.held.iter().find(|held| held.grant.allows(verb, object)) {
        Some(held) => {
            Decision::Allowed { grant: &held.grant, role: held.role.as_ref().map(RoleName::as_str) }
        }
        None => Decision::Denied(Denial::NoGrant { missing: &member.missing }),
    }
}

fn by_role<'p>(policy: &'p Policy, role: &'static str, verb: Verb, object: &Object) -> Decision<'p> {
    match policy.role(role).iter().find(|grant| grant.allows(verb, object)) {
        Some(grant) => Decision::Allowed { grant, role: Some(role) },
        None => Decision::Denied(Denial::NoGrant { missing: &[] }),
    }
}

/// Why the key does not allow what its identity may do; nothing if it does.
fn within_scope<'p>(policy: &'p Policy, key: &KeyId, verb: Verb, object: &Object) -> Option<Denial<'p>> {
    let Some(record) = policy.key(key) else { return Some(Denial::NoKey) };
    let scope = record.scope.as_ref()?;
    let allows = scope.iter().any(|grant| grant.allows(verb, object));
    (!allows).then(|| Denial::OutOfScope { key: key.clone() })
}

impl fmt::Display for Decision<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Decision::Allowed { grant, role: Some(role) } => write!(f, "allowed by {grant} of role {role}"),
            Decision::Allowed { grant, role: None } => write!(f, "allowed by its own grant {grant}"),
            Decision::Denied(denial) => write!(f, "denied: {denial}"),
        }
    }
}

impl fmt::Display for Denial<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Denial::Unknown => f.write_str("there is no such user or account"),
            Denial::Disabled => f.write_str("it is disabled"),
            Denial::NoGrant { missing: [] } => f.write_str("no grant and no role allows it"),
            Denial::NoGrant { missing } => {
                let roles = missing.iter().map(RoleName::as_str).collect::<Vec<_>>().join(", ");
                write!(f, "no grant and no role allows it (roles that do not exist: {roles})")
            }
            Denial::OutOfScope { key } => write!(f, "access key {key} is limited to other objects or verbs"),
            Denial::NoKey => f.write_str("its access key was revoked"),
        }
    }
}
