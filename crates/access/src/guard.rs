//! How does a process use all this? A guard follows the metadata, accepts credentials, opens sessions and decides.

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::view::{Ranges, View, ViewOptions};
use capstan_meta::{LeaseId, MetaError, OwnedTask, Revision, Store, Txn, clock};
use tokio::sync::{Semaphore, watch};
use tokio::time::Instant;

use crate::decide::decide;
use crate::error::{AccessError, Refused};
use crate::grant::Verb;
use crate::keys::{
    AccessKeyKey, AccessKeys, Identities, IdentityKey, IdentityName, KeyId, LastUseKey, Roles, SessionId,
    SessionKey, Sessions,
};
use crate::limit::Limiter;
use crate::object::Object;
use crate::password;
use crate::policy::{Basis, Identity, Policy};
use crate::secret::{Secret, Token, TokenKind};
use crate::spec::{Hash, LastUse, SessionRecord};

/// A token without a record may have been made on another host a moment ago: the view has so long to show it. Nothing
/// is asked of the store meanwhile, so that guessing tokens costs the guesser only.
const KNOWN_WITHIN: Duration = Duration::from_millis(500);
/// The last uses of keys are written this often.
const NOTE_USES_EVERY: Duration = Duration::from_secs(60);
/// Passwords that are hashed at a time: each takes a processor and 19 MiB for tens of milliseconds.
const HASHED_AT_ONCE: usize = 2;
/// A new session is shown by this process's view within this time.
const SHOWN_WITHIN: Duration = Duration::from_secs(5);
/// Stands in for the hash of a user that does not exist, so that the answer takes as long.
const DECOY: &str =
    "$argon2id$v=19$m=19456,t=2,p=1$AAAAAAAAAAAAAAAAAAAAAA$AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA";

/// What requests without a credential may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Anonymous {
    /// Nothing.
    Refused,
    /// What the role `viewer` may.
    Viewer,
    /// Everything.
    Admin,
}

/// What a request presents.
#[derive(Clone, Debug)]
pub enum Credential {
    /// Nothing.
    None,
    /// Text that should be an access key or the token of a session.
    Token(Secret),
    /// A user's name and password, or an access key in place of the password.
    Password {
        /// The name.
        user: String,
        /// The password.
        password: Secret,
        /// Where the request comes from, where that is known.
        peer: Option<IpAddr>,
    },
}

/// Authenticates requests and decides about them, from a view of the metadata. Cheap to clone.
#[derive(Clone, Debug)]
pub struct Guard(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    store: Option<Store>,
    policy: watch::Receiver<Arc<Policy>>,
    anonymous: Anonymous,
    limiter: Mutex<Limiter>,
    started: Instant,
    hashing: Semaphore,
    uses: Arc<Uses>,
    _tasks: Vec<OwnedTask>,
}

/// Uses of keys that are not written yet; at most one for every valid key.
type Uses = Mutex<HashMap<KeyId, u64>>;

impl Guard {
    /// A guard that follows this store.
    pub async fn open(store: Store, anonymous: Anonymous) -> Result<Guard, MetaError> {
        let ranges =
            Ranges::new().with(&Identities {}).with(&AccessKeys {}).with(&Roles {}).with(&Sessions {});
        let view = View::open(store.clone(), ranges, ViewOptions::default()).await?;
        let (sender, policy) = watch::channel(Arc::new(Policy::of(&view.snapshot())));
        let uses = Arc::new(Uses::default());
        let tasks = vec![
            OwnedTask::spawn(follow(view, sender)),
            OwnedTask::spawn(note_uses(store.clone(), uses.clone())),
        ];
        Ok(Guard::new(Some(store), policy, anonymous, uses, tasks))
    }

    /// A guard with a fixed policy: nothing changes, and no session can be opened.
    #[must_use]
    pub fn fixed(policy: Policy, anonymous: Anonymous) -> Guard {
        let (_, policy) = watch::channel(Arc::new(policy));
        Guard::new(None, policy, anonymous, Arc::default(), Vec::new())
    }

