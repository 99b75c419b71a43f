//! What goes beyond single requests: bulk writes, changes as a stream, documents that expire, jobs, the description.

use serde_json::{Value, json};

use crate::cluster::{Cluster, SOON};

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bulk_writes_have_an_outcome_each() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let operations = json!([
        { "insertOne": { "doc": { "k": 1, "n": 1 } } },
        { "insertOne": { "doc": { "k": 2, "n": 1 } } },
        { "updateMany": { "filter": { "n": 1 }, "update": { "$inc": { "n": 1 } } } },
        { "updateOne": { "filter": { "k": 9 }, "update": { "$inc": { "n": 1 } } } },
        { "insertOne": { "doc": { "k": 1 } } },
        { "deleteOne": { "filter": { "k": 2 } } },
    ]);
    let (status, answer) = cluster.post("/db/db/c/bulk", json!({ "operations": operations.clone() })).await;
    let counts = (&answer["_ok"], &answer["_okCnt"], &answer["_nokCnt"]);
    assert_eq!((status, counts), (200, (&json!(false), &json!(4), &json!(2))), "{answer}");
    assert_eq!((&answer["results"][2]["count"], &answer["results"][3]["count"]), (&json!(2), &json!(0)));
    assert_eq!(answer["results"][4]["status"], 409);
    let again = json!({ "operations": operations, "options": { "ordered": false } });
    let (_, answer) = cluster.post("/db/db/c/bulk", again).await;
    // Both inserts and the duplicate fail; everything else happens.
    assert_eq!((&answer["_okCnt"], &answer["_nokCnt"]), (&json!(3), &json!(3)), "{answer}");
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], 1);
    for wrong in [json!({}), json!({ "operations": 7 }), json!([])] {
        assert_eq!(cluster.post("/db/db/c/bulk", wrong).await.0, 400);
    }
    let (_, answer) = cluster.post("/db/db/c/bulk", json!({ "operations": [{ "dance": {} }, 7] })).await;
    assert_eq!((&answer["_okCnt"], &answer["results"][0]["status"]), (&json!(0), &json!(400)));
}

