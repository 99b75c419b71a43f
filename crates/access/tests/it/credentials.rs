//! Credentials through their lives: issued, wrong, expired, rotated, revoked; passwords and sessions.

use std::time::Duration;

use capstan_access::api::{self, Change, NewIdentity, NewKey};
use capstan_access::keys::{IdentityName, RoleName};
use capstan_access::spec::IdentityKind;
use capstan_access::{AccessError, Anonymous, Credential, Guard, Refused, Secret, Verb};
use capstan_meta::embedded::{Embedded, Options};
use capstan_meta::{Range, Store};
use capstan_testkit::eventually;

const PASSWORD: &str = "planted-password-of-ann";

fn store() -> Store {
    Store::new(Embedded::in_memory(Options::default()))
}

fn name(text: &str) -> IdentityName {
    IdentityName::new(text).unwrap()
}

async fn ann(store: &Store) {
    let new = NewIdentity {
        name: name("ann"),
        kind: IdentityKind::User,
        password: Some(Secret::new(PASSWORD)),
        roles: vec![RoleName::new("viewer").unwrap()],
        grants: vec!["docs:database/shop:read".parse().unwrap()],
    };
    api::identity_create(store, &new, "test").await.unwrap();
}

fn new_key(ttl: Option<Duration>) -> NewKey {
    NewKey { identity: name("ann"), note: String::new(), scope: None, ttl }
}

fn token(secret: &Secret) -> Credential {
    Credential::Token(secret.clone())
}

/// Waits until a token is refused.
async fn ended(guard: &Guard, text: &Secret, what: &str) {
    eventually(what, Duration::from_secs(10), async || match guard.authenticate(&token(text)).await {
        Err(Refused::Invalid) => Ok(()),
        other => Err(format!("{other:?}")),
    })
    .await;
}

fn password(text: &str) -> Credential {
    Credential::Password { user: "ann".to_owned(), password: Secret::new(text), peer: None }
}

#[tokio::test]
async fn a_key_is_accepted_until_it_expires_or_is_revoked() {
    let store = store();
    ann(&store).await;
    let guard = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    let key = api::key_create(&store, &new_key(None), "test").await.unwrap();
    let identity = guard.authenticate(&token(&key.text)).await.unwrap();
    assert_eq!(identity.name, "ann");
    assert!(guard.allows(&identity, Verb::Read, &"docs:database/shop".parse().unwrap()));
    assert!(!guard.allows(&identity, Verb::Write, &"docs:database/shop".parse().unwrap()));
    assert_eq!(guard.authenticate(&Credential::None).await, Err(Refused::Missing));
    let mut wrong = key.text.reveal().to_owned();
    wrong.replace_range(wrong.len() - 1.., if wrong.ends_with('0') { "1" } else { "0" });
    assert_eq!(guard.authenticate(&token(&Secret::new(wrong))).await, Err(Refused::Invalid));
    let expired = api::key_create(&store, &new_key(Some(Duration::ZERO)), "test").await.unwrap();
    assert_eq!(guard.authenticate(&token(&expired.text)).await, Err(Refused::Invalid));

    let other = api::key_rotate(&store, &key.id, Duration::from_secs(60), "test").await.unwrap();
    assert!(guard.authenticate(&token(&other.text)).await.is_ok());
    assert!(guard.authenticate(&token(&key.text)).await.is_ok(), "both are valid during the overlap");
    let again = api::key_rotate(&store, &key.id, Duration::from_secs(60), "test").await;
    assert!(matches!(again, Err(AccessError::Invalid(_))), "{again:?}");
    let last = api::key_rotate(&store, &other.id, Duration::ZERO, "test").await.unwrap();
    assert!(guard.authenticate(&token(&last.text)).await.is_ok());
    assert_eq!(guard.authenticate(&token(&other.text)).await, Err(Refused::Invalid));

    api::key_revoke(&store, &last.id, "test").await.unwrap();
    ended(&guard, &last.text, "the revoked key is refused").await;
    // An identity that was known keeps nothing once its key is gone.
    let identity = identity.with_key(last.id);
    assert!(!guard.allows(&identity, Verb::Read, &"docs:database/shop".parse().unwrap()));
}

#[tokio::test]
async fn a_password_signs_in_and_guessing_is_slowed_down() {
    let store = store();
    ann(&store).await;
    let guard = Guard::open(store.clone(), Anonymous::Viewer).await.unwrap();
    assert_eq!(guard.authenticate(&password(PASSWORD)).await.unwrap().name, "ann");
    assert_eq!(guard.authenticate(&Credential::None).await.unwrap().name, "anonymous");
    // Each pause is twice as long as the one before: the first ones may be over when a busy machine tries again.
    let mut refused = 0;
    while guard.authenticate(&password("not-the-password")).await == Err(Refused::Invalid) {
        refused += 1;
    }
    assert!((6..12).contains(&refused), "{refused}");
    assert_eq!(guard.authenticate(&password(PASSWORD)).await, Err(Refused::TooMany));
    let stranger =
        Credential::Password { user: "bob".to_owned(), password: Secret::new(PASSWORD), peer: None };
    assert_eq!(guard.authenticate(&stranger).await, Err(Refused::Invalid));
}