    fn new(
        store: Option<Store>,
        policy: watch::Receiver<Arc<Policy>>,
        anonymous: Anonymous,
        uses: Arc<Uses>,
        tasks: Vec<OwnedTask>,
    ) -> Guard {
        Guard(Arc::new(Inner {
            store,
            policy,
            anonymous,
            limiter: Mutex::default(),
            started: Instant::now(),
            hashing: Semaphore::new(HASHED_AT_ONCE),
            uses,
            _tasks: tasks,
        }))
    }

    /// What decisions are made from now.
    #[must_use]
    pub fn policy(&self) -> Arc<Policy> {
        self.0.policy.borrow().clone()
    }

    /// Whether this identity may do this; a denial is logged without the credential.
    #[must_use]
    pub fn allows(&self, identity: &Identity, verb: Verb, object: &Object) -> bool {
        let policy = self.policy();
        let decision = decide(&policy, identity, verb, object);
        if !decision.is_allowed() {
            tracing::info!(identity = identity.name, %verb, %object, reason = %decision, "request denied");
        }
        decision.is_allowed()
    }

    /// The identity behind a credential.
    pub async fn authenticate(&self, credential: &Credential) -> Result<Identity, Refused> {
        match credential {
            Credential::None => self.nobody(),
            Credential::Token(text) => self.token(text).await,
            Credential::Password { user, password, peer } => {
                if Token::parse(password.reveal()).is_some() {
                    return self.token(password).await;
                }
                self.password(user, password, *peer).await
            }
        }
    }

    fn nobody(&self) -> Result<Identity, Refused> {
        match self.0.anonymous {
            Anonymous::Refused => Err(Refused::Missing),
            Anonymous::Viewer => Ok(Identity::anonymous("viewer")),
            Anonymous::Admin => Ok(Identity::anonymous("admin")),
        }
    }

    async fn token(&self, text: &Secret) -> Result<Identity, Refused> {
        let token = Token::parse(text.reveal()).ok_or(Refused::Invalid)?;
        let mut policy = self.0.policy.clone();
        if !policy.borrow().knows(&token) {
            let shown = policy.wait_for(|policy| policy.knows(&token));
            if !matches!(tokio::time::timeout(KNOWN_WITHIN, shown).await, Ok(Ok(_))) {
                return Err(Refused::Invalid);
            }
        }
        let now = clock::since_epoch().as_secs();
        let identity = self.policy().identify(&token, now).ok_or(Refused::Invalid)?;
        if let Some(key) = &identity.key {
            self.0.uses.lock().unwrap_or_else(PoisonError::into_inner).insert(key.clone(), now);
        }
        Ok(identity)
    }

    async fn password(&self, user: &str, given: &Secret, peer: Option<IpAddr>) -> Result<Identity, Refused> {
        let limited = [Some(format!("user {user}")), peer.map(|peer| format!("address {peer}"))];
        let now = self.0.started.elapsed();
        let waits = |name: &String| self.limiter().wait(name, now).is_some();
        if limited.iter().flatten().any(waits) {
            return Err(Refused::TooMany);
        }
        let name = IdentityName::new(user).ok();
        let known =
            |policy: &Policy| name.as_ref().and_then(|name| policy.password_of(name)).map(str::to_owned);
        let stored = known(&self.policy());
        let mut is_right = self.is_password(given, stored.as_deref()).await;
        if !is_right {
            // Counted before the wait, so that attempts at the same time are limited too; the pause begins with the answer.
            let answered = self.0.started.elapsed() + KNOWN_WITHIN;
            limited.iter().flatten().for_each(|name| self.limiter().failed(name, answered));
            // It may have been set a moment ago. Unknown users and wrong passwords wait alike.
            let mut policy = self.0.policy.clone();
            let changed = policy.wait_for(|policy| known(policy) != stored);
            let changed = tokio::time::timeout(KNOWN_WITHIN, changed).await;
            let stored = changed.ok().and_then(Result::ok).and_then(|policy| known(&policy));
            is_right = stored.is_some() && self.is_password(given, stored.as_deref()).await;
        }
        let name = name.filter(|_| is_right).ok_or(Refused::Invalid)?;
        limited.iter().flatten().for_each(|name| self.limiter().succeeded(name));
        Ok(Identity::named(name))
    }

