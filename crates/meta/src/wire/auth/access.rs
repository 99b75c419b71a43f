//! The state of users on one wire: rules for decisions, tokens, and the gate between calls and changes.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use arc_swap::ArcSwap;
use tokio::sync::{RwLock, RwLockReadGuard, oneshot};
use tokio::time::Instant;
use tonic::Status;
use tonic::metadata::MetadataMap;

use super::password::Hashing;
use super::record::{Change, Record, Refusal};
use super::rules::{self, Rules};
use super::token::{TokenKind, Tokens};
use crate::error::{MetaError, Result};
use crate::kv::{KeyRange, LeaseId};
use crate::request::{Delete, Op, Put, Txn};
use crate::store::Backend;
use crate::task::spawn_producer;
use crate::wire::status::{refused, status};

/// Where clients put their token; the second is what HTTP clients send.
const TOKEN_HEADERS: [&str; 2] = ["token", "authorization"];

/// Users, roles and tokens of one wire. A store has one wire.
pub(in crate::wire) struct Access {
    backend: Arc<dyn Backend>,
    /// The same as in the rules; read first, because most stores have no users.
    enabled: AtomicBool,
    rules: ArcSwap<Rules>,
    /// Held by calls while they run, and alone by a change.
    gate: RwLock<()>,
    tokens: Issuer,
    pub(super) hashing: Hashing,
}

enum Issuer {
    Simple(Mutex<Tokens>),
    Jwt(Arc<super::jwt::JwtKeys>),
}

/// What one call may do. As long as it lives, users and roles stay as they are.
pub(in crate::wire) struct Permit<'a> {
    /// Missing where no users are asked for.
    asked: Option<Asked<'a>>,
}

struct Asked<'a> {
    rules: Arc<Rules>,
    user: Option<String>,
    _turn: RwLockReadGuard<'a, ()>,
}

impl Access {
    /// Reads what the store keeps. A record that cannot be read is an error: without it nobody may do anything.
    pub(in crate::wire) async fn load(backend: Arc<dyn Backend>, kind: &TokenKind) -> Result<Access> {
        let bytes = backend.users().await?;
        let record = Record::read(&bytes)
            .map_err(|error| MetaError::Corrupt(format!("users and roles cannot be read: {error}")))?;
        let tokens = match kind {
            TokenKind::Simple { ttl } => Issuer::Simple(Mutex::new(Tokens::new(*ttl))),
            TokenKind::Jwt(keys) => Issuer::Jwt(keys.clone()),
        };
        Ok(Access {
            backend,
            enabled: AtomicBool::new(record.enabled),
            rules: ArcSwap::from_pointee(Rules::new(record)),
            gate: RwLock::new(()),
            tokens,
            hashing: Hashing::default(),
        })
    }

    pub(super) fn rules(&self) -> Arc<Rules> {
        self.rules.load_full()
    }

