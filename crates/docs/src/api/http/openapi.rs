//! The description of the HTTP API, served at `/db/openapi.json`.

use axum::http::{HeaderValue, header};
use serde_json::{Map, Value, json};

use crate::api::answer::{Answer, text_answer};

/// Every route: method, path below the base URL, what it does, the status of success, whether it has a JSON body.
const ROUTES: &[(&str, &str, &str, &str, bool)] = &[
    ("get", "/healthz", "Whether the node serves", "200", false),
    ("get", "/version", "Name, version and start time of the node", "200", false),
    ("get", "/db", "List the databases", "200", false),
    ("post", "/db", "Create a database: {name}", "202", true),
    ("delete", "/db/{db}", "Drop a database with everything in it", "202", false),
    ("get", "/db/{db}", "List the collections of a database", "201", false),
    ("post", "/db/{db}", "Create a collection: {collection, options: {primaryKey}}", "202", true),
    ("delete", "/db/{db}/{coll}/collection", "Drop a collection", "201", false),
    ("get", "/db/{db}/{coll}/index", "List the indexes", "201", false),
    ("post", "/db/{db}/{coll}/index/{field}", "Create an index: {options}", "201", true),
    ("delete", "/db/{db}/{coll}/index/{field}", "Drop an index", "201", false),
    ("get", "/db/{db}/{coll}", "Find documents: query, projection, options", "200", false),
    ("post", "/db/{db}/{coll}", "Insert one document or an array: {doc}", "202", true),
    ("put", "/db/{db}/{coll}", "Update documents: {filter, update, options: {one}}", "200", true),
    ("delete", "/db/{db}/{coll}", "Delete documents: filter, options", "200", false),
    ("post", "/db/{db}/{coll}/bulk", "Several writes: {operations, options: {ordered}}", "200", true),
    ("get", "/db/{db}/{coll}/count", "Count documents: query", "200", false),
    ("get", "/db/{db}/{coll}/explain", "How a query is answered", "200", false),
    ("get", "/db/{db}/{coll}/group/{field}", "Documents for each value of a field", "200", false),
    ("get", "/db/{db}/{coll}/changes", "Changes as server-sent events: from", "200", false),
    ("get", "/db/{db}/{coll}/{id}", "One document", "200", false),
    ("put", "/db/{db}/{coll}/{id}", "Replace a document", "200", true),
    ("delete", "/db/{db}/{coll}/{id}", "Delete a document", "200", false),
    ("get", "/db/{db}/{coll}/{id}/attachment", "List the files of a document", "200", false),
    ("post", "/db/{db}/{coll}/{id}/attachment", "Attach a file: multipart field `file`, label", "202", false),
    ("get", "/db/{db}/{coll}/{id}/attachment/{file}", "The content of a file", "200", false),
    ("delete", "/db/{db}/{coll}/{id}/attachment/{file}", "Delete a file", "200", false),
    ("get", "/sp", "List the access keys", "200", false),
    ("post", "/sp", "Make an access key: {db, app, expires}", "200", true),
    ("delete", "/sp", "Delete an access key: id", "200", false),
    ("get", "/admin/user", "List the users", "200", false),
    ("post", "/admin/user", "Add a user: {user, password, email, db, admin}", "200", true),
    ("delete", "/admin/user", "Delete a user: user", "200", false),
    ("delete", "/admin/user/{user}", "Delete a user", "200", false),
    ("post", "/admin/user/{user}/password", "Change a password: {password}", "200", true),
    ("post", "/admin/user/{user}/autz", "Change the rights of a user: {db, admin}", "200", true),
    ("delete", "/admin/user/{user}/autz", "Take all rights from a user", "200", false),
    ("get", "/admin/config", "Settings of the cluster and of this node", "200", false),
    ("get", "/monitoring", "Nodes, moves, and what is wrong", "200", false),
    ("get", "/metrics/api", "Requests so far, by kind", "200", false),
    ("get", "/metrics/db", "Databases, and what this node holds", "200", false),
    ("get", "/log", "What is wrong, the worst first", "200", false),
    ("get", "/backup", "List the backups", "200", false),
    ("post", "/backup", "Begin a backup: {dbName, collName, dest, retention}", "200", true),
    ("post", "/db/{db}/{coll}/backup", "Begin a backup of one collection", "200", false),
    (
        "post",
        "/restore",
        "Restore a backup under new names: {id, backupDate, source, dbName, collName, restoreIndex, deactivateExpire}",
        "200",
        true,
    ),
    ("get", "/backup-schedule", "List the schedules of backups", "200", false),
    (
        "post",
        "/backup-schedule",
        "Add a schedule: {dbName, collName, dest, schedule, retention}",
        "200",
        true,
    ),
    ("delete", "/backup-schedule", "Delete a schedule: id", "200", false),
    ("get", "/cluster", "The nodes and their states", "200", false),
    // tidy: allow, because it is a path of the HTTP API
    ("get", "/cluster/add", "Have a node take part: podName", "302", false),
    // tidy: allow, because it is a path of the HTTP API
    ("post", "/cluster/node", "Have a node take part: pod", "200", false),
    ("get", "/openapi.json", "This description", "200", false),
    ("get", "/swagger.yml", "This description as YAML", "200", false),
    ("get", "/api-docs", "This description as a page", "200", false),
    // tidy: allow, because it is a path of the HTTP API
    ("get", "/cluster/digest", "Documents and digest of every token on this node", "200", false),
];

