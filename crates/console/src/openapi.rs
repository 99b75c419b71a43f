//! The description of the JSON API for programs: OpenAPI 3.1, written from one table.

use axum::Json;
use serde_json::{Map, Value, json};

/// One line of the table: method, path, summary, and the names of the schemas of body and answer.
struct Operation {
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    /// What is sent, if anything is.
    body: Option<&'static str>,
    /// What is answered; nothing: 204.
    answer: Option<&'static str>,
    /// The status of success.
    status: u16,
    /// Parameters behind the `?`: name and what it means.
    query: &'static [(&'static str, &'static str)],
}

const fn get(path: &'static str, summary: &'static str, answer: &'static str) -> Operation {
    Operation { method: "get", path, summary, body: None, answer: Some(answer), status: 200, query: &[] }
}

const fn send(
    method: &'static str,
    path: &'static str,
    summary: &'static str,
    body: &'static str,
    answer: &'static str,
) -> Operation {
    Operation { method, path, summary, body: Some(body), answer: Some(answer), status: 200, query: &[] }
}

impl Operation {
    const fn query(self, query: &'static [(&'static str, &'static str)]) -> Operation {
        Operation { query, ..self }
    }

    const fn status(self, status: u16) -> Operation {
        Operation { status, ..self }
    }

    const fn bare(self) -> Operation {
        Operation { body: None, ..self }
    }

    const fn silent(self) -> Operation {
        Operation { answer: None, status: 204, ..self }
    }
}

const ASKED: &[(&str, &str)] = &[("asked_by", "who asks"), ("reason", "why")];
const LIVE: &[(&str, &str)] =
    &[("live", "`true`: ask the proxies about keys, memory and health of the nodes")];
const QUESTION: &[(&str, &str)] =
    &[("identity", "the user or account"), ("verb", "what it wants to do"), ("object", "to which object")];
const RELEASE: &[(&str, &str)] = &[("release", "the release that is asked about")];