    /// What a call with this metadata may do.
    pub(in crate::wire) async fn permit(&self, metadata: &MetadataMap) -> Result<Permit<'_>, Status> {
        if !self.enabled.load(Ordering::Acquire) {
            return Ok(Permit { asked: None });
        }
        let turn = self.gate.read().await;
        let rules = self.rules();
        if !rules.record.enabled {
            return Ok(Permit { asked: None });
        }
        let user = self.user(metadata, &rules).map_err(refused)?;
        Ok(Permit { asked: Some(Asked { rules, user, _turn: turn }) })
    }

    /// The user that a call's token names.
    fn user(&self, metadata: &MetadataMap, rules: &Rules) -> Result<Option<String>, Refusal> {
        let Some(token) = TOKEN_HEADERS.iter().find_map(|name| metadata.get(*name)) else { return Ok(None) };
        let token = token.to_str().map_err(|_| Refusal::InvalidToken)?;
        match &self.tokens {
            Issuer::Simple(tokens) => {
                let user = lock(tokens).user(token, Instant::now()).map(str::to_owned);
                user.map(Some).ok_or(Refusal::InvalidToken)
            }
            Issuer::Jwt(keys) => {
                let (user, revision) = keys.read(token)?;
                if revision < rules.record.revision { Err(Refusal::OldRevision) } else { Ok(Some(user)) }
            }
        }
    }

    /// A token for a user that shows its password.
    pub(super) async fn sign_in(&self, name: String, password: String) -> Result<String, Refusal> {
        let rules = self.rules();
        if !rules.record.enabled {
            return Err(Refusal::NotEnabled);
        }
        let stored = rules.record.users.get(&name).and_then(|user| user.password.clone());
        if !self.hashing.verify(password, stored.clone()).await? {
            return Err(Refusal::SignInFailed);
        }
        // Between calls and changes: a password that was changed meanwhile is not the right one any more.
        let _turn = self.gate.read().await;
        let rules = self.rules();
        if !rules.record.enabled || rules.record.users.get(&name).map(|user| &user.password) != Some(&stored)
        {
            return Err(Refusal::SignInFailed);
        }
        match &self.tokens {
            Issuer::Simple(tokens) => Ok(lock(tokens).issue(&name, Instant::now())),
            Issuer::Jwt(keys) => keys.issue(&name, rules.record.revision),
        }
    }

    /// Changes users or roles, as root where users are asked for. Durable and in effect when it returns. Once begun it is
    /// carried through, even if the caller goes away.
    pub(super) async fn change(
        self: &Arc<Self>,
        metadata: MetadataMap,
        change: Change,
    ) -> Result<(), Status> {
        let (done, outcome) = oneshot::channel();
        let access = self.clone();
        spawn_producer(async move {
            // A caller that went away does not want to know.
            done.send(access.change_now(&metadata, change).await).ok();
        });
        outcome.await.map_err(|_| status(MetaError::Stopped))?
    }

    async fn change_now(&self, metadata: &MetadataMap, change: Change) -> Result<(), Status> {
        let _alone = self.gate.write().await;
        let rules = self.rules();
        if rules.record.enabled {
            let user = self.user(metadata, &rules).map_err(refused)?;
            rules.root(user.as_deref()).map_err(refused)?;
        }
        let next = rules.record.changed(change.clone()).map_err(refused)?;
        if next == rules.record {
            return Ok(());
        }
        self.backend.set_users(next.bytes().map_err(refused)?).await.map_err(status)?;
        self.revoke_tokens(&change);
        let enabled = next.enabled;
        self.rules.store(Arc::new(Rules::new(next)));
        self.enabled.store(enabled, Ordering::Release);
        Ok(())
    }

    fn revoke_tokens(&self, change: &Change) {
        let Issuer::Simple(tokens) = &self.tokens else { return };
        match change {
            Change::DeleteUser { name } | Change::SetPassword { name, .. } => lock(tokens).revoke(name),
            Change::Enable | Change::Disable => lock(tokens).clear(),
            Change::AddUser { .. }
            | Change::GrantRole { .. }
            | Change::RevokeRole { .. }
            | Change::AddRole { .. }
            | Change::DeleteRole { .. }
            | Change::GrantPermission { .. }
            | Change::RevokePermission { .. } => {}
        }
    }
}

