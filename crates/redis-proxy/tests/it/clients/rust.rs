//! The `redis` crate with its asynchronous cluster client.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::time::Duration;

use anyhow::ensure;
use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use redis::{AsyncCommands, ProtocolVersion, Script, streams::StreamReadReply};

use super::clusters;

async fn connect(seeds: &[SocketAddr], protocol: ProtocolVersion) -> anyhow::Result<ClusterConnection> {
    let urls: Vec<String> = seeds.iter().map(|seed| format!("redis://{seed}")).collect();
    let client = ClusterClient::builder(urls).use_protocol(protocol).build()?;
    Ok(client.get_async_connection().await?)
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_crate_resp2() -> anyhow::Result<()> {
    workload(ProtocolVersion::RESP2).await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_crate_resp3() -> anyhow::Result<()> {
    workload(ProtocolVersion::RESP3).await
}

async fn workload(protocol: ProtocolVersion) -> anyhow::Result<()> {
    for cluster in clusters().await? {
        let mut db = connect(&cluster.seeds(), protocol).await?;
        data(&mut db).await?;
        scripts_and_transactions(&mut db).await?;
        pipelines(&mut db).await?;
        blocking(&mut db, &cluster.seeds(), protocol).await?;
        refusals(&mut db).await?;
    }
    Ok(())
}

async fn data(db: &mut ClusterConnection) -> anyhow::Result<()> {
    for number in 0..200 {
        let () = db.set(format!("rs{number}"), number).await?;
        let got: i64 = db.get(format!("rs{number}")).await?;
        assert_eq!(got, number);
    }
    let () = db.hset_multiple("rs-h", &[("a", 1), ("b", 2)]).await?;
    let all: HashMap<String, i64> = db.hgetall("rs-h").await?;
    assert_eq!(all, HashMap::from([("a".to_owned(), 1), ("b".to_owned(), 2)]));
    let () = db.rpush("rs-l", &[1, 2, 3]).await?;
    let list: Vec<i64> = db.lrange("rs-l", 0, -1).await?;
    assert_eq!(list, [1, 2, 3]);
    let () = db.sadd("{rs}1", &["a", "b"]).await?;
    let () = db.sadd("{rs}2", &["b"]).await?;
    let both: Vec<String> = db.sinter(&["{rs}1", "{rs}2"]).await?;
    assert_eq!(both, ["b"]);
    let () = db.zadd("rs-z", "m", 1.5).await?;
    let score: f64 = db.zscore("rs-z", "m").await?;
    assert_eq!(score, 1.5);
    let id: String = db.xadd("rs-x", "*", &[("f", "v")]).await?;
    let read: StreamReadReply = db.xread(&["rs-x"], &["0"]).await?;
    assert_eq!(read.keys[0].ids[0].id, id);
    let large = vec![7u8; 3_000_000];
    let () = db.set("rs-large", &large).await?;
    let got: Vec<u8> = db.get("rs-large").await?;
    ensure!(got == large, "a large value came back different");
    Ok(())
}

async fn scripts_and_transactions(db: &mut ClusterConnection) -> anyhow::Result<()> {
    let script = Script::new("redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])");
    for number in 0..5 {
        let got: i64 = script.key(format!("rs-script{number}")).arg(number).invoke_async(db).await?;
        assert_eq!(got, number);
    }
    let mut transaction = redis::pipe();
    transaction.atomic().set("{rs-tx}a", 1).ignore().incr("{rs-tx}a", 4).get("{rs-tx}a");
    let got: (i64, i64) = transaction.query_async(db).await?;
    assert_eq!(got, (5, 5));
    Ok(())
}

async fn pipelines(db: &mut ClusterConnection) -> anyhow::Result<()> {
    let mut pipe = redis::pipe();
    for number in 0..300 {
        pipe.set(format!("{{rs-p}}{number}"), number).ignore().get(format!("{{rs-p}}{number}"));
    }
    let got: Vec<i64> = pipe.query_async(db).await?;
    assert_eq!(got, (0..300).collect::<Vec<_>>());
    let keys: Vec<String> = (0..300).map(|number| format!("{{rs-p}}{number}")).collect();
    let deleted: i64 = redis::cmd("DEL").arg(&keys).query_async(db).await?;
    assert_eq!(deleted, 300);
    Ok(())
}

async fn blocking(
    db: &mut ClusterConnection,
    seeds: &[SocketAddr],
    protocol: ProtocolVersion,
) -> anyhow::Result<()> {
    let mut waiter = connect(seeds, protocol).await?;
    let woken = async move { waiter.blpop::<_, (String, String)>("{rs-b}l", 20.0).await };
    let busy = async {
        for number in 0..50 {
            let () = db.set("{rs-b}other", number).await?;
        }
        db.rpush::<_, _, i64>("{rs-b}l", "woken").await
    };
    let (woken, busy) =
        tokio::time::timeout(Duration::from_secs(30), async { tokio::join!(woken, busy) }).await?;
    busy?;
    assert_eq!(woken?, ("{rs-b}l".to_owned(), "woken".to_owned()));
    Ok(())
}

async fn refusals(db: &mut ClusterConnection) -> anyhow::Result<()> {
    let wrong = db.lpush::<_, _, i64>("rs0", 1).await.unwrap_err();
    ensure!(wrong.code() == Some("WRONGTYPE"), "{wrong}");
    let wrong = redis::cmd("GET").query_async::<()>(db).await.unwrap_err();
    ensure!(wrong.to_string().contains("wrong number of arguments"), "{wrong}");
    Ok(())
}