/// Every operation of the API.
const OPERATIONS: &[Operation] = &[
    get("/api/v1/openapi.json", "This description", "Object"),
    get("/api/v1/session", "Who is signed in", "Object"),
    send("post", "/api/v1/session", "Sign in", "SignIn", "Object"),
    send("delete", "/api/v1/session", "Sign out", "Object", "Object").bare().silent(),
    get("/api/v1/access", "Users, accounts, access keys and roles", "Object"),
    get("/api/v1/access/why", "Whether something is allowed, and why", "Object").query(QUESTION),
    send("post", "/api/v1/access/identities", "Create a user or an account", "NewMember", "Object"),
    send("delete", "/api/v1/access/identities/{name}", "Remove a user or an account", "Object", "Object")
        .bare()
        .silent(),
    send("post", "/api/v1/access/identities/{name}/keys", "Issue an access key", "NewKey", "Object"),
    send("post", "/api/v1/access/keys/{id}/rotate", "Replace an access key", "KeyOverlap", "Object"),
    send("delete", "/api/v1/access/keys/{id}", "Revoke an access key", "Object", "Object").bare().silent(),
    send("post", "/api/v1/certs/tokens", "Make a token with which a host joins", "NewHost", "Object"),
    send("delete", "/api/v1/certs/hosts/{id}", "Renew a host's certificate no more", "Object", "Object")
        .bare()
        .silent(),
    send("post", "/api/v1/certs/join", "The first certificate of a host, for a token", "Join", "Object"),
    send(
        "post",
        "/api/v1/certs/renew",
        "A host's next certificate; it shows the present one",
        "Renew",
        "Object",
    ),
    get("/api/v1/tasks", "What runs in this process", "Object"),
    get("/api/v1/findings", "What is wrong, worst first", "Object"),
    send("delete", "/api/v1/incidents/{code}", "Acknowledge incidents of a code", "Object", "Object")
        .bare()
        .query(ASKED),
    get("/api/v1/events", "What was decided and done, oldest first", "Object"),
    get("/api/v1/hosts", "All hosts", "Object"),
    get("/api/v1/hosts/{id}", "One host", "Object"),
    send("delete", "/api/v1/hosts/{id}", "Forget a host that is down", "Object", "Object")
        .bare()
        .silent()
        .query(ASKED),
    send("put", "/api/v1/hosts/{id}/drain", "Empty a host", "Object", "Object").bare().query(ASKED),
    send("delete", "/api/v1/hosts/{id}/drain", "Use a host again", "Object", "Object").bare().query(ASKED),
    get("/api/v1/fleet/status", "How far the update of the fleet is", "Object"),
    get("/api/v1/fleet/hosts", "The hosts of the fleet", "Object"),
    get("/api/v1/fleet/hosts/{lrn}/why", "What a host waits for", "Object"),
    get("/api/v1/fleet/plan", "What applying a release would do", "Object").query(RELEASE),
    get("/api/v1/fleet/history", "Requests of the past", "FleetRequests"),
    send("post", "/api/v1/fleet/apply", "Update the fleet to a release", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/pause", "Begin no further host", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/resume", "Go on", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/stop", "End the update", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/recover", "Bring stopped hosts to a release", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/promote", "Begin the next wave now", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/rollback", "Go back to an older release", "FleetWish", "Object"),
    send("put", "/api/v1/fleet/hosts/{lrn}", "Take a host into the fleet", "FleetMember", "Object"),
    send("delete", "/api/v1/fleet/hosts/{lrn}", "Let a host leave the fleet", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/hosts/{lrn}/retry", "Have a host take part again", "FleetWish", "Object"),
    send("post", "/api/v1/fleet/hosts/{lrn}/skip", "Go on without a host", "FleetWish", "Object"),
    get("/api/v1/fleet/policies", "The rules of every group that has its own", "FleetPolicies"),
    get("/api/v1/fleet/policies/{group}", "The rules of a group", "Object"),
    send("put", "/api/v1/fleet/policies/{group}", "Set the rules of a group", "Object", "Object"),
    send("delete", "/api/v1/fleet/policies/{group}", "Forget the rules of a group", "Object", "Object")
        .bare(),
    get("/api/v1/fleet/config", "All settings; secrets are not shown", "FleetSettings"),
    get("/api/v1/fleet/config/{key}", "One setting", "Object"),
    send("put", "/api/v1/fleet/config/{key}", "Change a setting", "FleetValue", "Object"),
    send("delete", "/api/v1/fleet/config/{key}", "Forget a setting", "Object", "Object").bare(),
    get("/api/v1/redis/hosts", "The pool: hosts, their nodes, and who uses them", "RedisHosts"),
    send("put", "/api/v1/redis/hosts/{proxy}", "Offer the nodes behind a proxy", "RedisOffer", "RedisDone"),
    send("delete", "/api/v1/redis/hosts/{proxy}", "Take a host out of the pool", "Object", "RedisDone")
        .bare(),
    get("/api/v1/redis/clusters", "All clusters", "RedisClusters"),
    send("post", "/api/v1/redis/clusters", "Create a cluster", "RedisNewCluster", "RedisCluster").status(201),
    get("/api/v1/redis/clusters/{name}", "One cluster: nodes, slots, moves", "RedisCluster").query(LIVE),
    send("delete", "/api/v1/redis/clusters/{name}", "Delete a cluster and its data", "Object", "Object")
        .bare()
        .silent(),
    send(
        "post",
        "/api/v1/redis/clusters/{name}/scale",
        "Change the number of nodes",
        "RedisSize",
        "RedisScaled",
    ),
    send(
        "post",
        "/api/v1/redis/clusters/{name}/rebalance",
        "Spread the slots evenly",
        "Nothing",
        "RedisDone",
    ),
    get("/api/v1/redis/clusters/{name}/connect", "What a client needs", "Object"),
    send("post", "/api/v1/redis/clusters/{name}/moves", "Move slots to a node", "RedisNewMove", "RedisBegun")
        .status(202),
    send("delete", "/api/v1/redis/clusters/{name}/moves/{id}", "Take a move back", "Object", "Object")
        .bare()
        .silent(),
    send(
        "post",
        "/api/v1/redis/clusters/{name}/failover",
        "Make a replica the primary",
        "RedisSuccession",
        "RedisSuccessor",
    ),
    get("/api/v1/redis/moves", "Moves that are recorded or under way", "RedisMoves"),
    get("/api/v1/redis/check", "What is wrong with Redis, and what waits", "RedisReport"),
    send("post", "/api/v1/redis/fix", "Put right what can be", "Nothing", "Object"),
];

/// Serves the description.
pub(crate) async fn serve() -> Json<Value> {
    Json(document(env!("CARGO_PKG_VERSION")))
}

fn document(version: &str) -> Value {
    let mut paths: Map<String, Value> = Map::new();
    for operation in OPERATIONS {
        let path = paths.entry(operation.path).or_insert_with(|| json!({}));
        path[operation.method] = described(operation);
    }
    json!({
        "openapi": "3.1.0",
        "info": {
            "title": "Capstan",
            "version": version,
            "description": "Requests that change something with POST or PUT carry JSON (`Content-Type: application/json`). \
                            An error is `{\"error\": text}`: 400 what was asked makes no sense, 404 there is no such thing, \
                            409 it contradicts what is, 415 and 422 the body is not what is described here, 503 try again."
        },
        "paths": paths,
        "components": { "schemas": schemas() },
    })
}

fn described(operation: &Operation) -> Value {
    let reference = |name: &str| json!({ "$ref": format!("#/components/schemas/{name}") });
    let content = |name: &str| json!({ "application/json": { "schema": reference(name) } });
    let in_path = operation.path.split('/').filter_map(|part| part.strip_prefix('{')?.strip_suffix('}'));
    let in_path = in_path
        .map(|name| json!({ "name": name, "in": "path", "required": true, "schema": { "type": "string" } }));
    let behind = operation.query.iter().map(|(name, means)| {
        json!({ "name": name, "in": "query", "required": false, "description": means, "schema": { "type": "string" } })
    });
    let parameters: Vec<Value> = in_path.chain(behind).collect();
    let tag = operation.path.split('/').nth(3).unwrap_or_default();
    let mut success = json!({ "description": operation.summary });
    if let Some(answer) = operation.answer {
        success["content"] = content(answer);
    }
    let mut described = json!({
        "summary": operation.summary,
        "tags": [tag],
        "parameters": parameters,
        "responses": {
            operation.status.to_string(): success,
            "default": { "description": "What went wrong, and what to do about it", "content": content("Error") },
        },
    });
    if let Some(body) = operation.body {
        described["requestBody"] = json!({ "required": true, "content": content(body) });
    }
    described
}

/// An object of these fields; those with a `!` are required.
fn object(fields: &[(&str, Value)]) -> Value {
    let name = |field: &str| field.trim_end_matches('!').to_owned();
    let required: Vec<String> =
        fields.iter().filter(|(field, _)| field.ends_with('!')).map(|(field, _)| name(field)).collect();
    let properties: Map<String, Value> =
        fields.iter().map(|(field, schema)| (name(field), schema.clone())).collect();
    json!({ "type": "object", "required": required, "properties": properties })
}

fn list(of: Value) -> Value {
    json!({ "type": "array", "items": of })
}

fn schemas() -> Value {
    let text = json!({ "type": "string" });
    let maybe = json!({ "type": ["string", "null"] });
    let number = json!({ "type": "integer", "minimum": 0 });
    let flag = json!({ "type": "boolean" });
    let address = json!({ "type": "string", "description": "host:port", "examples": ["127.0.0.1:7711"] });
    let slot = json!({ "type": "integer", "minimum": 0, "maximum": 16383 });
    let one_of = |words: &[&str]| json!({ "type": "string", "enum": words });
    let place = object(&[("proxy!", address.clone()), ("node!", address.clone())]);
    let moving = object(&[
        ("cluster!", text.clone()),
        ("id!", number.clone()),
        ("first!", slot.clone()),
        ("last!", slot.clone()),
        ("source!", place.clone()),
        ("target!", place),
        ("state!", one_of(&["queued", "copying"])),
        ("why!", text.clone()),
        ("asked_at!", text.clone()),
        ("progress", json!({ "type": ["object", "null"] })),
    ]);
    let cluster_line = [
        ("name!", text.clone()),
        ("phase!", one_of(&["active", "creating", "moving", "deleting"])),
        ("epoch!", number.clone()),
        ("primaries!", number.clone()),
        ("wanted!", number.clone()),
        ("replicas!", number.clone()),
        ("slots!", number.clone()),
        ("moves!", number.clone()),
    ];
    let live = object(&[
        ("health", text.clone()),
        ("data", one_of(&["current", "whole", "older", "gone"])),
        ("linked", flag.clone()),
        ("why", maybe.clone()),
        ("keys", number.clone()),
        ("used_memory", number.clone()),
        ("offset", number.clone()),
    ]);
    let node = object(&[
        ("node!", address.clone()),
        ("proxy!", address.clone()),
        ("role!", text.clone()),
        ("replica_of", maybe.clone()),
        ("slots!", list(text.clone())),
        ("slot_count!", number.clone()),
        ("in_sync!", flag.clone()),
        ("live", json!({ "anyOf": [live, { "type": "null" }] })),
    ]);
    let mut cluster: Vec<(&str, Value)> = cluster_line[..7].to_vec();
    cluster.extend([
        ("incarnation!", number.clone()),
        ("max_memory!", number.clone()),
        ("mode!", one_of(&["cluster", "single"])),
        ("persistence!", one_of(&["none", "aof", "rdb"])),
        ("cache!", flag.clone()),
        (
            "waiting!",
            list(object(&[
                ("primary!", address.clone()),
                ("state!", text.clone()),
                ("cause!", text.clone()),
                ("since!", number.clone()),
            ])),
        ),
        ("nodes!", list(node)),
        (
            "slot_map!",
            list(object(&[
                ("first!", slot.clone()),
                ("last!", slot),
                ("node", maybe.clone()),
                ("moving_to", maybe.clone()),
            ])),
        ),
        ("moves!", list(moving.clone())),
        ("pending!", list(text.clone())),
    ]);
    let host = object(&[
        ("proxy!", address.clone()),
        ("epoch!", number.clone()),
        (
            "nodes!",
            list(object(&[
                ("node!", address.clone()),
                ("cluster", maybe.clone()),
                ("quarantine", maybe.clone()),
            ])),
        ),
        ("draining!", flag.clone()),
        ("reported_by!", list(text.clone())),
    ]);
    let user = object(&[
        ("name!", text.clone()),
        ("password!", text.clone()),
        ("commands", json!({ "type": "string", "examples": ["all", "read", "on ~app:* +@read"] })),
    ]);
    let finding = object(&[
        ("code!", text.clone()),
        ("severity!", one_of(&["notice", "degraded", "critical"])),
        ("object!", text.clone()),
        ("since", text.clone()),
        ("cause!", text.clone()),
        ("action!", text.clone()),
    ]);
    json!({
        "Object": { "type": "object" },
        "FleetRequests": object(&[("requests!", list(json!({ "type": "object" })))]),
        "FleetPolicies": object(&[("policies!", list(json!({ "type": "object" })))]),
        "FleetSettings": object(&[("settings!", list(json!({ "type": "object" })))]),
        "Nothing": { "type": "object", "maxProperties": 0 },
        "Error": object(&[("error!", text.clone())]),
        "KeyOverlap": object(&[("overlap!", number.clone())]),
        "NewKey": object(&[("note", text.clone()), ("scope", list(text.clone())), ("ttl", number.clone())]),
        "NewMember": object(&[
            ("name!", text.clone()),
            ("kind!", one_of(&["user", "account"])),
            ("password", text.clone()),
            ("roles", list(text.clone())),
            ("grants", list(text.clone())),
        ]),
        "NewHost": object(&[
            ("host!", text.clone()),
            ("addresses!", list(text.clone())),
            ("roles", list(text.clone())),
            ("ttl", number.clone()),
        ]),
        "Join": object(&[("token!", text.clone()), ("request!", text.clone())]),
        "Renew": object(&[("request!", text.clone())]),
        "SignIn": object(&[("user", text.clone()), ("password", text.clone()), ("key", text.clone())]),
        "FleetMember": object(&[("host", maybe.clone()), ("labels", json!({ "type": "object" }))]),
        "FleetValue": object(&[("value!", text.clone())]),
        "FleetWish": object(&[("release", text.clone()), ("by", text.clone()), ("reason", text.clone())]),
        "RedisHosts": object(&[("hosts!", list(host))]),
        "RedisOffer": object(&[("nodes!", list(address.clone()))]),
        "RedisDone": object(&[("change!", one_of(&["made", "already"]))]),
        "RedisClusters": object(&[("clusters!", list(object(&cluster_line)))]),
        "RedisCluster": object(&cluster),
        "RedisNewCluster": object(&[
            ("name!", text.clone()),
            ("nodes!", json!({ "type": "integer", "minimum": 1, "maximum": 1000 })),
            ("replicas", json!({ "type": "integer", "minimum": 0, "maximum": 5 })),
            ("max_memory", number.clone()),
            ("mode", one_of(&["cluster", "single"])),
            ("split", flag.clone()),
            ("default", flag.clone()),
            ("persistence", one_of(&["none", "aof", "rdb"])),
            ("cache", flag.clone()),
            ("users", list(user)),
        ]),
        "RedisSize": object(&[("nodes!", number.clone()), ("dry_run", flag)]),
        "RedisScaled": object(&[("change", maybe), ("plan!", json!({ "type": "object" }))]),
        "RedisNewMove": object(&[
            ("slots!", json!({ "type": "string", "examples": ["0-99", "7"] })),
            ("to!", address.clone()),
        ]),
        "RedisBegun": object(&[("moves!", list(number))]),
        "RedisMoves": object(&[("moves!", list(moving))]),
        "RedisSuccession": object(&[("primary!", address.clone()), ("replica", address.clone())]),
        "RedisSuccessor": object(&[("primary!", address)]),
        "RedisReport": object(&[("findings!", list(finding)), ("pending!", list(text))]),
    })
}