/// Tokens are whole between any two of their calls.
fn lock(tokens: &Mutex<Tokens>) -> MutexGuard<'_, Tokens> {
    tokens.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Permit<'_> {
    fn ask(&self, question: impl FnOnce(&Rules, Option<&str>) -> Result<(), Refusal>) -> Result<(), Status> {
        let Some(asked) = &self.asked else { return Ok(()) };
        question(&asked.rules, asked.user.as_deref()).map_err(refused)
    }

    /// Any user may go on.
    pub(in crate::wire) fn user(&self) -> Result<(), Status> {
        self.ask(Rules::known)
    }

    /// Only root may go on.
    pub(in crate::wire) fn root(&self) -> Result<(), Status> {
        self.ask(Rules::root)
    }

    /// Only this user or root may go on.
    pub(super) fn user_or_root(&self, name: &str) -> Result<(), Status> {
        self.ask(|rules, user| if user == Some(name) { rules.known(user) } else { rules.root(user) })
    }

    /// Only users with this role or root may go on.
    pub(super) fn role_or_root(&self, role: &str) -> Result<(), Status> {
        self.ask(|rules, user| {
            let has = |name: &str| rules.record.users.get(name).is_some_and(|user| user.roles.contains(role));
            if user.is_some_and(has) { Ok(()) } else { rules.root(user) }
        })
    }

    /// May these keys be read?
    pub(in crate::wire) fn read(&self, keys: &KeyRange) -> Result<(), Status> {
        self.ask(|rules, user| rules.keys(user, rules::Access::Read, keys))
    }

    /// May these keys be written or deleted?
    pub(in crate::wire) fn write(&self, keys: &KeyRange) -> Result<(), Status> {
        self.ask(|rules, user| rules.keys(user, rules::Access::Write, keys))
    }

    /// May this be put?
    pub(in crate::wire) async fn put(&self, put: &Put, backend: &dyn Backend) -> Result<(), Status> {
        let mut leases = Vec::new();
        self.check_put(put, &mut leases)?;
        self.leases(leases, backend).await
    }

    /// May these keys be deleted?
    pub(in crate::wire) fn delete(&self, delete: &Delete) -> Result<(), Status> {
        self.write(&delete.keys)?;
        if delete.prev_kv { self.read(&delete.keys) } else { Ok(()) }
    }

    /// May this be done, with everything in it? Leases are looked up, because a put into a lease gives its keys away.
    pub(in crate::wire) async fn txn(&self, txn: &Txn, backend: &dyn Backend) -> Result<(), Status> {
        if self.asked.is_none() {
            return Ok(());
        }
        let mut leases = Vec::new();
        self.check_txn(txn, &mut leases)?;
        self.leases(leases, backend).await
    }

    async fn leases(&self, mut leases: Vec<LeaseId>, backend: &dyn Backend) -> Result<(), Status> {
        leases.sort_unstable();
        leases.dedup();
        for lease in leases {
            self.lease(lease, rules::Access::Write, backend).await?;
        }
        Ok(())
    }

    fn check_op(&self, op: &Op, leases: &mut Vec<LeaseId>) -> Result<(), Status> {
        match op {
            Op::Range(range) => self.read(&range.keys),
            Op::Put(put) => self.check_put(put, leases),
            Op::Delete(delete) => self.delete(delete),
            Op::Txn(txn) => self.check_txn(txn, leases),
        }
    }

    fn check_txn(&self, txn: &Txn, leases: &mut Vec<LeaseId>) -> Result<(), Status> {
        // An empty transaction touches no key, and still needs a user.
        self.user()?;
        txn.compares.iter().try_for_each(|compare| self.read(&compare.keys))?;
        txn.success.iter().chain(&txn.failure).try_for_each(|op| self.check_op(op, leases))
    }

    fn check_put(&self, put: &Put, leases: &mut Vec<LeaseId>) -> Result<(), Status> {
        if self.asked.is_none() {
            return Ok(());
        }
        let key = KeyRange::one(put.key.clone());
        self.write(&key)?;
        if put.lease != LeaseId::NONE {
            leases.push(put.lease);
        }
        if put.prev_kv { self.read(&key) } else { Ok(()) }
    }

    /// May every key of a lease be read, or written?
    pub(in crate::wire) async fn lease(
        &self,
        id: LeaseId,
        access: rules::Access,
        backend: &dyn Backend,
    ) -> Result<(), Status> {
        if self.asked.is_none() {
            return Ok(());
        }
        self.user()?;
        let keys = backend.lease_info(id).await.map_err(status)?.map(|info| info.keys).unwrap_or_default();
        keys.into_iter()
            .map(KeyRange::one)
            .try_for_each(|key| self.ask(|rules, user| rules.keys(user, access, &key)))
    }
}
