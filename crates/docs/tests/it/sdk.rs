//! The scenarios of the public JavaScript SDK, in the order of its suites: requests as that client sends them, answers
//! as it reads them. One test per suite; the comments name the scenarios.

use serde_json::{Value, json};

use crate::client::Sdk;
use crate::cluster::Cluster;

const COLOURS: [&str; 5] = ["red", "green", "blue", "yellow", "black"];

fn error(answer: &Value) -> &str {
    answer["_error"].as_str().unwrap_or_default()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_1_databases_and_collections() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    // 1-cre-db, 1-cre-coll: connect, create db, databaseName, list collections.
    let db = sdk.db("test-db").await.unwrap();
    assert_eq!(db.name, "test-db");
    assert_eq!(db.collections().await, json!([]));
    // createCollection with a bad name: the SDK refuses them itself, and so does the server.
    for bad in ["", "xz;xz", "xz/z", "xz:xz"] {
        assert_eq!(error(&db.create_collection(bad, json!({})).await), "Invalid collection name");
        let body = json!({ "collection": bad, "options": {} });
        assert_eq!(cluster.post("/db/test-db", body).await.0, 400, "{bad}");
    }
    // createCollection, get collection, list collections.
    let created = db.create_collection("test-coll", json!({ "primaryKey": ["xy"] })).await;
    assert_eq!(created, json!({ "_ok": true, "replyMsg": [{ "_ok": true }] }));
    assert!(db.collection("test-coll").await.is_ok());
    assert_eq!(error(&db.collection("none").await.err().unwrap()), "Collection \"none\" does not exist");
    assert_eq!(db.collections().await, json!(["test-coll"]));
    // The same names again are no errors.
    assert!(sdk.db("test-db").await.is_ok());
    assert_eq!(db.create_collection("test-coll", json!({})).await["_ok"], "Collection already exists");
    // 1-db-op-cre: createIndex.
    let coll = db.collection("test-coll").await.unwrap();
    let index = coll.create_index("name", json!({})).await;
    assert_eq!(
        index,
        json!({ "_ok": true, "replyMsg": [{ "_ok": true, "result": "Re-indexing started." }] })
    );
    assert_eq!(error(&coll.create_index("na me", json!({})).await), "Invalid index field name");
    // 1-db-admin, 1-db-op-del: drop collection, drop db.
    assert_eq!(db.drop_collection("test-coll").await["_ok"], true);
    assert_eq!(db.collections().await, json!([]));
    assert_eq!(db.drop_database().await, json!({ "_ok": true }));
    assert_eq!(cluster.get("/db").await, (200, json!([])));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_2_administration_with_a_key() {
    let cluster = Cluster::start(1).await;
    let (_, made) = cluster.post("/sp", json!({ "db": "*", "app": "t", "expires": "1y" })).await;
    let words: Vec<&str> = made.as_str().unwrap().split_whitespace().collect();
    assert_eq!((words[0], words[2]), ("AccessId:", "AccessKey:"));
    let sdk = Sdk::new(&cluster).with_key(words[1], words[3]);
    // The key opens the administration too: POST /db and /admin by key.
    assert!(sdk.db("keyed").await.is_ok());
    let user = |name: &str, password: &str, admin: bool| json!({ "user": name, "password": password, "email": "a@b.c", "db": "keyed", "admin": admin });
    // 2-admin: weak password refused, add admin user, add user.
    assert!(!error(&sdk.post("/admin/user", &user("boss", "x", true)).await).is_empty());
    assert_eq!(sdk.post("/admin/user", &user("boss", "Str0ng-enough!", true)).await["_ok"], true);
    assert_eq!(sdk.post("/admin/user", &user("user1", "Str0ng-enough!", false)).await["_ok"], true);
    // The suite makes its password of twelve capital letters and digits: sometimes there is no digit among them.
    assert_eq!(sdk.post("/admin/user/", &user("user2", "ABCDEFGHIJKL", false)).await["_ok"], true);
    assert_eq!(sdk.delete("/admin/user/user2", &json!({})).await["_ok"], true);
    // Change password, add autz, rm autz, rm user.
    let password = json!({ "password": "0ther-Passw0rd" });
    assert_eq!(sdk.post("/admin/user/user1/password", &password).await["_ok"], true);
    assert!(!error(&sdk.post("/admin/user/user1/password", &json!({ "password": "x" })).await).is_empty());
    assert_eq!(sdk.post("/admin/user/user1/autz", &json!({ "db": "*", "admin": true })).await["_ok"], true);
    assert_eq!(sdk.delete("/admin/user/user1/autz", &json!({})).await["_ok"], true);
    assert_eq!(sdk.get("/admin/user", &json!({})).await[1]["admin"], false);
    assert_eq!(sdk.delete("/admin/user/user1", &json!({})).await["_ok"], true);
    assert_eq!(sdk.get("/admin/user", &json!({})).await.as_array().unwrap().len(), 1);
    // 1-db-op-cre, 1-db-op-del with a key of one database: it drops the database and creates it again, and no other.
    let made = sdk.post("/sp", &json!({ "db": "keyed", "app": "t" })).await;
    let words: Vec<&str> = made.as_str().unwrap().split_whitespace().collect();
    let own = Sdk::new(&cluster).with_key(words[1], words[3]);
    assert_eq!(own.db("keyed").await.unwrap().drop_database().await["_ok"], true);
    assert!(own.db("keyed").await.is_ok());
    assert!(error(&own.db("other").await.err().unwrap()).contains("403"));
    // Without a key, or with a wrong one, nothing is open.
    assert!(error(&Sdk::new(&cluster).db("keyed").await.err().unwrap()).contains("401"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_3_documents_by_id_key_and_index() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    // 3-data-id: insertOne without a primary key.
    db.create_collection("noPK", json!({})).await;
    let free = db.collection("noPK").await.unwrap();
    let inserted = free.insert_one(&json!({ "abc": "xy" })).await;
    let reply = &inserted["result"][0]["value"]["replyMsg"][0];
    assert_eq!((&inserted["_ok"], &inserted["result"][0]["status"]), (&json!(true), &json!("fulfilled")));
    assert_eq!((reply["_ok"].as_bool(), reply["_id"].as_str().unwrap().len()), (Some(true), 24));
    // 3-data-pk: insertOne, findOne by PK, findById.
    db.create_collection("pk", json!({ "primaryKey": ["xy"] })).await;
    let coll = db.collection("pk").await.unwrap();
    assert_eq!(coll.insert_one(&json!({ "xy": "k1", "name": "Joe", "n": 1 })).await["_ok"], true);
    let found = coll.find_one(&json!({ "xy": "k1" })).await;
    assert_eq!((&found["name"], &found["_id"]), (&json!("Joe"), &json!("8b55e6116cb02b0e8f70799e13a8b15f")));
    for field in ["_token", "_txnId", "_cre", "_chg"] {
        assert!(!found[field].is_null(), "{field}");
    }
    let id = found["_id"].clone();
    assert_eq!(coll.find_one(&json!({ "_id": id })).await["name"], "Joe");
    // updateOne by PK and by id, re-check.
    let set = |name: &str| json!({ "$set": { "name": name } });
    assert_eq!(coll.update_one(&json!({ "xy": "k1" }), &set("Jim")).await, json!({ "_ok": true, "_id": id }));
    assert_eq!(coll.find_one(&json!({ "xy": "k1" })).await["name"], "Jim");
    assert_eq!(coll.update_one(&json!({ "_id": id }), &set("Jon")).await, json!({ "_ok": true, "_id": id }));
    assert_eq!(coll.find_one(&json!({ "_id": id })).await["name"], "Jon");
    // delete by id; the re-check is exactly this error, by id and by key.
    assert_eq!(coll.delete_one(&json!({ "_id": id })).await["_ok"], true);
    assert_eq!(error(&coll.find_one(&json!({ "_id": id })).await), "Not found");
    assert_eq!(error(&coll.find_one(&json!({ "xy": "k1" })).await), "Not found");
    // 3-data-idx: create index, list indexes, insertMany of 4, find all twice, find by field, count.
    assert_eq!(coll.create_index("name", json!({})).await["_ok"], true);
    assert_eq!(coll.list_indexes().await, json!({ "_PK": ["xy"], "name": {} }));
    let four: Vec<Value> =
        (1..=4).map(|k| json!({ "xy": format!("z{k}"), "name": format!("N{}", k % 2) })).collect();
    let inserted = coll.insert_many(&json!(four)).await;
    assert_eq!((&inserted["_ok"], inserted["result"].as_array().unwrap().len()), (&json!(true), 4));
    for _ in 0..2 {
        assert_eq!(coll.find(&json!({})).await.unwrap().len(), 4);
    }
    assert_eq!(coll.find(&json!({ "name": "N1" })).await.unwrap().len(), 2);
    assert_eq!(coll.count(&json!({ "name": "N1" })).await, json!(2));
    assert_eq!(coll.count(&json!({})).await, json!(4));
    // 3-data-idx-del: drop index.
    assert_eq!(coll.drop_index("name").await["_ok"], true);
    assert_eq!(coll.list_indexes().await, json!({ "_PK": ["xy"] }));
    assert_eq!(coll.find(&json!({ "name": "N1" })).await.unwrap().len(), 2);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_4_updates() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    db.create_collection("upd", json!({ "primaryKey": ["xy"] })).await;
    let coll = db.collection("upd").await.unwrap();
    let document = json!({ "xy": "k1", "n": 5, "sub": { "a": 1 }, "list": ["a", "b"], "colour": "red" });
    coll.insert_one(&document).await;
    let key = json!({ "xy": "k1" });
    // updateOne not found.
    assert_eq!(
        error(&coll.update_one(&json!({ "xy": "none" }), &json!({ "$set": { "a": 1 } })).await),
        "Not found"
    );
    // $set, then replaceOne; replaceOne with a changed key is refused.
    assert_eq!(coll.update_one(&key, &json!({ "$set": { "n": 6 } })).await["_ok"], true);
    let mut whole = coll.find_one(&key).await;
    whole["n"] = json!(5);
    assert_eq!(coll.replace_one(&whole).await["_ok"], true);
    let mut other = whole.clone();
    other["xy"] = json!("k2");
    assert!(!error(&coll.replace_one(&other).await).is_empty());
    assert_eq!(error(&coll.replace_one(&json!({ "xy": "k1" })).await), "doc._id is required");
    // Each update, and what it makes of the document.
    for (scenario, update, field, expected) in [
        ("$set new path", json!({ "$set": { "p.q.r": 1 } }), "/p/q/r", json!(1)),
        ("$set multi", json!({ "$set": { "m": 1, "sub.b": 2 } }), "/sub", json!({ "a": 1, "b": 2 })),
        ("$inc", json!({ "$inc": { "n": 2 } }), "/n", json!(7)),
        ("$min", json!({ "$min": { "n": 3 } }), "/n", json!(3)),
        ("$max", json!({ "$max": { "n": 9 } }), "/n", json!(9)),
        ("$unset", json!({ "$unset": { "sub.b": "" } }), "/sub", json!({ "a": 1 })),
        ("$push", json!({ "$push": { "list": "c" } }), "/list", json!(["a", "b", "c"])),
        (
            "$push $each",
            json!({ "$push": { "list": { "$each": ["d", "e"] } } }),
            "/list",
            json!(["a", "b", "c", "d", "e"]),
        ),
        ("$addToSet no", json!({ "$addToSet": { "list": "a" } }), "/list", json!(["a", "b", "c", "d", "e"])),
        (
            "$addToSet yes",
            json!({ "$addToSet": { "list": "f" } }),
            "/list",
            json!(["a", "b", "c", "d", "e", "f"]),
        ),
        (
            "$addToSet $each",
            json!({ "$addToSet": { "list": { "$each": ["a", "g"] } } }),
            "/list/6",
            json!("g"),
        ),
        ("$pop last", json!({ "$pop": { "list": 1 } }), "/list", json!(["a", "b", "c", "d", "e", "f"])),
        ("$pop first", json!({ "$pop": { "list": -1 } }), "/list", json!(["b", "c", "d", "e", "f"])),
        ("$rename", json!({ "$rename": { "m": "renamed" } }), "/renamed", json!(1)),
    ] {
        let answer = coll.update_one(&key, &update).await;
        assert_eq!(answer["_ok"], true, "{scenario}: {answer}");
        // With readConcern too, through another node.
        let found = coll.find_one_with(&key, &json!({ "readConcern": "available" })).await;
        assert_eq!(found.pointer(field), Some(&expected), "{scenario}: {found}");
        assert_eq!(coll.find_one(&key).await.pointer(field), Some(&expected), "{scenario}");
    }
    // $rename onto a field that is there is refused.
    assert!(!error(&coll.update_one(&key, &json!({ "$rename": { "renamed": "n" } })).await).is_empty());
    // 4-updMany: no match, then $set on the colour.
    let set = json!({ "$set": { "colour": "green" } });
    let none = coll.update_many(&json!({ "colour": "none" }), &set).await;
    assert_eq!((&none["_ok"], &none["_okCnt"], &none["_nokCnt"]), (&json!(true), &json!(0), &json!(0)));
    for k in 0..10 {
        coll.insert_one(&json!({ "xy": format!("m{k}"), "colour": COLOURS[k % 5] })).await;
    }
    let changed = coll.update_many(&json!({ "colour": "red" }), &set).await;
    assert_eq!((&changed["_okCnt"], changed["updatedIds"].as_array().unwrap().len()), (&json!(3), 3));
    assert_eq!(coll.count(&json!({ "colour": "green" })).await, json!(5));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_5_find_count_delete() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    db.create_collection("find", json!({ "primaryKey": ["no"] })).await;
    let coll = db.collection("find").await.unwrap();
    // 5-find-prep: 550 inserts, single and many.
    let document = |no: usize| json!({ "no": no, "colour": COLOURS[no % 5], "sub": { "even": no.is_multiple_of(2) }, "b": no });
    let first = (0..50).map(|no| {
        let (coll, document) = (&coll, document(no));
        async move { assert_eq!(coll.insert_one(&document).await["_ok"], true) }
    });
    futures_util::future::join_all(first).await;
    let rest: Vec<Value> = (50..550).map(document).collect();
    assert_eq!(coll.insert_many(&json!(rest)).await["result"].as_array().unwrap().len(), 500);
    // 5-find: equal, equal on a sub-field.
    assert_eq!(coll.find(&json!({ "colour": "red" })).await.unwrap().len(), 110);
    assert_eq!(coll.find(&json!({ "sub": { "even": true } })).await.unwrap().len(), 275);
    assert_eq!(coll.find(&json!({ "sub.even": true, "colour": "blue" })).await.unwrap().len(), 55);
    // 5-find-optimize: with the option, and with a projection as a list and as an object.
    let options = json!({ "optimize": "only master nodes" });
    let found = coll.find_with(&json!({ "colour": "red" }), &json!({}), &options).await.unwrap();
    assert_eq!(found.len(), 110);
    for projection in [json!(["no"]), json!({ "no": 1 })] {
        let found = coll.find_with(&json!({ "colour": "red" }), &projection, &options).await.unwrap();
        assert_eq!((found.len(), found[0].get("no").is_some(), found[0].get("colour")), (110, true, None));
    }
    // Without a limit nothing is truncated; with one it is.
    assert_eq!(coll.find(&json!({})).await.unwrap().len(), 550);
    let found = coll.find_with(&json!({}), &json!({}), &json!({ "limit": 7, "MAX_ID_SCAN": 10_000 })).await;
    assert_eq!(found.unwrap().len(), 7);
    // 5-count: all, equal, by an operator in brackets.
    assert_eq!(coll.count(&json!({})).await, json!(550));
    assert_eq!(coll.count(&json!({ "colour": "red" })).await, json!(110));
    assert_eq!(
        coll.count(&json!({ "b": { "$ge": 500 }, "colour": { "$in": ["red", "blue"] } })).await,
        json!(20)
    );
    // 5-delete, 9-del: one by key, one by another field, many.
    assert_eq!(coll.delete_one(&json!({ "no": 3 })).await["_ok"], true);
    assert_eq!(error(&coll.delete_one(&json!({ "no": 3 })).await), "Not found");
    assert_eq!(coll.delete_one(&json!({ "b": 4 })).await["_ok"], true);
    let deleted = coll.delete_many(&json!({ "colour": "red" })).await;
    assert_eq!((&deleted["_ok"], deleted["results"].as_array().unwrap().len()), (&json!(true), 110));
    assert_eq!(coll.count(&json!({})).await, json!(438));
    // Ids that clients give themselves, numbers among them, are found in a path.
    db.create_collection("given", json!({})).await;
    let given = db.collection("given").await.unwrap();
    assert_eq!(
        given.insert_many(&json!([{ "_id": 10001, "a": 1 }, { "_id": "mine", "a": 2 }])).await["_ok"],
        true
    );
    assert_eq!(given.find_one(&json!({ "_id": 10001 })).await["a"], 1);
    assert_eq!(given.find_one(&json!({ "_id": "mine" })).await["a"], 2);
    assert_eq!(given.replace_one(&json!({ "_id": 10001, "a": 3 })).await["_ok"], true);
    assert_eq!(given.update_one(&json!({ "_id": 10001 }), &json!({ "$inc": { "a": 1 } })).await["_ok"], true);
    assert_eq!(given.find_one(&json!({ "_id": 10001 })).await["a"], 4);
    assert_eq!(given.delete_one(&json!({ "_id": 10001 })).await["_ok"], true);
    assert_eq!(error(&given.find_one(&json!({ "_id": 10001 })).await), "Not found");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_6_queries_with_indexes() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    db.create_collection("qry", json!({ "primaryKey": ["i"] })).await;
    let coll = db.collection("qry").await.unwrap();
    // 6-qry-prep: three indexes, one dropped again, 12 inserts.
    for (field, options) in [("str", json!({})), ("txt", json!({ "msbLen": 16 })), ("i", json!({}))] {
        assert_eq!(coll.create_index(field, options).await["_ok"], true);
    }
    assert_eq!(coll.drop_index("str").await["_ok"], true);
    for at in 1..=12 {
        let document = json!({ "i": 10_000 + at, "str": format!("str-{at}"), "txt": format!("a long text with number {at}"), "sub": { "x": at % 4 } });
        assert_eq!(coll.insert_one(&document).await["_ok"], true);
    }
    for (scenario, query, expected) in [
        ("equal", json!({ "i": 10_003 }), 1),
        ("sub", json!({ "sub": { "x": 1 } }), 3),
        ("$lt", json!({ "i": { "$lt": 10_004 } }), 3),
        ("$le", json!({ "i": { "$le": 10_004 } }), 4),
        ("$gt", json!({ "i": { "$gt": 10_004 } }), 8),
        ("$ge", json!({ "i": { "$ge": 10_004 } }), 9),
        ("$eq", json!({ "i": { "$eq": 10_004 } }), 1),
        ("$ne", json!({ "i": { "$ne": 10_004 } }), 11),
        ("$in", json!({ "i": { "$in": [10_001, 10_002] } }), 2),
        ("$nin", json!({ "i": { "$nin": [10_001, 10_002] } }), 10),
        ("$like", json!({ "str": { "$like": "r-1" } }), 4),
        ("$like on an index", json!({ "txt": { "$like": "number 7" } }), 1),
        ("$and", json!({ "$and": [{ "i": { "$gt": 10_002 } }, { "i": { "$lt": 10_005 } }] }), 2),
        ("$not", json!({ "$not": [{ "i": 10_001 }, { "i": 10_002 }, { "i": 10_003 }] }), 9),
        ("$nor", json!({ "$nor": [{ "i": 10_001 }, { "i": 10_002 }, { "i": 10_003 }] }), 9),
        ("$or", json!({ "$or": [{ "i": 10_001 }, { "str": "str-2" }] }), 2),
        (
            "nested",
            json!({ "$or": [{ "$and": [{ "i": { "$ge": 10_002 } }, { "sub.x": 2 }] }, { "i": 10_001 }] }),
            4,
        ),
    ] {
        // Own writes are seen at once, by find and by count.
        assert_eq!(coll.find(&query).await.unwrap().len(), expected, "{scenario}");
        assert_eq!(coll.count(&query).await, json!(expected), "{scenario}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suites_7_and_8_performance_and_drop() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    db.create_collection("perf", json!({ "primaryKey": ["k"] })).await;
    let coll = db.collection("perf").await.unwrap();
    for field in ["a", "b", "c"] {
        assert_eq!(coll.create_index(field, json!({})).await["_ok"], true);
    }
    for k in 0..100 {
        assert_eq!(coll.insert_one(&json!({ "k": k, "a": k, "b": "x", "c": k % 7 })).await["_ok"], true);
    }
    let many: Vec<Value> = (100..200).map(|k| json!({ "k": k, "a": k, "b": "y", "c": k % 7 })).collect();
    let inserted = coll.insert_many(&json!(many)).await;
    let ids: std::collections::BTreeSet<String> = inserted["result"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| one["value"]["replyMsg"][0]["_id"].to_string())
        .collect();
    assert_eq!((ids.len(), coll.count(&json!({ "b": "y" })).await), (100, json!(100)));
    assert_eq!(db.drop_database().await["_ok"], true);
    assert_eq!(cluster.get("/db/test-db").await.0, 404);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn suite_9_attachments() {
    let cluster = Cluster::start(3).await;
    let sdk = Sdk::new(&cluster);
    let db = sdk.db("test-db").await.unwrap();
    db.create_collection("att", json!({ "primaryKey": ["k"] })).await;
    let coll = db.collection("att").await.unwrap();
    coll.insert_one(&json!({ "k": 1 })).await;
    // The suite inserts a document that suite 4 has left behind, and reads the id from the answer.
    let again = coll.insert_one(&json!({ "k": 1, "text": "again" })).await;
    assert!(error(&again).contains("there already"), "{again}");
    let id = again["result"][0]["value"]["replyMsg"][0]["_id"].as_str().unwrap().to_owned();
    assert_eq!(coll.find_one(&json!({ "_id": id })).await.get("text"), None);
    let many = coll.insert_many(&json!([{ "k": 1 }, { "k": 2 }])).await;
    assert_eq!((&many["_ok"], &many["result"][0]["status"]), (&json!(false), &json!("rejected")), "{many}");
    assert_eq!(coll.delete_one(&json!({ "k": 2 })).await["_ok"], true);
    let path = format!("/db/test-db/att/{id}/attachment");
    // Two uploads, list, download, delete.
    let png = b"\x89PNG\r\n\x1a\n\0\0".to_vec();
    assert_eq!(coll.attach(&id, "label1", "white.png", "image/png", png.clone()).await["_ok"], true);
    assert_eq!(coll.attach(&id, "label2", "text.txt", "text/plain", b"hello".to_vec()).await["_ok"], true);
    let listed = coll.sdk.get(&path, &json!({})).await;
    assert_eq!((&listed["_ok"], &listed["white.png"]["label"]), (&json!(true), &json!("label1")));
    assert_eq!(
        (&listed["text.txt"]["_size"], &listed["text.txt"]["_mimetype"]),
        (&json!(5), &json!("text/plain"))
    );
    assert!(listed["text.txt"]["_cre"].as_str().unwrap().contains('T'));
    let answer = cluster.client.get(cluster.url(2, &format!("{path}/white.png"))).send().await.unwrap();
    assert_eq!(
        (answer.status().as_u16(), answer.headers()["content-type"].to_str().unwrap()),
        (200, "image/png")
    );
    assert_eq!(answer.bytes().await.unwrap(), png);
    assert_eq!(coll.sdk.delete(&format!("{path}/white.png"), &json!({})).await["_ok"], true);
    assert!(error(&coll.sdk.delete(&format!("{path}/white.png"), &json!({})).await).contains("404"));
    // The document shows which files it has, and loses them with itself.
    assert!(coll.find_one(&json!({ "k": 1 })).await["_attachment"]["text.txt"].is_object());
    assert_eq!(coll.delete_one(&json!({ "_id": id })).await["_ok"], true);
    assert_eq!(cluster.digests_agree().await, 0);
}