/// Reads a stream of events until it has seen so many changes; returns them, and the position of the last one.
async fn changes(cluster: &Cluster, node: usize, from: Option<&str>, wanted: usize) -> (Vec<Value>, String) {
    let from = from.map(|from| format!("?from={from}")).unwrap_or_default();
    let mut answer =
        cluster.client.get(cluster.url(node, &format!("/db/db/c/changes{from}"))).send().await.unwrap();
    if answer.headers()["content-type"] != "text/event-stream" {
        panic!("not a stream: {}", answer.text().await.unwrap());
    }
    let mut text = String::new();
    let (mut seen, mut position) = (Vec::new(), String::new());
    while seen.len() < wanted || position.is_empty() {
        let chunk = tokio::time::timeout(SOON, answer.chunk()).await.unwrap().unwrap().unwrap();
        text.push_str(std::str::from_utf8(&chunk).unwrap());
        while let Some((event, rest)) =
            text.split_once("\n\n").map(|(one, rest)| (one.to_owned(), rest.to_owned()))
        {
            text = rest;
            let field =
                |name: &str| event.lines().find_map(|line| line.strip_prefix(name)).map(str::to_owned);
            position = field("id: ").unwrap_or(position);
            if field("event: ").is_some_and(|kind| kind != "begin") {
                seen.push(serde_json::from_str(&field("data: ").unwrap()).unwrap());
            }
        }
    }
    (seen, position)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn changes_are_streamed_from_a_position() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let (_, begin) = changes(&cluster, 0, None, 0).await;
    let (_, inserted) = cluster.post("/db/db/c", json!({ "doc": { "k": 1, "n": 1 } })).await;
    let id = inserted["result"][0]["value"]["_id"].clone();
    let body = json!({ "filter": { "k": 1 }, "update": { "$inc": { "n": 1 } }, "options": { "one": true } });
    assert_eq!(cluster.put("/db/db/c", body).await.0, 200);
    assert_eq!(cluster.delete("/db/db/c?filter[k]=1&options[one]=true").await.0, 200);
    // Another collection is another stream.
    assert_eq!(cluster.post("/db/db", json!({ "collection": "other" })).await.0, 202);
    assert_eq!(cluster.post("/db/db/other", json!({ "doc": { "k": 1 } })).await.0, 202);
    for node in 0..3 {
        let (seen, end) = changes(&cluster, node, Some(&begin), 3 + node).await;
        let own: Vec<&Value> = seen.iter().filter(|change| change["_id"] == id).collect();
        let kinds: Vec<&str> = own.iter().map(|change| change["op"].as_str().unwrap()).collect();
        assert_eq!((kinds, seen.len()), (vec!["insert", "update", "delete"], 3 + node));
        assert_eq!(own[1]["doc"]["n"], 2);
        // From the last position on there is only what came later.
        assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": node + 10 } })).await.0, 202);
        let (later, _) = changes(&cluster, node, Some(&end), 1).await;
        assert_eq!((later.len(), &later[0]["doc"]["k"]), (1, &json!(node + 10)), "{later:?}");
    }
    assert_eq!(cluster.get("/db/db/c/changes?from=v1:1.2").await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_expire() {
    let cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    let seconds = i64::try_from(capstan_meta::clock::since_epoch().as_secs()).unwrap();
    let options = json!({ "options": { "expiresAfterSeconds": 1_000 } });
    assert_eq!(cluster.post("/db/db/c/index/at", options).await.0, 201);
    assert_eq!(
        cluster.post("/db/db/c/index/until", json!({ "options": { "expiresAt": true } })).await.0,
        201
    );
    let documents = json!([
        { "stays": false, "at": seconds - 1_001 },
        { "stays": false, "at": (seconds - 1_001) * 1_000 },
        { "stays": false, "at": "2001-02-03T04:05:06.000Z" },
        { "stays": false, "until": seconds - 1 },
        { "stays": true, "at": seconds - 500 },
        { "stays": true, "at": "2901-02-03T04:05:06.000Z" },
        { "stays": true, "until": (seconds + 3_600) * 1_000 },
        { "stays": true, "at": null },
        { "stays": true },
    ]);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    capstan_testkit::eventually("what is over is gone", SOON, async || {
        let (_, left) = cluster.get("/db/db/c/count?query[stays]=false").await;
        if left["count"] == 0 { Ok(()) } else { Err(left.to_string()) }
    })
    .await;
    assert_eq!(cluster.get("/db/db/c/count?query[stays]=true").await.1["count"], 5);
    assert_eq!(cluster.digests_agree().await, 5);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_token_that_moves_has_a_job() {
    let mut cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    let documents: Vec<_> = (0..500).map(|k| json!({ "k": k, "text": "x".repeat(300) })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    cluster.begin("n4", 3).await;
    let jobs = async || {
        let listed = cluster.store.list(&capstan_docs::keys::Jobs {}).await.unwrap();
        listed.iter().map(|(_, found)| serde_json::to_value(&found.record).unwrap()).collect::<Vec<_>>()
    };
    let ended = capstan_testkit::eventually("jobs of the fourth node have ended", SOON, async || {
        let jobs = jobs().await;
        let ended = jobs.iter().filter(|job| job["state"] == "Completed").count();
        if ended > 0 && ended == jobs.len() { Ok(jobs) } else { Err(format!("{jobs:?}")) }
    })
    .await;
    for job in ended {
        for field in ["sentNextBatch", "batchDone", "done", "cursor", "epoch", "total", "from"] {
            assert!(!job[field].is_null(), "{field} of {job}");
        }
        assert_eq!((&job["to"], &job["batchDone"]), (&json!("n4"), &json!(true)), "{job}");
    }
    cluster.digests_agree().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_description_names_every_route() {
    let cluster = Cluster::start(1).await;
    let (status, document) = cluster.get("/openapi.json").await;
    assert_eq!((status, &document["openapi"]), (200, &json!("3.1.0")));
    let paths = document["paths"].as_object().unwrap();
    assert!(paths["/db/{db}/{coll}"].as_object().unwrap().len() == 4, "{paths:?}");
    // Every route answers something else than that it is not there.
    cluster.collection(None).await;
    for (path, methods) in paths.iter().filter(|(path, _)| !path.contains("changes")) {
        for method in methods.as_object().unwrap().keys().filter(|method| *method != "delete") {
            let path = path.replace("{db}", "db").replace("{coll}", "c").replace("{field}", "f");
            let path = path.replace("{id}", "abcd").replace("{file}", "f").replace("{user}", "u");
            let body = (method != "get").then(|| json!({}));
            let (_, answer) = cluster.send(&method.to_uppercase(), 0, &path, body).await;
            let text = answer["error"].as_str().unwrap_or_default();
            assert!(!text.contains("there is no") || text.contains("user"), "{method} {path}: {answer}");
        }
    }
    tokio::time::timeout(SOON, cluster.get("/healthz")).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_backup_has_everything_and_is_put_back() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let documents: Vec<_> =
        (0..300).map(|k| json!({ "k": k, "mail": format!("m{k}"), "text": "x".repeat(200) })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    assert_eq!(cluster.post("/db/db/c/index/mail", json!({ "options": { "unique": true } })).await.0, 201);
    let sdk = crate::client::Sdk::new(&cluster);
    let db = sdk.db("db").await.unwrap_or_else(|error| panic!("{error}"));
    let coll = db.collection("c").await.unwrap_or_else(|error| panic!("{error}"));
    let first = coll.find_one(&json!({ "k": 7 })).await;
    let id = first["_id"].as_str().unwrap();
    assert_eq!(coll.attach(id, "l", "file.txt", "text/plain", vec![b'y'; 700_000]).await["_ok"], true);
    let before = coll.find_one(&json!({ "k": 7 })).await;
    let dir = capstan_testkit::TempDir::new("backup").unwrap();
    let (backup, client) =
        (dir.join("b"), capstan_docs::api::Client::connect(&cluster.store, None).await.unwrap());
    let saved = capstan_docs::api::back_up(&client, &cluster.store, &backup, |_, _| {}).await.unwrap();
    assert_eq!((saved.size().0, saved.size().1), (1, 16));
    // Not over another backup, and not over collections that are there.
    assert!(capstan_docs::api::back_up(&client, &cluster.store, &backup, |_, _| {}).await.is_err());
    assert!(capstan_docs::api::restore(&client, &backup, |_, _| {}).await.is_err());
    assert_eq!(cluster.delete("/db/db").await.0, 202);
    // A damaged file is refused before anything is changed.
    let file = backup.join("token-0.pairs");
    let content = std::fs::read(&file).unwrap();
    std::fs::write(&file, &content[..content.len() - 1]).unwrap();
    assert!(capstan_docs::api::restore(&client, &backup, |_, _| {}).await.is_err());
    assert_eq!(cluster.get("/db").await.1, json!([]));
    std::fs::write(&file, &content).unwrap();
    assert_eq!(capstan_docs::api::restore(&client, &backup, |_, _| {}).await.unwrap(), 300);
    assert_eq!(coll.count(&json!({})).await, json!(300));
    // Documents are the same to the last field; so are their files, and unique values are unique again.
    assert_eq!(coll.find_one(&json!({ "k": 7 })).await, before);
    let (_, text) = cluster.get(&format!("/db/db/c/{id}/attachment/file.txt")).await;
    assert_eq!(text, json!("y".repeat(700_000)));
    assert_eq!(cluster.get("/db/db/c/index").await.1, json!({ "_PK": ["k"], "mail": { "unique": true } }));
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 999, "mail": "m7" } })).await.0, 409);
    assert_eq!(cluster.digests_agree().await, 300);
}
