//! The Confluent-shaped HTTP interface, over a real socket.

use capstan_meta::OwnedTask;
use capstan_schemas::confluent;
use serde_json::{Value, json};

use crate::registry::store;

struct Served {
    _server: OwnedTask,
    url: String,
    client: reqwest::Client,
}

impl Served {
    async fn start() -> Served {
        let store = store();
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let _server = OwnedTask::spawn(async move {
            axum::serve(listener, confluent::router(store)).await.unwrap();
        });
        Served { _server, url, client: reqwest::Client::new() }
    }

    async fn call(&self, method: &str, path: &str, body: Option<Value>) -> (u16, Value) {
        let method = method.parse::<reqwest::Method>().unwrap();
        let mut request = self.client.request(method, format!("{}{path}", self.url));
        if let Some(body) = body {
            request = request.header("content-type", "application/vnd.schemaregistry.v1+json");
            request = request.body(body.to_string());
        }
        let response = request.send().await.unwrap();
        assert_eq!(response.headers()["content-type"], "application/vnd.schemaregistry.v1+json", "{path}");
        (response.status().as_u16(), response.json().await.unwrap())
    }
}

fn schema(fields: &str) -> String {
    format!(r#"{{"type":"record","name":"R","fields":[{fields}]}}"#)
}

#[tokio::test]
async fn a_schema_is_registered_found_compared_and_deleted() {
    let served = Served::start().await;
    let first = schema(r#"{"name":"a","type":"string"}"#);
    let second = schema(r#"{"name":"a","type":"string"},{"name":"b","type":"int","default":0}"#);
    let broken = schema(r#"{"name":"a","type":"int"}"#);
    let of = |text: &str| Some(json!({"schema": text}));

    assert_eq!(served.call("GET", "/subjects", None).await, (200, json!([])));
    assert_eq!(served.call("POST", "/subjects/s-value/versions", of(&first)).await, (200, json!({"id": 1})));
    assert_eq!(served.call("POST", "/subjects/s-value/versions", of(&first)).await, (200, json!({"id": 1})));
    let (status, registered) = served.call("POST", "/subjects/s-value/versions", of(&second)).await;
    let id = registered["id"].as_u64().unwrap();
    assert!(status == 200 && id != 1 && i32::try_from(id).is_ok());

    assert_eq!(served.call("GET", "/schemas/ids/1", None).await, (200, json!({"schema": first})));
    let by_id = served.call("GET", &format!("/schemas/ids/{id}"), None).await;
    assert_eq!(by_id, (200, json!({"schema": second})));
    let latest = served.call("GET", "/subjects/s-value/versions/latest", None).await;
    let expected = json!({"subject": "s-value", "id": id, "version": 2, "schema": second});
    assert_eq!(latest, (200, expected.clone()));
    assert_eq!(served.call("POST", "/subjects/s-value", of(&second)).await, (200, expected));
    assert_eq!(served.call("GET", "/subjects/s-value/versions", None).await, (200, json!([1, 2])));

    let path = "/compatibility/subjects/s-value/versions/latest";
    let (_, verdict) = served.call("POST", path, of(&broken)).await;
    assert_eq!(verdict["is_compatible"], false);
    assert!(verdict["messages"][0].as_str().unwrap().contains("/a: string cannot be read as int"));
    let (status, refused) = served.call("POST", "/subjects/s-value/versions", of(&broken)).await;
    assert_eq!((status, &refused["error_code"]), (409, &json!(409)));

    assert_eq!(served.call("GET", "/config", None).await, (200, json!({"compatibilityLevel": "BACKWARD"})));
    let full = json!({"compatibility": "FULL_TRANSITIVE"});
    assert_eq!(served.call("PUT", "/config/s-value", Some(full.clone())).await, (200, full));
    let mode = served.call("GET", "/config/s-value", None).await;
    assert_eq!(mode, (200, json!({"compatibilityLevel": "FULL_TRANSITIVE"})));

    assert_eq!(served.call("DELETE", "/subjects/s-value/versions/1", None).await, (200, json!(1)));
    assert_eq!(served.call("DELETE", "/subjects/s-value", None).await, (200, json!([2])));
    assert_eq!(served.call("GET", "/subjects", None).await, (200, json!([])));
}

#[tokio::test]
async fn other_languages_name_their_type() {
    let served = Served::start().await;
    let proto = "syntax = \"proto3\"; message M { string a = 1; }";
    for (subject, word, text) in [("p", "PROTOBUF", proto), ("j", "JSON", r#"{"type":"object"}"#)] {
        let body = json!({"schema": text, "schemaType": word});
        let (status, registered) =
            served.call("POST", &format!("/subjects/{subject}/versions"), Some(body)).await;
        assert_eq!(status, 200, "{registered}");
        let found = served.call("GET", &format!("/schemas/ids/{}", registered["id"]), None).await;
        assert_eq!(found, (200, json!({"schema": text, "schemaType": word})));
    }
}

#[tokio::test]
async fn errors_have_the_numbers_that_clients_look_at() {
    let served = Served::start().await;
    let of = |text: &str| Some(json!({"schema": text}));
    served.call("POST", "/subjects/s/versions", of(r#""string""#)).await;
    let cases = [
        ("GET", "/subjects/none/versions", None, 404, 40401),
        ("GET", "/subjects/s/versions/9", None, 404, 40402),
        ("GET", "/subjects/s/versions/zero", None, 422, 42202),
        ("GET", "/schemas/ids/77", None, 404, 40403),
        ("GET", "/schemas/ids/18446744073709551615", None, 404, 40403),
        ("POST", "/subjects/s/versions", of("{"), 422, 42201),
        ("POST", "/subjects/s/versions", Some(json!({"text": 1})), 422, 42201),
        ("POST", "/subjects/s", of(r#""int""#), 404, 40403),
        ("PUT", "/config", Some(json!({"compatibility": "SOMETIMES"})), 422, 42203),
        ("POST", "/subjects/_global/versions", of(r#""int""#), 422, 42208),
    ];
    for (method, path, body, status, code) in cases {
        let (found, answer) = served.call(method, path, body).await;
        assert_eq!((found, &answer["error_code"]), (status, &json!(code)), "{method} {path}: {answer}");
        assert!(!answer["message"].as_str().unwrap().is_empty());
    }
}
