//! The HTTP API: what clients send and what they get back, on three nodes.

use serde_json::{Value, json};

use crate::cluster::Cluster;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn databases_and_collections() {
    let cluster = Cluster::start(3).await;
    assert_eq!(cluster.get("/healthz").await, (200, json!("OK")));
    assert_eq!(cluster.get("/version").await.1["name"], "capstan docs");
    assert_eq!(cluster.get("/db").await, (200, json!([])));
    assert_eq!(cluster.post("/db", json!({ "name": "db" })).await, (202, json!({ "_ok": true })));
    assert_eq!(
        cluster.post("/db", json!({ "name": "db" })).await,
        (200, json!({ "_ok": "DB already exists" }))
    );
    assert_eq!(cluster.get("/db").await, (200, json!(["db"])));
    for wrong in [json!({}), json!({ "name": "admin" }), json!({ "name": "bad/name" }), json!({ "name": "" })]
    {
        let (status, answer) = cluster.post("/db", wrong).await;
        assert_eq!((status, answer["error"].is_string()), (400, true));
    }
    let created = json!({ "_ok": true, "replyMsg": [{ "_ok": true }] });
    let body = json!({ "collection": "c", "options": { "primaryKey": ["xy"] } });
    assert_eq!(cluster.post("/db/db", body.clone()).await, (202, created));
    assert_eq!(cluster.post("/db/db", body).await, (200, json!({ "_ok": "Collection already exists" })));
    assert_eq!(cluster.get("/db/db").await, (201, json!(["c"])));
    assert_eq!(cluster.get("/db/db/").await, (201, json!(["c"])));
    for wrong in ["", "xz;xz", "xz/z", "xz:xz"] {
        assert_eq!(cluster.post("/db/db", json!({ "collection": wrong })).await.0, 400, "{wrong}");
    }
    let (status, answer) = cluster.get("/db/none").await;
    assert_eq!((status, answer["error"].as_str()), (404, Some("DB \"none\" not found")));
    assert_eq!(cluster.get("/db/db/c/index").await, (201, json!({ "_PK": ["xy"] })));
    assert_eq!(cluster.post("/db/db/c/index/str", json!({ "options": { "msbLen": 16 } })).await.0, 201);
    let listed = json!({ "_PK": ["xy"], "str": { "msbLen": 16 } });
    assert_eq!(cluster.get("/db/db/c/index").await, (201, listed));
    assert_eq!(cluster.delete("/db/db/c/index/str").await.0, 201);
    assert_eq!(cluster.delete("/db/db/c/collection").await.0, 201);
    assert_eq!(cluster.get("/db/db").await, (201, json!([])));
    assert_eq!(cluster.delete("/db/db").await, (202, json!({ "_ok": true })));
    assert_eq!(cluster.get("/db").await, (200, json!([])));
}