    /// Takes as long for a user without a password.
    async fn is_password(&self, given: &Secret, stored: Option<&str>) -> bool {
        self.verify(given, stored.unwrap_or(DECOY)).await && stored.is_some()
    }

    fn limiter(&self) -> std::sync::MutexGuard<'_, Limiter> {
        self.0.limiter.lock().unwrap_or_else(PoisonError::into_inner)
    }

    async fn verify(&self, given: &Secret, stored: &str) -> bool {
        let Ok(_permit) = self.0.hashing.acquire().await else { return false };
        let (given, stored) = (given.clone(), stored.to_owned());
        tokio::task::spawn_blocking(move || password::verify(&given, &stored)).await.unwrap_or(false)
    }

    /// Opens a session for an identity that was authenticated; its token is valid on every host.
    pub async fn open_session(&self, identity: &Identity, ttl: Duration) -> Result<Token, AccessError> {
        let (Some(store), Basis::Known(name)) = (&self.0.store, &identity.basis) else {
            return Err(AccessError::Invalid("only a user or an account can open a session".to_owned()));
        };
        let token = Token::generate(TokenKind::Session);
        let record = SessionRecord {
            identity: name.clone(),
            hash: Hash(token.hash()),
            key: identity.key.clone(),
            expires_at: (clock::since_epoch() + ttl).as_secs(),
            extra: Extra::default(),
        };
        let lease = store.lease_grant(ttl, LeaseId::NONE).await?.id;
        let key = SessionKey { session: SessionId::new(&token.id)? };
        let owner = IdentityKey { identity: name.clone() };
        let txn = Txn::new().when(owner.present()).then(key.put(&record).lease(lease));
        let written = store.commit(txn).await?;
        if !written.succeeded {
            return Err(AccessError::NotFound(format!("identity {name}")));
        }
        self.shows(written.revision).await;
        Ok(token)
    }

    /// Ends a session; one that is unknown has ended already.
    pub async fn close_session(&self, token: &Token) -> Result<(), AccessError> {
        let (Some(store), TokenKind::Session) = (&self.0.store, token.kind) else { return Ok(()) };
        let key = SessionKey { session: SessionId::new(&token.id)? };
        let written = store.delete(key.delete()).await?;
        if written.deleted > 0 {
            self.shows(written.revision).await;
        }
        Ok(())
    }

    /// Waits until decisions are made from this revision or a later one, for a bounded time.
    pub async fn shows(&self, revision: Revision) {
        let mut policy = self.0.policy.clone();
        let shown = policy.wait_for(|policy| policy.revision >= revision);
        if tokio::time::timeout(SHOWN_WITHIN, shown).await.is_err() {
            tracing::warn!(%revision, "the view of access has not caught up");
        }
    }
}

/// Compiles every change of the view.
async fn follow(view: View, sender: watch::Sender<Arc<Policy>>) {
    let mut changes = view.changes();
    sender.send_replace(Arc::new(Policy::of(&changes.mark_seen())));
    while let Some(delta) = changes.next().await {
        sender.send_replace(Arc::new(Policy::of(&delta.after)));
    }
}

/// Writes when keys were last used, now and then.
async fn note_uses(store: Store, uses: Arc<Uses>) {
    loop {
        tokio::time::sleep(NOTE_USES_EVERY).await;
        let noted = std::mem::take(&mut *uses.lock().unwrap_or_else(PoisonError::into_inner));
        for (id, at) in noted {
            let record = LastUse { at, extra: Extra::default() };
            let exists = AccessKeyKey { id: id.clone() }.present();
            let txn = Txn::new().when(exists).then(LastUseKey { id }.put(&record));
            if let Err(error) = store.commit(txn).await {
                tracing::debug!(%error, "last use of an access key was not recorded");
            }
        }
    }
}