/// Query parameters by route, beside those in the path.
fn query_of(method: &str, path: &str) -> &'static [&'static str] {
    match (method, path) {
        ("get", "/db/{db}/{coll}" | "/db/{db}/{coll}/explain") => &["query", "projection", "options"],
        ("get", "/db/{db}/{coll}/count" | "/db/{db}/{coll}/group/{field}") => &["query"],
        ("get", "/db/{db}/{coll}/changes") => &["from"],
        ("delete", "/db/{db}/{coll}") => &["filter", "options"],
        ("post", "/db/{db}/{coll}/{id}/attachment") => &["label"],
        ("delete", "/sp") => &["id", "db"],
        ("delete", "/admin/user") => &["user"],
        ("delete", "/backup-schedule") => &["id"],
        // tidy: allow, because it is a path of the HTTP API
        ("get", "/cluster/add") => &["podName"],
        // tidy: allow, because it is a path of the HTTP API
        ("post", "/cluster/node") => &["pod"],
        _ => &[],
    }
}

/// The document as YAML, of which JSON is a part.
pub(super) fn yaml() -> Answer {
    typed(serde_json::to_string_pretty(&document()).unwrap_or_default(), "application/yaml")
}

/// The routes as a page for people.
pub(super) fn page() -> Answer {
    let mut rows = String::new();
    for (method, path, summary, status, _) in ROUTES {
        let method = method.to_uppercase();
        rows += &format!(
            "<tr><td>{method}</td><td><code>{path}</code></td><td>{summary}</td><td>{status}</td></tr>\n"
        );
    }
    let page = format!(
        "<!doctype html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Capstan documents</title></head><body>\n\
         <h1>Capstan documents</h1>\n<p>Paths are below the base URL. For programs: <a href=\"openapi.json\">openapi.json</a>\n\
         <table>\n<tr><th>Method</th><th>Path</th><th>What it does</th><th>Success</th></tr>\n{rows}</table>\n</body></html>\n"
    );
    typed(page, "text/html; charset=utf-8")
}

fn typed(text: String, kind: &'static str) -> Answer {
    let mut answer = text_answer(200, &text);
    answer.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    answer
}

/// The document.
pub(super) fn document() -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for (method, path, summary, status, has_body) in ROUTES {
        let in_path = path.split('{').skip(1).filter_map(|rest| rest.split('}').next());
        let in_path = in_path.map(|name| parameter(name, "path"));
        let in_query = query_of(method, path).iter().map(|name| parameter(name, "query"));
        let parameters: Vec<Value> = in_path.chain(in_query).collect();
        let mut operation = json!({
            "summary": summary,
            "parameters": parameters,
            "responses": {
                *status: { "description": "Done" },
                "default": { "description": "An error", "content": {
                    "application/json": { "schema": { "$ref": "#/components/schemas/Error" } } } },
            },
        });
        if *has_body {
            operation["requestBody"] =
                json!({ "content": { "application/json": { "schema": { "type": "object" } } } });
        }
        if matches!(*path, "/healthz" | "/version" | "/openapi.json" | "/swagger.yml" | "/api-docs") {
            operation["security"] = json!([]);
        }
        let methods = paths.entry((*path).to_owned()).or_insert_with(|| json!({}));
        methods[*method] = operation;
    }
    json!({
        "openapi": "3.1.0",
        "info": { "title": "Capstan documents", "version": env!("CARGO_PKG_VERSION") },
        "servers": [{ "url": "/db" }],
        "paths": paths,
        "security": [{ "accessId": [], "accessKey": [] }, { "basic": [] }],
        "components": {
            "schemas": { "Error": { "type": "object", "properties": {
                "_ok": { "const": false }, "error": { "type": "string" }, "_error": { "type": "string" } } } },
            "securitySchemes": {
                "accessId": { "type": "apiKey", "in": "header", "name": "accessid" },
                "accessKey": { "type": "apiKey", "in": "header", "name": "accesskey" },
                "basic": { "type": "http", "scheme": "basic" },
            },
        },
    })
}

fn parameter(name: &str, place: &str) -> Value {
    json!({ "name": name, "in": place, "required": place == "path", "schema": { "type": "string" } })
}