fn id_of(answer: &Value) -> String {
    answer["result"][0]["value"]["replyMsg"][0]["_id"].as_str().unwrap().to_owned()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn documents_with_a_primary_key() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("xy")).await;
    let (status, answer) = cluster.post("/db/db/c", json!({ "doc": { "xy": "k1", "n": 1 } })).await;
    assert_eq!(
        (status, &answer["_ok"], answer["result"][0]["status"].as_str()),
        (202, &json!(true), Some("fulfilled"))
    );
    let id = id_of(&answer);
    assert_eq!(id, "8b55e6116cb02b0e8f70799e13a8b15f");
    // By primary key, as a bracket object and as JSON; by id.
    for path in [
        "/db/db/c?query[xy]=k1&options[one]=true".to_owned(),
        "/db/db/c?query=%7B%22xy%22%3A%22k1%22%7D".to_owned(),
        format!("/db/db/c/{id}"),
    ] {
        let (status, answer) = cluster.get(&path).await;
        assert_eq!(
            (status, answer["dataLength"].as_i64(), answer["data"][0]["n"].as_i64()),
            (200, Some(1), Some(1))
        );
    }
    assert_eq!(cluster.get(&format!("/db/db/c/{id}")).await.1["doc"]["xy"], "k1");
    // A second document with the same key, and one without the key field.
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "xy": "k1", "n": 2 } })).await.0, 409);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "n": 2 } })).await.0, 400);
    // Updates by primary key and by id.
    let update = |filter: Value| json!({ "filter": filter, "update": { "$inc": { "n": 1 } }, "options": { "one": true } });
    let updated = cluster.put("/db/db/c", update(json!({ "xy": "k1" }))).await;
    assert_eq!(updated, (200, json!({ "_ok": true, "_id": id })));
    assert_eq!(cluster.put("/db/db/c", update(json!({ "_id": id }))).await.0, 200);
    assert_eq!(cluster.get(&format!("/db/db/c/{id}")).await.1["doc"]["n"], 3);
    let (status, answer) = cluster.put("/db/db/c", update(json!({ "xy": "none" }))).await;
    assert_eq!((status, answer["_error"].as_str()), (200, Some("Not found")));
    // The key cannot be changed, neither by an update nor by a replacement.
    let change =
        json!({ "filter": { "xy": "k1" }, "update": { "$set": { "xy": "k2" } }, "options": { "one": true } });
    assert_eq!(cluster.put("/db/db/c", change).await.0, 400);
    assert_eq!(cluster.put(&format!("/db/db/c/{id}"), json!({ "_id": id, "xy": "k2" })).await.0, 400);
    let replaced = cluster.put(&format!("/db/db/c/{id}"), json!({ "_id": id, "xy": "k1", "m": 7 })).await;
    assert_eq!(replaced, (200, json!({ "_ok": true, "_id": id })));
    let (_, answer) = cluster.get(&format!("/db/db/c/{id}")).await;
    assert_eq!((answer["doc"]["m"].as_i64(), answer["doc"].get("n")), (Some(7), None));
    // Deletes delete, and what is gone is not found.
    assert_eq!(cluster.delete(&format!("/db/db/c?filter[_id]={id}&options[one]=true")).await.1["_ok"], true);
    for path in [format!("/db/db/c/{id}"), "/db/db/c?query[xy]=k1&options[one]=true".to_owned()] {
        let (status, answer) = cluster.get(&path).await;
        assert_eq!((status, answer["_error"].as_str()), (200, Some("Not found")), "{path}");
    }
    assert_eq!(cluster.digests_agree().await, 0);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn queries_with_and_without_indexes() {
    let cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    for field in ["i", "str", "sub.x"] {
        assert_eq!(cluster.post(&format!("/db/db/c/index/{field}"), json!({})).await.0, 201);
    }
    assert_eq!(cluster.delete("/db/db/c/index/str").await.0, 201);
    let documents: Vec<Value> = (1..=12)
        .map(|i| json!({ "i": i, "str": format!("s{i}"), "sub": { "x": i % 3 }, "txt": "a long text" }))
        .collect();
    let (status, answer) = cluster.post("/db/db/c", json!({ "doc": documents })).await;
    assert_eq!((status, answer["result"].as_array().unwrap().len()), (202, 12));
    let count = async |query: Value| {
        let query =
            query.to_string().replace('"', "%22").replace('$', "%24").replace('{', "%7B").replace('}', "%7D");
        let (status, answer) = cluster.get(&format!("/db/db/c?query={}", query.replace(' ', "%20"))).await;
        assert_eq!(status, 200, "{answer}");
        let (_, counted) = cluster.get(&format!("/db/db/c/count?query={query}")).await;
        assert_eq!(counted["count"], answer["dataLength"]);
        answer["dataLength"].as_i64().unwrap()
    };
    // Every query once without and once with its index; both see the documents that were just written.
    for (query, expected) in [
        (json!({}), 12),
        (json!({ "i": 5 }), 1),
        (json!({ "sub": { "x": 1 } }), 4),
        (json!({ "sub.x": 1 }), 4),
        (json!({ "i": { "$lt": 4 } }), 3),
        (json!({ "i": { "$le": 4 } }), 4),
        (json!({ "i": { "$gt": 4 } }), 8),
        (json!({ "i": { "$ge": 4 } }), 9),
        (json!({ "i": { "$eq": 4 } }), 1),
        (json!({ "i": { "$ne": 4 } }), 11),
        (json!({ "i": { "$in": [1, 2, 99] } }), 2),
        (json!({ "i": { "$nin": [1, 2, 99] } }), 10),
        (json!({ "str": { "$like": "s1" } }), 4),
        (json!({ "$and": [{ "i": { "$gt": 2 } }, { "i": { "$lt": 5 } }] }), 2),
        (json!({ "$not": [{ "i": 1 }, { "i": 2 }, { "i": 3 }] }), 9),
        (json!({ "$nor": [{ "i": 1 }, { "i": 2 }, { "i": 3 }] }), 9),
        (json!({ "$or": [{ "i": 1 }, { "sub.x": 0 }] }), 5),
        (json!({ "$and": [{ "$or": [{ "i": 1 }, { "i": 2 }] }, { "sub.x": 2 }] }), 1),
    ] {
        assert_eq!(count(query.clone()).await, expected, "{query}");
    }
    let (_, plan) = cluster.get("/db/db/c/explain?query=%7B%22i%22:5%7D").await;
    assert_eq!((plan["index"].as_str(), plan["lookedAt"].as_i64()), (Some("i"), Some(1)));
    let (_, plan) = cluster.get("/db/db/c/explain?query=%7B%22i%22:%7B%22$ge%22:4,%22$lt%22:6%7D%7D").await;
    assert_eq!((plan["index"].as_str(), plan["lookedAt"].as_i64()), (Some("i"), Some(2)));
    let (_, plan) = cluster.get("/db/db/c/explain?query=%7B%22str%22:%22s5%22%7D").await;
    assert_eq!((plan["index"].as_str(), plan["lookedAt"].as_i64()), (None, Some(12)));
    // Order, skip, limit, projection, cursor, groups.
    let (_, sorted) =
        cluster.get("/db/db/c?options[sort][i]=-1&options[limit]=2&options[skip]=1&projection[]=i").await;
    let numbers: Vec<_> =
        sorted["data"].as_array().unwrap().iter().map(|d| d["i"].as_i64().unwrap()).collect();
    assert_eq!((numbers, sorted["data"][0].get("str")), (vec![11, 10], None));
    let (mut seen, mut cursor) = (Vec::new(), String::new());
    loop {
        let (_, page) = cluster.get(&format!("/db/db/c?options[limit]=5&options[cursor]={cursor}")).await;
        seen.extend(page["docIds"].as_array().unwrap().iter().map(ToString::to_string));
        let Some(next) = page["cursor"].as_str() else { break };
        cursor = next.to_owned();
    }
    assert_eq!(seen.len(), 12);
    assert!(seen.is_sorted());
    let (_, groups) = cluster.get("/db/db/c/group/sub.x").await;
    assert_eq!(
        groups["groups"],
        json!([{ "value": 0, "count": 4 }, { "value": 1, "count": 4 }, { "value": 2, "count": 4 }])
    );
    // Many at once.
    let body =
        json!({ "filter": { "i": { "$gt": 6 } }, "update": { "$set": { "big": true } }, "options": {} });
    assert_eq!(cluster.put("/db/db/c", body).await.1["_okCnt"], 6);
    let body = json!({ "filter": { "i": 99 }, "update": { "$set": { "big": true } }, "options": {} });
    assert_eq!(cluster.put("/db/db/c", body).await.1["_okCnt"], 0);
    let (_, deleted) = cluster.delete("/db/db/c?filter[big]=true").await;
    assert_eq!((deleted["_ok"].as_bool(), deleted["results"].as_array().unwrap().len()), (Some(true), 6));
    assert_eq!(count(json!({})).await, 6);
    assert_eq!(cluster.digests_agree().await, 6);
}

