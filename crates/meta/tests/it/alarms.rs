//! Do alarms work as on a real etcd? Raised and disarmed by clients, listed by etcdctl, and with the same effect.

use capstan_meta::embedded::{self, Embedded};
use capstan_meta::{Backend, MetaError, Put, wire};
use capstan_testkit::TempDir;
use etcd_client::{AlarmAction, AlarmType, Client, Txn, TxnOp};
use tonic::Code;

use crate::auth::{Side, refusal};

async fn set(client: &mut Client, action: AlarmAction) {
    let member = client.member_list().await.unwrap().members()[0].id();
    let mut options = etcd_client::AlarmOptions::new();
    options.with_member(member);
    client.alarm(action, AlarmType::Nospace, Some(options)).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_raised_alarm_refuses_puts_until_it_is_disarmed() {
    for side in &Side::both().await {
        let name = side.name;
        let mut client = Client::connect([&side.endpoint], None).await.unwrap();
        client.put("a", "1", None).await.unwrap();
        let lease = client.lease_grant(600, None).await.unwrap().id();
        assert_eq!(side.ctl("alarm list").await.unwrap(), "", "{name}");
        set(&mut client, AlarmAction::Activate).await;
        let listed = side.ctl("alarm list").await.unwrap();
        assert!(
            listed.starts_with("memberID:") && listed.trim_end().ends_with("alarm:NOSPACE"),
            "{name}: {listed}"
        );

        let full = (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded".to_owned());
        assert_eq!(refusal(client.put("a", "2", None).await), full, "{name}");
        let put = Txn::new().and_then([TxnOp::put("a", "2", None)]);
        assert_eq!(refusal(client.txn(put).await), full, "{name}");
        assert_eq!(refusal(client.lease_grant(600, None).await), full, "{name}");
        let status = side.ctl("endpoint status --write-out=json").await.unwrap();
        assert!(status.contains("NOSPACE"), "{name}: {status}");

        // What does not take space goes on.
        assert_eq!(client.get("a", None).await.unwrap().count(), 1, "{name}");
        client.lease_keep_alive(lease).await.unwrap();
        client.lease_revoke(lease).await.unwrap();
        client.txn(Txn::new().and_then([TxnOp::get("a", None)])).await.unwrap();
        let deleted = client.delete("a", None).await.unwrap();
        client.compact(deleted.header().unwrap().revision(), None).await.unwrap();
        assert_eq!(refusal(client.put("a", "2", None).await), full, "{name}: deleting does not disarm");

        let disarmed = side.ctl("alarm disarm").await.unwrap();
        assert!(disarmed.trim_end().ends_with("alarm:NOSPACE"), "{name}: {disarmed}");
        assert_eq!(side.ctl("alarm list").await.unwrap(), "", "{name}");
        client.put("a", "2", None).await.unwrap_or_else(|error| panic!("{name}: {error}"));
    }
}

#[tokio::test]
async fn an_alarm_survives_a_restart() {
    let dir = TempDir::new("alarm").unwrap();
    let open =
        || Embedded::open(dir.path(), embedded::Options { quota_bytes: 100_000, ..Default::default() });
    let store = open().await.unwrap();
    store.put(Put::new("a", "1")).await.unwrap();
    assert_eq!(store.put(Put::new("b", vec![0; 200_000])).await, Err(MetaError::NoSpace));
    store.close().await.unwrap();
    let store = open().await.unwrap();
    assert!(store.has_no_space_alarm().await.unwrap());
    assert_eq!(store.put(Put::new("b", "1")).await, Err(MetaError::NoSpace));
    store.set_no_space_alarm(false).await.unwrap();
    store.put(Put::new("b", "1")).await.unwrap();
    store.close().await.unwrap();
    let store = open().await.unwrap();
    assert!(!store.has_no_space_alarm().await.unwrap());
    store.close().await.unwrap();
}

#[tokio::test]
async fn quota_and_request_size_are_as_the_options_say() {
    let options = embedded::Options { request_bytes: 4 << 20, ..Default::default() };
    let limits = wire::Limits { request_bytes: 4 << 20, ..Default::default() };
    let store = Embedded::in_memory(options);
    let side = Side::serve(store.clone(), wire::Options { limits, ..Default::default() }).await;
    let mut client = Client::connect([&side.endpoint], None).await.unwrap();
    client.put("large", vec![0; 3 << 20], None).await.unwrap();
    let too_large = (Code::InvalidArgument, "etcdserver: request is too large".to_owned());
    assert_eq!(refusal(client.put("larger", vec![0; 4 << 20], None).await), too_large);
    assert_eq!(store.put(Put::new("larger", vec![0; 4 << 20])).await, Err(MetaError::TooLarge));
}
