//! What identities, keys and roles are there? Without anything secret.

use capstan_meta::Store;
use serde::Serialize;

use crate::error::AccessError;
use crate::grant::Grant;
use crate::keys::{AccessKeys, Identities, IdentityName, KeyId, LastUses, RoleName, Roles};
use crate::policy::BUILT_IN;
use crate::spec::IdentityKind;

/// One user or account.
#[derive(Clone, Debug, Serialize)]
pub struct IdentityLine {
    /// Its name.
    pub name: IdentityName,
    /// What it is.
    pub kind: IdentityKind,
    /// Its roles.
    pub roles: Vec<RoleName>,
    /// Its own grants.
    pub grants: Vec<Grant>,
    /// Whether it is refused for now.
    pub disabled: bool,
    /// When it was made, in seconds since 1970. RFC 3339 in JSON.
    #[serde(with = "capstan_control::time::rfc3339_seconds")]
    pub created_at: u64,
}

/// One access key.
#[derive(Clone, Debug, Serialize)]
pub struct KeyLine {
    /// Its public part.
    pub id: KeyId,
    /// The identity that it stands for.
    pub identity: IdentityName,
    /// What it is for.
    pub note: String,
    /// What it is limited to.
    pub scope: Option<Vec<Grant>>,
    /// When it ends.
    #[serde(with = "capstan_control::time::rfc3339_option")]
    pub expires_at: Option<u64>,
    /// When it was last used, to the minute.
    #[serde(with = "capstan_control::time::rfc3339_option")]
    pub last_used_at: Option<u64>,
    /// The key that replaces it.
    pub replaced_by: Option<KeyId>,
}

/// One role.
#[derive(Clone, Debug, Serialize)]
pub struct RoleLine {
    /// Its name.
    pub name: String,
    /// What it allows.
    pub grants: Vec<String>,
    /// Whether it is always there.
    pub built_in: bool,
}

/// Everything.
#[derive(Clone, Debug, Serialize)]
pub struct Listed {
    /// Users and accounts, by name.
    pub identities: Vec<IdentityLine>,
    /// Access keys, by id.
    pub keys: Vec<KeyLine>,
    /// Roles: the built-in ones first.
    pub roles: Vec<RoleLine>,
    /// Records that cannot be read, as text.
    pub problems: Vec<String>,
}

/// Lists identities, keys and roles at one revision.
pub async fn list(store: &Store) -> Result<Listed, AccessError> {
    let identities = store.list(&Identities {}).await?;
    let at = identities.revision;
    let (keys, uses) = (store.list_at(&AccessKeys {}, at).await?, store.list_at(&LastUses {}, at).await?);
    let roles = store.list_at(&Roles {}, at).await?;
    let last_used =
        |id: &KeyId| uses.iter().find(|(key, _)| key.id == *id).map(|(_, stored)| stored.record.at);
    let built_in = BUILT_IN.iter().map(|(name, grants)| RoleLine {
        name: (*name).to_owned(),
        grants: grants.iter().map(|grant| (*grant).to_owned()).collect(),
        built_in: true,
    });
    let made = roles.iter().map(|(key, stored)| RoleLine {
        name: key.role.to_string(),
        grants: stored.record.grants.iter().map(ToString::to_string).collect(),
        built_in: false,
    });
    let bad = [&identities.bad, &keys.bad, &uses.bad, &roles.bad].into_iter().flatten();
    Ok(Listed {
        identities: identities
            .iter()
            .map(|(key, stored)| IdentityLine {
                name: key.identity.clone(),
                kind: stored.record.kind,
                roles: stored.record.roles.clone(),
                grants: stored.record.grants.clone(),
                disabled: stored.record.disabled,
                created_at: stored.record.created_at,
            })
            .collect(),
        keys: keys
            .iter()
            .map(|(key, stored)| KeyLine {
                id: key.id.clone(),
                identity: stored.record.identity.clone(),
                note: stored.record.note.clone(),
                scope: stored.record.scope.clone(),
                expires_at: stored.record.expires_at,
                last_used_at: last_used(&key.id),
                replaced_by: stored.record.replaced_by.clone(),
            })
            .collect(),
        roles: built_in.chain(made).collect(),
        problems: bad.map(ToString::to_string).collect(),
    })
}
