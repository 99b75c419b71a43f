//! What careless and hostile clients send: refused with a documented status, and nothing is changed.

use serde_json::{Value, json};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpStream;
use tokio::task::JoinSet;

use crate::cluster::{Cluster, SOON};

/// `{"a": {"a": ... 1}}`, so many levels.
fn nested(levels: usize) -> Value {
    (0..levels).fold(json!(1), |inner, _| json!({ "a": inner }))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_of_fields_are_checked_on_every_level() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let (_, answer) = cluster.post("/db/db/c", json!({ "doc": { "k": 1, "n": 1, "s": {} } })).await;
    let id = answer["result"][0]["value"]["_id"].as_str().unwrap().to_owned();
    for bad in [
        json!({ "$x": 1 }),
        json!({ "a.b": 1 }),
        json!({ "": 1 }),
        json!({ "a\0b": 1 }),
        json!([{ "$x": 1 }]),
        json!([[{ "a\0b": 1 }]]),
        nested(70),
    ] {
        let insert = cluster.post("/db/db/c", json!({ "doc": { "k": 2, "z": bad } })).await;
        assert_eq!(insert.0, 400, "{bad}: {insert:?}");
        let replace = cluster.put(&format!("/db/db/c/{id}"), json!({ "k": 1, "z": bad })).await;
        assert_eq!(replace.0, 400, "{bad}: {replace:?}");
        for operator in ["$set", "$push"] {
            let body = json!({ "filter": { "k": 1 }, "update": { operator: { "z": bad } }, "options": { "one": true } });
            assert_eq!(cluster.put("/db/db/c", body).await.0, 400, "{operator} {bad}");
        }
    }
    // As deep as it may be, through every node; a value that can be stored by itself may be too deep where it is put.
    for (field, levels, expected) in
        [("d", 29, 200), ("s.y.z.z.z", 29, 400), ("d", 62, 400), ("s.y", 120, 400)]
    {
        for node in 0..3 {
            let update = json!({ "$set": { field: nested(levels) } });
            let body = json!({ "filter": { "k": 1 }, "update": update, "options": { "one": true } });
            let (status, answer) = cluster.send("PUT", node, "/db/db/c", Some(body)).await;
            assert_eq!(status, expected, "{field}, {levels} levels: {answer}");
        }
    }
    let (_, found) = cluster.get("/db/db/c").await;
    assert_eq!((&found["dataLength"], &found["data"][0]["n"]), (&json!(1), &json!(1)));
    assert!(found["data"][0].get("z").is_none(), "{found}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_fields_of_the_store_are_not_changed_by_updates() {
    let cluster = Cluster::start(1).await;
    cluster.collection(Some("k")).await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 1, "n": 1 } })).await.0, 202);
    let before = cluster.get("/db/db/c").await.1["data"][0].clone();
    let update =
        |update: Value| json!({ "filter": { "k": 1 }, "update": update, "options": { "one": true } });
    for wrong in [
        json!({ "$set": { "_token": "z" } }),
        json!({ "$unset": { "_cre": 1 } }),
        json!({ "$set": { "_attachment": { "f": {} } } }),
        json!({ "$rename": { "n": "_attachment" } }),
        json!({ "$set": { "_txnId": "other" } }),
    ] {
        assert_eq!(cluster.put("/db/db/c", update(wrong.clone())).await.0, 400, "{wrong}");
    }
    assert_eq!(cluster.get("/db/db/c").await.1["data"][0], before);
    // A whole document that was read may be set: its fields are those that are there.
    let mut whole = before.clone();
    whole["n"] = json!(2);
    assert_eq!(cluster.put("/db/db/c", update(json!({ "$set": whole }))).await.0, 200);
    let id = before["_id"].as_str().unwrap();
    assert_eq!(cluster.put(&format!("/db/db/c/{id}"), json!({ "k": 1, "n": 3 })).await.0, 200);
    let after = cluster.get("/db/db/c").await.1["data"][0].clone();
    for field in ["_id", "_token", "_txnId", "_cre"] {
        assert_eq!(after[field], before[field], "{field}");
    }
    assert_eq!(after["n"], 3);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn definitions_that_cannot_be_used_are_refused() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let long = "x".repeat(2_000);
    for field in ["%00", "a%00b", "a..b", "$x", &long] {
        let made = cluster.post(&format!("/db/db/c/index/{field}"), json!({})).await;
        assert_eq!(made.0, 400, "{field}: {made:?}");
    }
    for key in [json!(["a", "a"]), json!(["_id", "x"]), json!([long]), json!(["a\0"]), json!([1])] {
        let body = json!({ "collection": "other", "options": { "primaryKey": key } });
        assert_eq!(cluster.post("/db/db", body).await.0, 400, "{key}");
    }
    for expires in ["x", "0y", "999999999999999999m", "999999999999999999y"] {
        let made = cluster.post("/sp", json!({ "db": "db", "expires": expires })).await;
        assert_eq!(made.0, 400, "{expires}");
    }
    // The collection is as usable as before.
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 1 } })).await.0, 202);
    assert_eq!(cluster.get("/db/db/c/index").await.1, json!({ "_PK": ["k"] }));
    assert_eq!(cluster.get("/db/db").await.1, json!(["c"]));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_empty_name_in_a_path_is_not_left_out() {
    let cluster = Cluster::start(1).await;
    cluster.collection(Some("k")).await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": [{ "k": 1 }, { "k": 2 }] })).await.0, 202);
    // The id, the collection, the database are missing: not everything in them is meant.
    for path in ["/db/db/c/", "/db/db//", "/db/db/", "/db/db//collection", "/db//c"] {
        assert_eq!(cluster.delete(path).await.0, 400, "{path}");
    }
    assert_eq!(cluster.get("/db/db/c//count").await.0, 400);
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], 2);
    // A slash at the end is fine where nothing is deleted, and behind the base URL.
    assert_eq!(cluster.get("/db/db/").await.0, 201);
    assert_eq!(cluster.get("//db/db/c").await.1["dataLength"], 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_update_of_many_says_which_documents_refused_it() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    let documents: Vec<Value> =
        (0..40).map(|k| json!({ "k": k, "n": if k % 10 == 3 { json!("text") } else { json!(1) } })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    let inc = |filter: Value| json!({ "filter": filter, "update": { "$inc": { "n": 1 } }, "options": {} });
    let (status, answer) = cluster.put("/db/db/c", inc(json!({}))).await;
    let counts = (&answer["_ok"], &answer["_okCnt"], &answer["_nokCnt"]);
    assert_eq!((status, counts), (200, (&json!(false), &json!(36), &json!(4))), "{answer}");
    assert_eq!(cluster.get("/db/db/c/count?query[n]=2").await.1["count"], 36);
    // If none admits it, nothing was changed.
    assert_eq!(cluster.put("/db/db/c", inc(json!({ "n": "text" }))).await.0, 400);
    let operations = json!([{ "updateMany": { "filter": {}, "update": { "$inc": { "n": 1 } } } }]);
    let (_, bulk) = cluster.post("/db/db/c/bulk", json!({ "operations": operations })).await;
    assert_eq!((&bulk["_ok"], &bulk["results"][0]["count"]), (&json!(false), &json!(36)), "{bulk}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ids_of_every_kind_are_paged_once() {
    let cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    let numbers = (0..40).map(|id| json!({ "_id": id }));
    let texts = (0..40).map(|id| json!({ "_id": id.to_string() }));
    let words = ["true", "null", "\"quoted\"", "{}", "x y", "ä"].map(|id| json!({ "_id": id }));
    let all: Vec<Value> = numbers.chain(texts).chain(words).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": all })).await.0, 202);
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    // More pages than that mean that a cursor leads back.
    for _ in 0..all.len() {
        let encoded: String = cursor.bytes().map(|byte| format!("%{byte:02X}")).collect();
        let path = format!("/db/db/c?options[limit]=7&options[cursor]={encoded}");
        let (_, page) = cluster.send("GET", seen.len(), &path, None).await;
        seen.extend(page["docIds"].as_array().unwrap().iter().map(ToString::to_string));
        cursor = match &page["cursor"] {
            Value::Null => break,
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
    }
    let once: std::collections::BTreeSet<&String> = seen.iter().collect();
    assert_eq!((seen.len(), once.len()), (all.len(), all.len()));
}

/// Sends the beginning of a request, and returns what it is answered with.
async fn get_stuck(address: std::net::SocketAddr) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    let head = "POST /db/db/db/c HTTP/1.1\r\nhost: x\r\ncontent-length: 500\r\n\r\n{\"doc\": {\"k\": 1, ";
    client.write_all(head.as_bytes()).await.unwrap();
    let mut answer = vec![0; 2_000];
    let read =
        tokio::time::timeout(SOON, client.read(&mut answer)).await.expect("an answer in time").unwrap();
    answer.truncate(read);
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_are_stuck_are_refused_and_delay_nobody() {
    let cluster = Cluster::start(1).await;
    cluster.collection(Some("k")).await;
    let address = cluster.nodes["n1"].http;
    let mut stuck: JoinSet<String> = (0..100).map(|_| get_stuck(address)).collect();
    for k in 0..20 {
        assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": k } })).await.0, 202);
    }
    while let Some(answer) = stuck.join_next().await {
        let answer = answer.unwrap();
        assert!(answer.starts_with("HTTP/1.1 408") && answer.contains("nothing of the body"), "{answer}");
    }
    assert_eq!(cluster.get("/db/db/c/count").await.1["count"], 20);
}

/// Sends some bytes and returns what comes until the connection is closed.
async fn until_closed(address: std::net::SocketAddr, bytes: &str) -> String {
    let mut client = TcpStream::connect(address).await.unwrap();
    client.write_all(bytes.as_bytes()).await.unwrap();
    let mut answer = Vec::new();
    let closed = tokio::time::timeout(SOON, client.read_to_end(&mut answer)).await;
    // A reset closes it as well.
    closed.expect("closed in time").ok();
    String::from_utf8(answer).unwrap()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_that_do_not_say_what_they_want_are_let_go() {
    let mut cluster = Cluster::start(1).await;
    cluster.limits.head_within = std::time::Duration::from_millis(500);
    cluster.limits.connections = 8;
    cluster.end("n1").await;
    cluster.begin("n1", 1).await;
    let address = cluster.nodes["n1"].http;
    let whole = "GET /db/healthz HTTP/1.1\r\nhost: x\r\n\r\n";
    // Nothing, a letter that may begin several methods, a part of the head, a whole request and nothing after it.
    for (sent, answered) in
        [("", ""), ("P", ""), ("GET /db/healthz HTTP/1.1\r\nhost: x\r\n", ""), (whole, "OK")]
    {
        assert!(until_closed(address, sent).await.ends_with(answered), "{sent:?}");
    }
    // More of them than there may be connections: the others are served as soon as they are let go.
    let silent: JoinSet<String> = (0..40).map(|_| until_closed(address, "")).collect();
    assert!(until_closed(address, whole).await.ends_with("OK"));
    assert_eq!(silent.join_all().await.len(), 40);
}
