//! The etcd-client crate with users: transactions, leases, watches, and tokens that are not good any more.

use std::time::Duration;

use etcd_client::{
    Client, Compare, CompareOp, DeleteOptions, EventType, GetOptions, LeaseTimeToLiveOptions, PutOptions,
    Txn, TxnOp, WatchOptions,
};
use tonic::Code;

use super::{Side, USERS, denied, refusal};

const DEADLINE: Duration = Duration::from_secs(20);

/// Both sides with users, and the name of each for messages.
async fn both_with_users() -> [Side; 2] {
    let sides = Side::both().await;
    for side in &sides {
        side.prepare(&USERS).await;
        side.prepare(&["auth enable"]).await;
    }
    sides
}

async fn signed_in(side: &Side, user: &str) -> Client {
    let password = if user == "root" { "secret" } else { "pw" };
    side.client(user, password).await.unwrap_or_else(|error| panic!("{}: {user}: {error}", side.name))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_transaction_needs_every_permission_that_its_parts_need() {
    for side in &both_with_users().await {
        let (mut ann, mut root) = (signed_in(side, "ann").await, signed_in(side, "root").await);
        root.put("z", "1", None).await.unwrap();
        let put = |key: &str| TxnOp::put(key, "1", None);
        let allowed = Txn::new()
            .when([Compare::version("a", CompareOp::Equal, 0)])
            .and_then([put("a"), TxnOp::get("b", None)])
            .or_else([TxnOp::delete("a", None)]);
        assert!(ann.txn(allowed).await.unwrap().succeeded(), "{}", side.name);
        let refused = [
            ("a compare", Txn::new().when([Compare::version("z", CompareOp::Equal, 1)]).and_then([put("a")])),
            ("a put", Txn::new().and_then([put("a"), put("z")])),
            ("a put in the branch not taken", Txn::new().and_then([put("a")]).or_else([put("z")])),
            ("a read", Txn::new().and_then([TxnOp::get("z", None)])),
            (
                "a read of a range",
                Txn::new().and_then([TxnOp::get("a", Some(GetOptions::new().with_range("z")))]),
            ),
            ("a deletion", Txn::new().and_then([TxnOp::delete("z", None)])),
            (
                "a deletion of a range",
                Txn::new().and_then([TxnOp::delete("b", Some(DeleteOptions::new().with_range("z")))]),
            ),
        ];
        for (what, txn) in refused {
            assert_eq!(refusal(ann.txn(txn).await), denied(), "{}: {what}", side.name);
        }
        let key = root.get("z", None).await.unwrap();
        assert_eq!(key.kvs()[0].version(), 1, "{}: a refused transaction left a trace", side.name);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lease_is_revoked_only_by_users_that_may_write_all_its_keys() {
    for side in &both_with_users().await {
        let (mut ann, mut root) = (signed_in(side, "ann").await, signed_in(side, "root").await);
        let lease = ann.lease_grant(600, None).await.unwrap().id();
        let with_lease = || Some(PutOptions::new().with_lease(lease));
        ann.put("a", "1", with_lease()).await.unwrap();
        root.put("z", "1", with_lease()).await.unwrap();
        assert_eq!(refusal(ann.lease_revoke(lease).await), denied(), "{}", side.name);
        // Its keys are not this user's any more, so it may not be given more of them.
        assert_eq!(refusal(ann.put("aa", "1", with_lease()).await), denied(), "{}", side.name);
        assert_eq!(root.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().count(), 2);
        let keys = Some(LeaseTimeToLiveOptions::new().with_keys());
        assert_eq!(root.lease_time_to_live(lease, keys).await.unwrap().keys().len(), 2);
        root.delete("z", None).await.unwrap();
        ann.lease_revoke(lease).await.unwrap_or_else(|error| panic!("{}: {error}", side.name));
        assert_eq!(root.get("", Some(GetOptions::new().with_all_keys())).await.unwrap().count(), 0);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_watch_shows_a_user_only_what_it_may_read() {
    for side in &both_with_users().await {
        let (mut ann, mut root) = (signed_in(side, "ann").await, signed_in(side, "root").await);
        let range = || Some(WatchOptions::new().with_range("c"));
        let mut watch =
            ann.watch("a", range()).await.unwrap_or_else(|error| panic!("{}: {error}", side.name));
        root.put("z", "1", None).await.unwrap();
        root.put("b", "1", None).await.unwrap();
        let message = loop {
            let message = tokio::time::timeout(DEADLINE, watch.message()).await.expect("no event");
            // The first one may only say that the watch was created.
            if let Some(message) = message.unwrap().filter(|message| !message.events().is_empty()) {
                break message;
            }
        };
        let events: Vec<_> =
            message.events().iter().map(|event| event.kv().unwrap().key().to_vec()).collect();
        assert_eq!(events, [b"b".to_vec()], "{}", side.name);
        assert_eq!(message.events()[0].event_type(), EventType::Put);
        for (user, key, options) in [
            ("ann", "a", Some(WatchOptions::new().with_range("d"))),
            ("ann", "z", None),
            ("ann", "", Some(WatchOptions::new().with_all_keys())),
            ("writer", "a", None),
            ("nobody", "a", None),
        ] {
            let mut client = signed_in(side, user).await;
            let why = refused_watch(&mut client, key, options).await;
            assert!(why.contains("permission denied"), "{}: {user} watches {key}: {why}", side.name);
        }
        let mut stranger = Client::connect([&side.endpoint], None).await.unwrap();
        let why = refused_watch(&mut stranger, "a", None).await;
        let empty = "rpc error: code = InvalidArgument desc = etcdserver: user name is empty";
        assert_eq!(why, empty, "{}: a stranger watches", side.name);
    }
}

/// Why a watch is canceled, at once or by one of its first messages.
async fn refused_watch(client: &mut Client, key: &str, options: Option<WatchOptions>) -> String {
    let mut watch = match client.watch(key, options).await {
        Ok(watch) => watch,
        Err(error) => return error.to_string(),
    };
    loop {
        let message = tokio::time::timeout(DEADLINE, watch.message()).await;
        match message.expect("the watch is not refused") {
            Ok(Some(message)) if message.canceled() => return message.cancel_reason().to_owned(),
            Ok(Some(message)) if message.created() && message.events().is_empty() => {}
            Ok(other) => return format!("{other:?}"),
            Err(error) => return error.to_string(),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_password_and_a_deleted_user_end_their_tokens() {
    for side in &both_with_users().await {
        let mut root = signed_in(side, "root").await;
        let (mut ann, mut reader) = (signed_in(side, "ann").await, signed_in(side, "reader").await);
        ann.put("a", "1", None).await.unwrap();
        root.user_change_password("ann", "other").await.unwrap();
        let invalid = (Code::Unauthenticated, "etcdserver: invalid auth token".to_owned());
        assert_eq!(refusal(ann.put("a", "2", None).await), invalid, "{}", side.name);
        assert!(side.client("ann", "pw").await.is_err(), "{}", side.name);
        let mut ann = side.client("ann", "other").await.unwrap();
        ann.put("a", "2", None).await.unwrap();
        root.user_delete("reader").await.unwrap();
        assert_eq!(refusal(reader.get("a", None).await), invalid, "{}", side.name);
        // A role that is taken away works at once, with the same token.
        root.user_revoke_role("ann", "ab").await.unwrap();
        assert_eq!(refusal(ann.put("a", "3", None).await), denied(), "{}", side.name);
        root.auth_disable().await.unwrap();
        let mut stranger = Client::connect([&side.endpoint], None).await.unwrap();
        stranger.put("a", "4", None).await.unwrap_or_else(|error| panic!("{}: {error}", side.name));
    }
}

/// What etcd 3.4 leaves open to strangers and its later versions close.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_token_nothing_is_changed_and_nothing_is_shown() {
    let side = Side::embedded(capstan_meta::wire::Options::default()).await;
    side.prepare(&USERS).await;
    let mut early = Client::connect([&side.endpoint], None).await.unwrap();
    let lease = early.lease_grant(600, None).await.unwrap().id();
    side.prepare(&["auth enable"]).await;
    let empty = (Code::InvalidArgument, "etcdserver: user name is empty".to_owned());
    assert_eq!(refusal(early.put("a", "1", None).await), empty);
    assert_eq!(refusal(early.get("a", None).await), empty);
    assert_eq!(refusal(early.delete("a", None).await), empty);
    assert_eq!(refusal(early.txn(Txn::new()).await), empty);
    assert_eq!(refusal(early.lease_grant(5, None).await), empty);
    assert_eq!(refusal(early.lease_revoke(lease).await), empty);
    assert_eq!(refusal(early.lease_time_to_live(lease, None).await), empty);
    assert_eq!(refusal(early.leases().await), empty);
    assert_eq!(refusal(early.lease_keep_alive(lease).await), empty);
    assert_eq!(refusal(early.compact(1, None).await), empty);
    assert_eq!(refusal(early.lock("l", None).await), empty);
    assert_eq!(refusal(early.unlock("l/1").await), empty);
    assert_eq!(refusal(early.campaign("e", "1", lease).await), empty);
    assert_eq!(refusal(early.leader("e").await), empty);
    assert_eq!(refusal(early.observe("e").await), empty);
    assert_eq!(refusal(early.member_list().await), empty);
    assert_eq!(refusal(early.hash().await), empty);
    assert_eq!(refusal(early.hash_kv(0).await), empty);
    assert_eq!(refusal(early.defragment().await), empty);
    assert_eq!(refusal(early.snapshot().await), empty);
    assert_eq!(refusal(early.user_list().await), empty);
    assert_eq!(refusal(early.role_list().await), empty);
    assert_eq!(refusal(early.user_get("ann").await), empty);
    assert_eq!(refusal(early.role_get("ab").await), empty);
    assert_eq!(refusal(early.auth_disable().await), empty);
    let mut ann = signed_in(&side, "ann").await;
    assert_eq!(refusal(ann.compact(1, None).await), denied());
    assert_eq!(refusal(ann.lock("z", None).await), denied());
    assert_eq!(refusal(ann.hash().await), denied());
    assert_eq!(refusal(ann.snapshot().await), denied());
    ann.lock("a", None).await.unwrap();
    ann.lease_keep_alive(lease).await.unwrap();
}
