//! The storage scenarios of the document's program that are not one key's conformance.

use capstan_fleet::FleetError;
use capstan_fleet::Lrn;
use capstan_fleet::api::Asker;
use capstan_fleet::encoding::Moment;
use capstan_fleet::facts::Facts;
use capstan_fleet::history::Outcome;
use capstan_fleet::records::fetch;
use capstan_fleet::release::StepKind::Barrier;
use capstan_fleet::status::{HostStatus, Request};

use crate::rig::Rig;

fn operator() -> Asker {
    Asker { by: "ann".to_owned(), reason: "tests".to_owned() }
}

fn a_request() -> Request {
    Request {
        version: "1.1.0".to_owned(),
        servers: vec![Lrn(0), Lrn(1), Lrn(10)],
        started_at: Moment::from_unix(1_541_147_029),
        generation: 4,
        ..Request::default()
    }
}

#[tokio::test]
async fn request_is_not_found_and_then_read_as_it_was_written() {
    let rig = Rig::in_memory();
    assert_eq!(rig.request().await, None);
    rig.put(&rig.tree.current(), &a_request()).await;
    assert_eq!(rig.request().await, Some(a_request()));
}

#[tokio::test]
async fn clear_is_refused_without_a_request_and_while_it_runs_and_removes_reports() {
    let rig = Rig::in_memory();
    let refused = rig.fleet().recover(None, &operator()).await.unwrap_err();
    assert!(matches!(refused, FleetError::NotFound(_) | FleetError::NothingUnderWay), "{refused:?}");
    rig.put(&rig.tree.current(), &a_request()).await;
    rig.put(&rig.tree.host_status(Lrn(10)), &HostStatus::default()).await;
    rig.publish("1.1.0", &[Barrier]).await;
    let refused = rig.fleet().recover(None, &operator()).await.unwrap_err();
    assert!(refused.to_string().contains("not stopped"), "{refused}");
    assert!(rig.status(10).await.is_some(), "nothing was touched");
    rig.put(&rig.tree.current(), &Request { stop: true, ..a_request() }).await;
    rig.fleet().recover(None, &operator()).await.unwrap();
    assert_eq!((rig.request().await, rig.status(10).await), (None, None));
    assert_eq!(rig.history(4).await.unwrap().outcome, Some(Outcome::Stopped));
}

#[tokio::test]
async fn snapshot_is_empty_and_then_full() {
    let rig = Rig::in_memory();
    let look = async || {
        let records = fetch(&rig.store, &rig.tree).await.unwrap();
        Facts::read(&records, &rig.tree, Moment::from_unix(1_541_147_030))
    };
    let empty = look().await;
    assert!(empty.request.is_none() && empty.registry.is_empty() && empty.statuses.is_empty());
    rig.put(&rig.tree.current(), &a_request()).await;
    for lrn in [0, 1, 10] {
        rig.register(Lrn(lrn)).await;
    }
    for lrn in [0, 10] {
        let status = HostStatus { version: "1.1.0".to_owned(), step: 1, ..HostStatus::default() };
        rig.put(&rig.tree.host_status(Lrn(lrn)), &status).await;
    }
    let full = look().await;
    assert_eq!(full.request.unwrap().record, a_request());
    assert_eq!(full.registry.into_iter().collect::<Vec<_>>(), [Lrn(0), Lrn(1), Lrn(10)]);
    assert_eq!(full.statuses.into_keys().collect::<Vec<_>>(), [Lrn(0), Lrn(10)]);
}