/// Tokens remember that an index has no document with several values: until one has.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ranges_find_documents_that_get_several_values_later() {
    let cluster = Cluster::start(1).await;
    cluster.collection(None).await;
    assert_eq!(cluster.post("/db/db/c/index/i", json!({})).await.0, 201);
    let documents: Vec<Value> = (0..200).map(|i| json!({ "i": i })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    let range = async |from: i32, to: i32| {
        let query = format!("%7B%22i%22:%7B%22$ge%22:{from},%22$lt%22:{to}%7D%7D");
        let (_, plan) = cluster.get(&format!("/db/db/c/explain?query={query}")).await;
        assert_eq!(plan["index"], "i", "{plan}");
        cluster.get(&format!("/db/db/c?query={query}")).await.1["dataLength"].as_i64().unwrap()
    };
    // A few documents, and more than a task reads by itself.
    assert_eq!((range(1_000, 1_020).await, range(10, 30).await, range(0, 190).await), (0, 20, 190));
    for i in 1..=20 {
        let body = json!({ "doc": { "i": [500, 1_500], "at": i } });
        assert_eq!(cluster.post("/db/db/c", body).await.0, 202);
        assert_eq!(range(1_000, 1_020).await, i, "every array has a number above and one below");
    }
    let body =
        json!({ "filter": { "at": { "$gt": 5 } }, "update": { "$set": { "i": 1_001 } }, "options": {} });
    assert_eq!(cluster.put("/db/db/c", body).await.1["_okCnt"], 15);
    assert_eq!((range(1_000, 1_001).await, range(1_001, 1_020).await), (5, 20));
    assert_eq!(cluster.delete("/db/db/c?filter[at]=1").await.1["deletedCount"], 1);
    assert_eq!((range(1_000, 1_001).await, range(10, 30).await), (4, 20));
    // An index that is made again is another one.
    assert_eq!(cluster.delete("/db/db/c/index/i").await.0, 201);
    assert_eq!(cluster.get("/db/db/c/explain?query=%7B%22i%22:5%7D").await.1["index"], json!(null));
    assert_eq!(cluster.post("/db/db/c/index/i", json!({})).await.0, 201);
    capstan_testkit::eventually("the index is used", crate::cluster::SOON, async || {
        let (_, plan) = cluster.get("/db/db/c/explain?query=%7B%22i%22:5%7D").await;
        if plan["index"] == "i" { Ok(()) } else { Err(plan.to_string()) }
    })
    .await;
    assert_eq!((range(1_000, 1_001).await, range(10, 30).await), (4, 20));
    assert_eq!(cluster.digests_agree().await, 219);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_index_is_built_for_documents_that_are_there() {
    let cluster = Cluster::start(1).await;
    cluster.collection(None).await;
    let documents: Vec<Value> = (0..2_000).map(|i| json!({ "i": i })).collect();
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": documents })).await.0, 202);
    assert_eq!(cluster.post("/db/db/c/index/i", json!({})).await.0, 201);
    capstan_testkit::eventually("the index is used", crate::cluster::SOON, async || {
        let (_, plan) = cluster.get("/db/db/c/explain?query=%7B%22i%22:%7B%22$lt%22:7%7D%7D").await;
        let used = plan["index"] == "i" && plan["lookedAt"] == 7 && plan["found"] == 7;
        if used { Ok(()) } else { Err(plan.to_string()) }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unique_values_are_unique_in_the_cluster() {
    let cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": [{ "mail": "x" }, { "mail": "y" }] })).await.0, 202);
    assert_eq!(cluster.post("/db/db/c/index/mail", json!({ "options": { "unique": true } })).await.0, 201);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "mail": "x" } })).await.0, 409);
    let inserts = (0..24).map(|at| {
        let body = json!({ "doc": { "mail": "new", "at": at } });
        let cluster = &cluster;
        async move { cluster.send("POST", at, "/db/db/c", Some(body)).await.0 }
    });
    let statuses = futures_util::future::join_all(inserts).await;
    assert_eq!(statuses.iter().filter(|status| **status == 202).count(), 1, "{statuses:?}");
    assert_eq!(cluster.get("/db/db/c/count?query[mail]=new").await.1["count"], 1);
    // A value is free again after an update or a delete.
    let body = json!({ "filter": { "mail": "x" }, "update": { "$set": { "mail": "y" } }, "options": { "one": true } });
    assert_eq!(cluster.put("/db/db/c", body).await.0, 409);
    let body = json!({ "filter": { "mail": "x" }, "update": { "$set": { "mail": "z" } }, "options": { "one": true } });
    assert_eq!(cluster.put("/db/db/c", body).await.0, 200);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "mail": "x" } })).await.0, 202);
    assert_eq!(cluster.delete("/db/db/c?filter[mail]=x&options[one]=true").await.1["_ok"], true);
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "mail": "x" } })).await.0, 202);
    // Documents that are not unique keep an index from becoming so.
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": [{ "k": 1 }, { "k": 1 }] })).await.0, 202);
    assert_eq!(cluster.post("/db/db/c/index/k", json!({ "options": { "unique": true } })).await.0, 409);
    assert_eq!(cluster.get("/db/db/c/index").await.1.get("k"), None);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn attachments() {
    let cluster = Cluster::start(3).await;
    cluster.collection(None).await;
    let id = id_of(&cluster.post("/db/db/c", json!({ "doc": { "a": 1 } })).await.1);
    let big: Vec<u8> = (0..1_300_000_u32).map(|at| (at % 251) as u8).collect();
    for (name, content) in
        [("small.txt", b"hello".to_vec()), ("big.bin", big.clone()), ("small.txt", b"again".to_vec())]
    {
        let mut body = format!(
            "--XX\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{name}\"\r\nContent-Type: text/plain\r\n\r\n"
        )
        .into_bytes();
        body.extend(content);
        body.extend(b"\r\n--XX--\r\n");
        let request = cluster.client.post(cluster.url(1, &format!("/db/db/c/{id}/attachment?label=l1")));
        let answer = request
            .header("content-type", "multipart/form-data; boundary=XX")
            .body(body)
            .send()
            .await
            .unwrap();
        assert_eq!(answer.status(), 202);
        assert_eq!(answer.json::<Value>().await.unwrap(), json!({ "_ok": true }));
    }
    let (status, listed) = cluster.get(&format!("/db/db/c/{id}/attachment")).await;
    assert_eq!((status, &listed["_ok"], &listed["big.bin"]["_size"]), (200, &json!(true), &json!(1_300_000)));
    assert_eq!(listed["small.txt"]["label"], "l1");
    let answer = cluster
        .client
        .get(cluster.url(2, &format!("/db/db/c/{id}/attachment/big.bin")))
        .send()
        .await
        .unwrap();
    assert_eq!(answer.headers()["content-type"], "text/plain");
    assert_eq!(answer.bytes().await.unwrap(), big);
    let (_, text) = cluster.get(&format!("/db/db/c/{id}/attachment/small.txt")).await;
    assert_eq!(text, json!("again"));
    assert_eq!(
        cluster.delete(&format!("/db/db/c/{id}/attachment/small.txt")).await,
        (200, json!({ "_ok": true }))
    );
    assert_eq!(cluster.get(&format!("/db/db/c/{id}/attachment/small.txt")).await.0, 400);
    assert_eq!(cluster.post(&format!("/db/db/c/{id}/attachment"), json!({})).await.0, 400);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_open_what_they_are_for() {
    let cluster = Cluster::start(1).await;
    cluster.collection(None).await;
    assert_eq!(cluster.post("/db", json!({ "name": "other" })).await.0, 202);
    let user = |password: &str| json!({ "user": "u1", "password": password, "email": "e", "db": "db", "admin": true });
    assert_eq!(cluster.post("/admin/user/", user("weak")).await.0, 400);
    assert_eq!(cluster.post("/admin/user/", user("str0ng-enough")).await, (200, json!({ "_ok": true })));
    let (_, all) = cluster.post("/sp", json!({ "db": "*", "app": "t" })).await;
    let key = |text: &Value| {
        let words: Vec<String> = text.as_str().unwrap().split_whitespace().map(str::to_owned).collect();
        (words[1].clone(), words[3].clone())
    };
    let all = key(&all);
    // From the first key on, every request needs one.
    assert_eq!(cluster.get("/db").await.0, 401);
    let send = async |(id, key): &(String, String), method: &str, path: &str, body: Value| {
        let request = cluster.client.request(method.parse().unwrap(), cluster.url(0, path));
        let request = request.header("accessid", id).header("accesskey", key).json(&body);
        let answer = request.send().await.unwrap();
        let status = answer.status().as_u16();
        (status, answer.text().await.unwrap())
    };
    let (status, made) = send(&all, "POST", "/sp", json!({ "db": "db", "app": "t" })).await;
    assert_eq!(status, 200);
    let own = key(&json!(made));
    assert_eq!(send(&own, "GET", "/db", json!({})).await, (200, "[\"db\"]".to_owned()));
    assert_eq!(send(&own, "POST", "/db/db/c", json!({ "doc": { "a": 1 } })).await.0, 202);
    assert_eq!(send(&own, "GET", "/db/other", json!({})).await.0, 403);
    assert_eq!(send(&own, "POST", "/db", json!({ "name": "third" })).await.0, 403);
    assert_eq!(send(&own, "GET", "/sp", json!({})).await.0, 403);
    let forged = (own.0.replace("db/", "all_/"), own.1.clone());
    assert_eq!(send(&forged, "GET", "/db", json!({})).await.0, 401);
    assert_eq!(send(&(own.0.clone(), "wrong".to_owned()), "GET", "/db", json!({})).await.0, 401);
    assert_eq!(send(&all, "GET", "/db/other", json!({})).await.0, 201);
    let id = own.0.rsplit('/').next().unwrap().to_owned();
    assert_eq!(send(&all, "DELETE", &format!("/sp?id={id}"), json!({})).await.0, 200);
    assert_eq!(send(&own, "GET", "/db", json!({})).await.0, 401);
    let basic = cluster.client.get(cluster.url(0, "/db")).basic_auth("u1", Some("str0ng-enough"));
    assert_eq!(basic.send().await.unwrap().status(), 200);
    let basic = cluster.client.get(cluster.url(0, "/db")).basic_auth("u1", Some("wrong"));
    assert_eq!(basic.send().await.unwrap().status(), 401);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn bad_input_is_refused_and_changes_nothing() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 1, "n": 1 } })).await.0, 202);
    let raw = async |method: &str, path: &str, body: String| {
        let request = cluster.client.request(method.parse().unwrap(), cluster.url(0, path));
        request.header("content-type", "application/json").body(body).send().await.unwrap().status().as_u16()
    };
    let deep = format!("{{\"doc\":{}1{}}}", "{\"a\":".repeat(5_000), "}".repeat(5_000));
    let nested = format!("{{\"doc\":{}1{}}}", "{\"a\":".repeat(100), "}".repeat(100));
    let large = format!("{{\"doc\":{{\"k\":2,\"t\":\"{}\"}}}}", "x".repeat(3 << 20));
    let huge = format!("{{\"doc\":{{\"k\":2,\"t\":\"{}\"}}}}", "x".repeat(11 << 20));
    for (method, path, body, expected) in [
        ("POST", "/db/db/c", "{\"doc\":".to_owned(), 400),
        ("POST", "/db/db/c", "[]".to_owned(), 400),
        ("POST", "/db/db/c", "{\"doc\":7}".to_owned(), 400),
        ("POST", "/db/db/c", "{\"doc\":{\"k\":2,\"$x\":1}}".to_owned(), 400),
        ("POST", "/db/db/c", deep, 400),
        ("POST", "/db/db/c", nested, 400),
        ("POST", "/db/db/c", large, 413),
        ("GET", "/db/db/c/zzz", String::new(), 404),
        ("DELETE", "/db/db/c/zzz", String::new(), 404),
        ("GET", "/db/db/none", String::new(), 404),
        ("GET", "/db/db/c?query=%7B", String::new(), 400),
        ("GET", "/db/db/c?query[n][$bad]=1", String::new(), 400),
        ("GET", "/db/db/c?query[n=1", String::new(), 400),
        ("GET", "/db/db/c?options[limit]=many", String::new(), 400),
        (
            "PUT",
            "/db/db/c",
            "{\"filter\":{\"k\":1},\"update\":{\"$bad\":{\"n\":1}},\"options\":{\"one\":true}}".to_owned(),
            400,
        ),
        ("PUT", "/db/db/c", "{\"filter\":{\"k\":1}}".to_owned(), 400),
        ("DELETE", "/db/db/c?filter[$bad]=1", String::new(), 400),
        ("PATCH", "/db/db/c", String::new(), 404),
        ("GET", "/nowhere", String::new(), 404),
        ("POST", "/docs-internal/0", huge.clone(), 401),
        ("POST", "/db/db/c", huge, 413),
    ] {
        assert_eq!(raw(method, path, body).await, expected, "{method} {path}");
    }
    assert_eq!(cluster.get("/db/db/c/count").await, (200, json!({ "_ok": true, "count": 1 })));
    assert_eq!(cluster.get("/db/db/c?query[k]=1").await.1["data"][0]["n"], 1);
}
