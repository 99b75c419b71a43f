//! Every route of the HTTP API, one after the other in the life of one cluster: its status and the shape of its answer.

use std::collections::BTreeSet;

use capstan_testkit::eventually;
use serde_json::{Value, json};

use crate::cluster::{Cluster, SOON};

/// What an answer looks like: a value whose fields are all there and equal, `"*"` for anything.
fn has_shape(answer: &Value, shape: &Value) -> bool {
    match (answer, shape) {
        (_, Value::String(any)) if any == "*" => true,
        (Value::String(text), Value::String(begin)) if begin.ends_with("...") => {
            text.starts_with(begin.trim_end_matches("..."))
        }
        (Value::Object(fields), Value::Object(wanted)) => {
            wanted.iter().all(|(name, shape)| fields.get(name).is_some_and(|field| has_shape(field, shape)))
        }
        (Value::Array(items), Value::Array(wanted)) => {
            items.len() == wanted.len()
                && items.iter().zip(wanted).all(|(item, shape)| has_shape(item, shape))
        }
        (answer, shape) => answer == shape,
    }
}

struct Routes {
    cluster: Cluster,
    /// Method and path of every route that was called, as the description writes them.
    called: BTreeSet<String>,
}

impl Routes {
    /// Calls a route with these names in its path.
    async fn call(
        &mut self,
        (method, route): (&str, &str),
        names: &[(&str, &str)],
        query: &str,
        body: Option<Value>,
        (status, shape): (u16, Value),
    ) -> Value {
        self.called.insert(format!("{} {route}", method.to_lowercase()));
        let path = names
            .iter()
            .fold(route.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value));
        let answer = self.cluster.send(method, self.called.len(), &format!("{path}{query}"), body).await;
        assert!(
            answer.0 == status && has_shape(&answer.1, &shape),
            "{method} {path}{query}: {answer:?}, not {status} {shape}"
        );
        answer.1
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_answers_with_its_status_and_its_shape() {
    let cluster = Cluster::start(3).await;
    let mut routes = Routes { cluster, called: BTreeSet::new() };
    let ok = json!({ "_ok": true });
    let replied = json!({ "_ok": true, "replyMsg": [{ "_ok": true }] });
    let d = [("db", "d"), ("coll", "c")];
    routes.call(("GET", "/healthz"), &[], "", None, (200, json!("OK"))).await;
    let version = json!({ "name": "*", "version": "*", "upSince": "*" });
    routes.call(("GET", "/version"), &[], "", None, (200, version)).await;
    // Databases, collections, indexes.
    routes.call(("POST", "/db"), &[], "", Some(json!({ "name": "d" })), (202, ok.clone())).await;
    let again = json!({ "_ok": "DB already exists" });
    routes.call(("POST", "/db"), &[], "", Some(json!({ "name": "d" })), (200, again)).await;
    routes.call(("POST", "/db"), &[], "", Some(json!({})), (400, json!({ "error": "*" }))).await;
    routes.call(("GET", "/db"), &[], "", None, (200, json!(["d"]))).await;
    let body = json!({ "collection": "c", "options": { "primaryKey": ["k"] } });
    routes.call(("POST", "/db/{db}"), &d, "", Some(body.clone()), (202, replied.clone())).await;
    let again = json!({ "_ok": "Collection already exists" });
    routes.call(("POST", "/db/{db}"), &d, "", Some(body), (200, again)).await;
    routes.call(("GET", "/db/{db}"), &d, "", None, (201, json!(["c"]))).await;
    let none = json!({ "error": "DB \"x\" not found" });
    routes.call(("GET", "/db/{db}"), &[("db", "x")], "", None, (404, none)).await;
    let field = [("db", "d"), ("coll", "c"), ("field", "n")];
    let indexing = json!({ "_ok": true, "replyMsg": [{ "_ok": true, "result": "Re-indexing started." }] });
    let route = "/db/{db}/{coll}/index/{field}";
    routes.call(("POST", route), &field, "", Some(json!({ "options": {} })), (201, indexing)).await;
    let listed = json!({ "_PK": ["k"], "n": {} });
    routes.call(("GET", "/db/{db}/{coll}/index"), &d, "", None, (201, listed)).await;
    routes.call(("DELETE", route), &field, "", None, (201, replied.clone())).await;
    // Documents.
    let inserted =
        json!({ "status": "fulfilled", "value": { "_ok": true, "replyMsg": [{ "_ok": true, "_id": "*" }] } });
    let inserted = json!({ "_ok": true, "result": [inserted, inserted, inserted] });
    let three = json!({ "doc": [{ "k": 1, "n": 1 }, { "k": 2, "n": 2 }, { "k": 3, "n": 2 }] });
    let coll = "/db/{db}/{coll}";
    let answer = routes.call(("POST", coll), &d, "", Some(three), (202, inserted)).await;
    let id = answer["result"][0]["value"]["_id"].as_str().unwrap().to_owned();
    let named = [("db", "d"), ("coll", "c"), ("id", id.as_str()), ("file", "f.txt"), ("field", "n")];
    let found = json!({ "_ok": true, "_okCnt": "*", "_nokCnt": 0, "docIds": [id], "data": [{ "k": 1 }], "dataLength": 1 });
    routes.call(("GET", coll), &d, "?query[k]=1", None, (200, found.clone())).await;
    let missing = json!({ "_ok": false, "_error": "Not found", "data": [] });
    routes.call(("GET", coll), &d, "?query[k]=9&options[one]=true", None, (200, missing.clone())).await;
    let counted = json!({ "_ok": true, "count": 2 });
    routes.call(("GET", "/db/{db}/{coll}/count"), &d, "?query[n]=2", None, (200, counted)).await;
    let plan = json!({ "_ok": true, "found": 3 });
    routes.call(("GET", "/db/{db}/{coll}/explain"), &d, "", None, (200, plan)).await;
    let groups = json!({ "_ok": true, "groups": [{ "value": 1, "count": 1 }, { "value": 2, "count": 2 }] });
    routes.call(("GET", "/db/{db}/{coll}/group/{field}"), &named, "", None, (200, groups)).await;
    let one = "/db/{db}/{coll}/{id}";
    let document = json!({ "_ok": true, "doc": { "k": 1 }, "data": [{ "k": 1 }], "dataLength": 1 });
    routes.call(("GET", one), &named, "", None, (200, document)).await;
    let update = |filter: Value, one: bool| json!({ "filter": filter, "update": { "$inc": { "n": 1 } }, "options": { "one": one } });
    let changed = json!({ "_ok": true, "_id": id });
    routes.call(("PUT", coll), &d, "", Some(update(json!({ "k": 1 }), true)), (200, changed.clone())).await;
    let many = json!({ "_ok": true, "_okCnt": 3, "_nokCnt": 0, "updatedIds": ["*", "*", "*"] });
    routes.call(("PUT", coll), &d, "", Some(update(json!({}), false)), (200, many)).await;
    let document = json!({ "_id": id, "k": 1, "n": 9 });
    routes.call(("PUT", one), &named, "", Some(document), (200, changed)).await;
    let other = json!({ "_id": id, "k": 5 });
    let refused = json!({ "_error": "id validation failed" });
    routes.call(("PUT", one), &named, "", Some(other), (400, refused)).await;
    let operations = json!({ "operations": [{ "insertOne": { "doc": { "k": 4 } } }] });
    let done = json!({ "_ok": true, "_okCnt": 1, "_nokCnt": 0, "results": "*" });
    routes.call(("POST", "/db/{db}/{coll}/bulk"), &d, "", Some(operations), (200, done)).await;
    files(&mut routes, &named).await;
    // Deletes: by either name of the filter, never by both, and by id.
    let both = json!({ "error": "*" });
    routes.call(("DELETE", coll), &d, "?query[k]=4&filter[k]=3", None, (400, both)).await;
    let deleted = json!({ "_ok": true, "results": ["*"], "deletedCount": 1 });
    routes.call(("DELETE", coll), &d, "?query[k]=4", None, (200, deleted.clone())).await;
    routes.call(("DELETE", coll), &d, "?filter[k]=3", None, (200, deleted)).await;
    routes.call(("DELETE", one), &named, "", None, (200, ok.clone())).await;
    routes.call(("DELETE", one), &named, "", None, (404, json!({ "error": "*" }))).await;
    routes.call(("GET", "/db/{db}/{coll}/count"), &d, "", None, (200, json!({ "count": 1 }))).await;
    backups(&mut routes, &d).await;
    administration(&mut routes).await;
    routes.call(("DELETE", "/db/{db}/{coll}/collection"), &d, "", None, (201, replied)).await;
    routes.call(("DELETE", "/db/{db}"), &d, "", None, (202, ok)).await;
    description(&mut routes).await;
}

async fn files(routes: &mut Routes, named: &[(&str, &str)]) {
    let (route, file) = ("/db/{db}/{coll}/{id}/attachment", "/db/{db}/{coll}/{id}/attachment/{file}");
    let path = named
        .iter()
        .fold(route.to_owned(), |path, (name, value)| path.replace(&format!("{{{name}}}"), value));
    let body = "--b\r\ncontent-disposition: form-data; name=\"file\"; filename=\"f.txt\"\r\n\
                content-type: text/plain\r\n\r\nhello\r\n--b--\r\n";
    let request = routes.cluster.client.post(routes.cluster.url(0, &format!("{path}?label=l")));
    let sent =
        request.header("content-type", "multipart/form-data; boundary=b").body(body).send().await.unwrap();
    assert_eq!(sent.status().as_u16(), 202);
    assert_eq!(sent.json::<Value>().await.unwrap(), json!({ "_ok": true }));
    routes.call(("POST", route), named, "", Some(json!({})), (400, json!({ "error": "*" }))).await;
    let about = json!({ "label": "l", "_mimetype": "text/plain", "_size": 5, "_cre": "*" });
    routes.call(("GET", route), named, "", None, (200, json!({ "_ok": true, "f.txt": about }))).await;
    routes.call(("GET", file), named, "", None, (200, json!("hello"))).await;
    routes.call(("DELETE", file), named, "", None, (200, json!({ "_ok": true }))).await;
    let missing = json!({ "error": "Attachment not found" });
    routes.call(("GET", file), named, "", None, (400, missing)).await;
}

async fn backups(routes: &mut Routes, d: &[(&str, &str)]) {
    let error = json!({ "error": "*" });
    routes.call(("GET", "/backup"), &[], "", None, (200, json!([]))).await;
    for (wrong, status) in [
        (json!({}), 400),
        (json!({ "dbName": "d", "dest": "Cloud" }), 400),
        (json!({ "dbName": "d", "retention": "2y" }), 400),
        (json!({ "dbName": "none", "collName": "*" }), 404),
        (json!({ "dbName": "d", "collName": "none" }), 404),
    ] {
        routes.call(("POST", "/backup"), &[], "", Some(wrong), (status, error.clone())).await;
    }
    let wanted = json!({ "dbName": "d", "collName": "*", "dest": "File", "retention": "1w" });
    routes.call(("POST", "/backup"), &[], "", Some(wanted), (200, json!("Started backup ..."))).await;
    let complete = async |routes: &Routes, count: usize| {
        eventually("the backups are complete", SOON, async || {
            let (_, listed) = routes.cluster.get("/backup").await;
            let complete =
                listed.as_array().unwrap().iter().filter(|backup| backup["status"] == "OK").count();
            if complete == count { Ok(listed) } else { Err(listed.to_string()) }
        })
        .await
    };
    let listed = complete(routes, 1).await;
    let record = json!([{ "id": "*", "date": "*", "location": "*", "dbName": "d", "collName": "*", "size": "*",
                          "status": "OK", "retention": "1w", "restore": "" }]);
    routes.call(("GET", "/backup"), &[], "", None, (200, record)).await;
    let route = ("POST", "/db/{db}/{coll}/backup");
    routes.call(route, d, "", None, (200, json!("Started backup ..."))).await;
    complete(routes, 2).await;
    // Restored under another name, by a request to any node.
    let date = listed[0]["date"].as_str().unwrap().to_owned();
    routes.call(("POST", "/restore"), &[], "", Some(json!({ "dbName": "x" })), (404, error.clone())).await;
    let wish = json!({ "backupDate": date, "source": "File", "dbName": "d", "collName": "c", "restoreIndex": true,
                       "deactivateExpire": false });
    routes.call(("POST", "/restore"), &[], "", Some(wish), (200, json!("Started restore ..."))).await;
    let restored = format!("/db/d/c-restore{date}/count");
    eventually("the collection is restored", SOON, async || {
        let (_, answer) = routes.cluster.get(&restored).await;
        if answer["count"] == 1 { Ok(()) } else { Err(answer.to_string()) }
    })
    .await;
    // Schedules.
    let route = "/backup-schedule";
    let wrong = json!({ "dbName": "d", "schedule": "every day" });
    routes.call(("POST", route), &[], "", Some(wrong), (400, error.clone())).await;
    let yearly =
        json!({ "dbName": "d", "collName": "c", "dest": "File", "schedule": "0 0 1 1 *", "retention": "3m" });
    routes
        .call(("POST", route), &[], "", Some(yearly.clone()), (200, json!("Added backup schedule ...")))
        .await;
    let listed = routes.call(("GET", route), &[], "", None, (200, json!([yearly]))).await;
    let id = format!("?id={}", listed[0]["id"].as_str().unwrap());
    routes.call(("DELETE", route), &[], &id, None, (200, json!("Deleted"))).await;
    routes.call(("DELETE", route), &[], &id, None, (404, error)).await;
}

async fn administration(routes: &mut Routes) {
    let (ok, error) = (json!({ "_ok": true }), json!({ "error": "*" }));
    let user = json!({ "user": "u", "password": "str0ng-enough", "email": "e", "db": "d", "admin": false });
    for _ in 0..2 {
        routes.call(("POST", "/admin/user"), &[], "", Some(user.clone()), (200, ok.clone())).await;
        let listed = json!([{ "user": "u", "email": "e", "db": "d", "admin": false }]);
        routes.call(("GET", "/admin/user"), &[], "", None, (200, listed)).await;
        let named = [("user", "u")];
        let body = json!({ "password": "an0ther-one" });
        let route = ("POST", "/admin/user/{user}/password");
        routes.call(route, &named, "", Some(body), (200, ok.clone())).await;
        let (route, body) = ("/admin/user/{user}/autz", json!({ "db": "*", "admin": true }));
        routes.call(("POST", route), &named, "", Some(body), (200, ok.clone())).await;
        routes.call(("DELETE", route), &named, "", None, (200, ok.clone())).await;
        // Each of the two ways to delete it.
        if routes.called.contains("delete /admin/user/{user}") {
            routes.call(("DELETE", "/admin/user"), &[], "?user=u", None, (200, ok.clone())).await;
        } else {
            routes.call(("DELETE", "/admin/user/{user}"), &named, "", None, (200, ok.clone())).await;
        }
    }
    routes.call(("DELETE", "/admin/user"), &[], "", None, (400, error.clone())).await;
    let config =
        json!({ "TOKEN_LEN": 1, "DATA_REPLICATION": 3, "API_PATH": "/db", "MODE": "DIRECT", "PORT": "*" });
    let config = routes.call(("GET", "/admin/config"), &[], "", None, (200, config)).await;
    assert!(!config.to_string().contains("secret"), "{config}");
    routes.call(("GET", "/monitoring"), &[], "", None, (200, json!({ "nodes": "*", "findings": "*" }))).await;
    let requests = json!({ "node": "*", "requests": { "insert": "*", "find": "*" } });
    routes.call(("GET", "/metrics/api"), &[], "", None, (200, requests)).await;
    let held = json!({ "documents": "*", "bytes": "*", "databases": { "d": { "collections": 2 } } });
    routes.call(("GET", "/metrics/db"), &[], "", None, (200, held)).await;
    routes.call(("GET", "/log"), &[], "", None, (200, json!("*"))).await;
    let nodes = json!([{ "node": "n1" }, { "node": "n2" }, { "node": "n3" }]);
    // tidy: allow, because these are paths of the HTTP API
    let (list, add, node) = ("/cluster", "/cluster/add", "/cluster/node");
    routes.call(("GET", list), &[], "", None, (200, nodes)).await;
    routes.call(("GET", add), &[], "", None, (400, error.clone())).await;
    routes.call(("GET", add), &[], "?podName=n9", None, (404, error)).await;
    // The client follows the redirect to the list of nodes.
    routes.call(("GET", add), &[], "?podName=n2", None, (200, json!("*"))).await;
    let address = routes.cluster.nodes["n3"].http;
    let pod = format!("?pod={address}/db");
    routes.call(("POST", node), &[], &pod, None, (200, ok)).await;
    // tidy: allow, because it is a path of the HTTP API
    routes.call(("GET", "/cluster/digest"), &[], "", None, (200, json!({ "tokens": "*" }))).await;
}

async fn description(routes: &mut Routes) {
    routes.call(("GET", "/swagger.yml"), &[], "", None, (200, json!({ "openapi": "3.1.0" }))).await;
    routes.call(("GET", "/api-docs"), &[], "", None, (200, json!("<!doctype html>..."))).await;
    let description =
        routes.call(("GET", "/openapi.json"), &[], "", None, (200, json!({ "paths": "*" }))).await;
    // Access keys last: from the first one on, every request needs one.
    routes.call(("GET", "/sp"), &[], "", None, (200, json!([]))).await;
    let body = json!({ "db": "*", "app": "t", "expires": "1y" });
    let made = routes.call(("POST", "/sp"), &[], "", Some(body), (200, json!("AccessId: all_/..."))).await;
    let key: Vec<&str> = made.as_str().unwrap().split_whitespace().collect();
    let keyed = |method: &str, path: &str| {
        let request = routes.cluster.client.request(method.parse().unwrap(), routes.cluster.url(0, path));
        request.header("accessid", key[1]).header("accesskey", key[3])
    };
    for path in ["/sp", "/backup", "/backup-schedule", "/admin/config", "/log", "/monitoring"] {
        assert_eq!(routes.cluster.get(path).await.0, 401, "{path}");
        assert_eq!(keyed("GET", path).send().await.unwrap().status().as_u16(), 200, "{path}");
    }
    // Dropping a database deletes its keys.
    let send = async |method: &str, path: &str, body: Value| {
        keyed(method, path).json(&body).send().await.unwrap().status().as_u16()
    };
    assert_eq!(send("POST", "/db", json!({ "name": "gone" })).await, 202);
    assert_eq!(send("POST", "/sp", json!({ "db": "gone", "app": "t" })).await, 200);
    assert_eq!(send("DELETE", "/db/gone", json!({})).await, 202);
    let listed: Value = keyed("GET", "/sp").send().await.unwrap().json().await.unwrap();
    assert_eq!(listed.as_array().map(Vec::len), Some(1), "{listed}");
    let deleted = keyed("DELETE", &format!("/sp?id={}", key[1])).send().await.unwrap();
    assert_eq!((deleted.status().as_u16(), deleted.text().await.unwrap().as_str()), (200, "Deleted"));
    routes.called.insert("delete /sp".to_owned());
    // `changes` never ends and has a test of its own.
    routes.called.insert("get /db/{db}/{coll}/changes".to_owned());
    let described: BTreeSet<String> = description["paths"]
        .as_object()
        .unwrap()
        .iter()
        .flat_map(|(path, methods)| {
            methods.as_object().unwrap().keys().map(move |method| format!("{method} {path}"))
        })
        .collect();
    assert_eq!(routes.called, described, "routes that were called, and routes of the description");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_schedule_makes_one_backup_in_a_minute_on_one_of_the_nodes() {
    let cluster = Cluster::start(3).await;
    cluster.collection(Some("k")).await;
    assert_eq!(cluster.post("/db/db/c", json!({ "doc": { "k": 1 } })).await.0, 202);
    let schedule = json!({ "dbName": "*", "schedule": "* * * * *", "retention": "1w" });
    assert_eq!(cluster.post("/backup-schedule", schedule).await.0, 200);
    // One that fails is made again in the next minute.
    let listed = eventually("a backup is complete", SOON * 3, async || {
        let (_, listed) = cluster.get("/backup").await;
        let complete = listed.as_array().is_some_and(|all| all.iter().any(|one| one["status"] == "OK"));
        if complete { Ok(listed) } else { Err(listed.to_string()) }
    })
    .await;
    let dates: Vec<&str> = listed.as_array().unwrap().iter().filter_map(|one| one["date"].as_str()).collect();
    let once: BTreeSet<&&str> = dates.iter().collect();
    assert_eq!(dates.len(), once.len(), "{listed}");
}