/// The guard's view may be a moment behind the change that allows a user to sign in.
#[tokio::test]
async fn a_user_who_was_allowed_a_moment_ago_signs_in() {
    let store = store();
    ann(&store).await;
    let ann = name("ann");
    api::identity_change(&store, &ann, &Change::SetDisabled(true), "test").await.unwrap();
    let guard = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    assert_eq!(guard.authenticate(&password(PASSWORD)).await, Err(Refused::Invalid));
    let enabled = Change::SetDisabled(false);
    let enable = api::identity_change(&store, &ann, &enabled, "test");
    let right = password(PASSWORD);
    let (changed, signed_in) = tokio::join!(enable, guard.authenticate(&right));
    changed.unwrap();
    assert_eq!(signed_in.unwrap().name, "ann");
}

#[tokio::test]
async fn a_session_is_valid_on_every_host_and_ends_with_its_identity() {
    let store = store();
    ann(&store).await;
    let one = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    let two = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    let identity = one.authenticate(&password(PASSWORD)).await.unwrap();
    let session = one.open_session(&identity, Duration::from_secs(60)).await.unwrap();
    assert_eq!(two.authenticate(&token(&session.text())).await.unwrap().name, "ann");
    one.close_session(&session).await.unwrap();
    assert_eq!(one.authenticate(&token(&session.text())).await, Err(Refused::Invalid));

    let key = api::key_create(&store, &new_key(None), "test").await.unwrap();
    let by_key = one.authenticate(&token(&key.text)).await.unwrap();
    let session = one.open_session(&by_key, Duration::from_secs(60)).await.unwrap();
    assert!(one.authenticate(&token(&session.text())).await.is_ok());
    api::key_revoke(&store, &key.id, "test").await.unwrap();
    ended(&one, &session.text(), "the session ends with its key").await;

    let session = one.open_session(&identity, Duration::from_secs(60)).await.unwrap();
    api::identity_change(&store, &name("ann"), &Change::SetDisabled(true), "test").await.unwrap();
    ended(&one, &session.text(), "a disabled user is refused").await;
    api::identity_remove(&store, &name("ann"), "test").await.unwrap();
    assert!(one.open_session(&identity, Duration::from_secs(60)).await.is_err());
}

#[tokio::test]
async fn no_secret_is_stored_or_shown() {
    let store = store();
    ann(&store).await;
    let key = api::key_create(&store, &new_key(None), "test").await.unwrap();
    let guard = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    let identity = guard.authenticate(&token(&key.text)).await.unwrap();
    let session = guard.open_session(&identity, Duration::from_secs(60)).await.unwrap();
    let mut shown = format!("{key:?} {session:?} {identity:?} {guard:?} {:?}", guard.policy());
    shown += &serde_json::to_string(&api::list(&store).await.unwrap()).unwrap();
    let everything = store.range(Range::prefix("/")).await.unwrap();
    for kv in &everything.kvs {
        shown += &format!("{} {}\n", kv.key_text(), String::from_utf8_lossy(&kv.value));
    }
    assert!(shown.contains("$argon2id$") && shown.contains(key.id.as_str()), "{shown}");
    let secrets = [PASSWORD.to_owned(), secret_part(&key.text), secret_part(&session.text())];
    for secret in secrets {
        assert!(!shown.contains(&secret), "{secret} is shown in {shown}");
    }
    // Hashes are in the store and in no list or debug output.
    let debug = format!("{:?}", guard.policy());
    assert!(!debug.contains("argon2id") && debug.contains("[hash]"), "{debug}");
}

fn secret_part(token: &Secret) -> String {
    token.reveal().rsplit('_').next().unwrap().to_owned()
}

#[tokio::test]
async fn the_first_start_makes_one_admin() {
    let store = store();
    let first = api::first_admin(&store, "test").await.unwrap().unwrap();
    assert!(api::first_admin(&store, "test").await.unwrap().is_none());
    let guard = Guard::open(store.clone(), Anonymous::Refused).await.unwrap();
    let admin = guard.authenticate(&token(&first.text)).await.unwrap();
    assert!(guard.allows(&admin, Verb::Admin, &"access".parse().unwrap()));
    let local = api::local_key(&store, None).await.unwrap();
    assert_eq!(api::local_key(&store, Some(&local)).await.unwrap(), local, "a valid key is kept");
    assert_ne!(api::local_key(&store, Some(&Secret::new("csk_nonsense"))).await.unwrap(), local);
}

#[tokio::test]
async fn what_makes_no_sense_is_refused() {
    let store = store();
    ann(&store).await;
    let change = async |change: Change| api::identity_change(&store, &name("ann"), &change, "test").await;
    let role = |text: &str| RoleName::new(text).unwrap();
    assert!(matches!(change(Change::AddRole(role("nothing"))).await, Err(AccessError::NotFound(_))));
    assert!(change(Change::RemoveRole(role("admin"))).await.is_err());
    assert!(change(Change::SetPassword(Secret::new("short"))).await.is_err());
    change(Change::AddRole(role("admin"))).await.unwrap();
    change(Change::AddRole(role("admin"))).await.unwrap();
    assert!(api::role_set(&store, &role("admin"), &["*:view".parse().unwrap()], "test").await.is_err());
    assert!(api::role_remove(&store, &role("nothing"), "test").await.is_err());
    let stranger = NewKey { identity: name("bob"), ..new_key(None) };
    assert!(matches!(api::key_create(&store, &stranger, "test").await, Err(AccessError::NotFound(_))));
}
