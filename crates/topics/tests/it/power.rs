//! One copy and a power cut: whatever was not synced is lost, torn or reordered, and nothing that was acknowledged is.

use std::collections::BTreeMap;
use std::ops::Range;

use capstan_client::wire::capstan::topics::v1::Record;
use capstan_client::{ClientError, Producer};
use capstan_testkit::disk::{Cut, SimDisk};
use capstan_testkit::{eventually, seed};

use crate::cluster::{Cluster, SOON};
use crate::retention::{earliest, offset};

const TOPIC: &str = "/default/orders";
/// Messages that are published before their acknowledgments are waited for.
const BATCH: u64 = 8;

fn value(number: u64) -> Record {
    Record { value: Some(number.to_string().into()), ..Record::default() }
}

/// Publishes messages with these numbers, and returns their offsets.
async fn publish(producer: &mut Producer, numbers: Range<u64>) -> Result<Vec<u64>, ClientError> {
    let mut done = Vec::new();
    for number in numbers {
        done.extend(producer.send(vec![value(number)]).await?);
    }
    done.extend(producer.flush().await?);
    Ok(done.iter().map(|batch| batch.offset).collect())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_power_cut_loses_nothing_that_was_acknowledged() {
    let mut rng = seed::rng(rand::random());
    let mut device = SimDisk::new();
    let mut cluster = Cluster::start(&[]).await;
    let mut acknowledged: BTreeMap<u64, u64> = BTreeMap::new();
    let mut next = 0;
    for round in 0..seed::soak(1, 25) {
        for how in Cut::ALL {
            cluster.begin_on("a", Some(device.clone())).await;
            let client = cluster.own_client();
            let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
            let publishing = async {
                for attempt in 0.. {
                    // A producer of its own each time: what the last one had on its way is given up.
                    let mut producer = client.producer(TOPIC, &format!("{round}-{how:?}-{attempt}"));
                    loop {
                        let numbers = next..next + BATCH;
                        next = numbers.end;
                        let Ok(offsets) = publish(&mut producer, numbers.clone()).await else { break };
                        assert_eq!(offsets.len() as u64, BATCH);
                        acknowledged.extend(numbers.zip(offsets));
                    }
                }
            };
            // Until the device fails: then no acknowledgment comes any more.
            let publishing = async {
                tokio::select! {
                    () = publishing => {}
                    _ = stopped => {}
                }
            };
            let calls = device.calls();
            let cutting = async {
                eventually("something is written", SOON, async || {
                    if device.calls() > calls + 60 { Ok(()) } else { Err(device.calls()) }
                })
                .await;
                let after = device.cut(how, &mut rng);
                stop.send(()).unwrap();
                after
            };
            let ((), after) = tokio::join!(publishing, cutting);
            cluster.lose("a").await;
            device = after;
        }
    }
    cluster.begin_on("a", Some(device)).await;
    let client = cluster.own_client();
    let mut messages = client.read(TOPIC, earliest(), 0).await.unwrap();
    let mut stored = BTreeMap::new();
    while let Some(message) = messages.message().await.unwrap() {
        let number: u64 = String::from_utf8(message.payload.to_vec()).unwrap().parse().unwrap();
        assert_eq!(offset(&message), stored.len() as u64, "offsets have no gaps");
        stored.insert(offset(&message), number);
    }
    assert!(acknowledged.len() > 8, "{} acknowledged", acknowledged.len());
    for (number, offset) in &acknowledged {
        assert_eq!(stored.get(offset), Some(number), "acknowledged at {offset}");
    }
}
