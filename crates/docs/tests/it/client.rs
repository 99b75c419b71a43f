//! A client that sends and reads what the public JavaScript SDK does: parameters in brackets as its HTTP library writes
//! them, filters of `find` as JSON text, an answer that is not a success as `{_error: message}`.

use serde_json::{Map, Value, json};

use crate::cluster::Cluster;

pub struct Sdk<'c> {
    cluster: &'c Cluster,
    key: Option<(String, String)>,
    next: std::sync::atomic::AtomicUsize,
}

pub struct Db<'s> {
    sdk: &'s Sdk<'s>,
    pub name: String,
}

pub struct Collection<'s> {
    pub sdk: &'s Sdk<'s>,
    path: String,
}

/// Parameters in brackets: null is left out, lists of plain values have no numbers.
fn parameters(name: &str, value: &Value, out: &mut Vec<String>) {
    let inner = |key: &str| if name.is_empty() { key.to_owned() } else { format!("{name}[{key}]") };
    match value {
        Value::Null => {}
        Value::Object(fields) => fields.iter().for_each(|(key, value)| parameters(&inner(key), value, out)),
        Value::Array(items) => {
            let flat = items.iter().all(|item| !item.is_object() && !item.is_array());
            for (at, item) in items.iter().enumerate() {
                parameters(&inner(&if flat { String::new() } else { at.to_string() }), item, out);
            }
        }
        Value::String(text) => out.push(format!("{}={}", encode(name), encode(text))),
        other => out.push(format!("{}={}", encode(name), encode(&other.to_string()))),
    }
}

/// Percent-encodes as the HTTP library of the SDK does: some characters stay, a blank is a plus sign.
fn encode(text: &str) -> String {
    let mut out = String::new();
    for byte in text.bytes() {
        match byte {
            b' ' => out.push('+'),
            b if b.is_ascii_alphanumeric() || b"-_.!~*'():$,[]".contains(&b) => out.push(char::from(b)),
            b => out.push_str(&format!("%{b:02X}")),
        }
    }
    out
}

fn failed(status: reqwest::StatusCode) -> Value {
    json!({ "_error": format!("Request failed with status code {}", status.as_u16()) })
}

fn is_name(name: &str) -> bool {
    !name.is_empty() && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || byte == b'-')
}

impl<'c> Sdk<'c> {
    pub fn new(cluster: &'c Cluster) -> Sdk<'c> {
        Sdk { cluster, key: None, next: Default::default() }
    }

    pub fn with_key(self, id: &str, key: &str) -> Sdk<'c> {
        Sdk { key: Some((id.to_owned(), key.to_owned())), ..self }
    }

    /// Sends a request to one of the nodes, each in turn.
    async fn send(
        &self,
        method: &str,
        path: &str,
        body: impl FnOnce(reqwest::RequestBuilder) -> reqwest::RequestBuilder,
    ) -> Value {
        let turn = self.next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let mut request = self.cluster.client.request(method.parse().unwrap(), self.cluster.url(turn, path));
        if let Some((id, key)) = &self.key {
            request = request.header("accessid", id).header("accesskey", key);
        }
        let answer = body(request).send().await.unwrap();
        if !answer.status().is_success() {
            return failed(answer.status());
        }
        let text = answer.text().await.unwrap();
        serde_json::from_str(&text).unwrap_or(Value::String(text))
    }

    pub async fn get(&self, path: &str, params: &Value) -> Value {
        let mut parts = Vec::new();
        parameters("", params, &mut parts);
        let query = if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) };
        self.send("GET", &format!("{path}{query}"), |request| request).await
    }

    pub async fn delete(&self, path: &str, params: &Value) -> Value {
        let mut parts = Vec::new();
        parameters("", params, &mut parts);
        let query = if parts.is_empty() { String::new() } else { format!("?{}", parts.join("&")) };
        self.send("DELETE", &format!("{path}{query}"), |request| request).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.send("POST", path, |request| request.json(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Value {
        self.send("PUT", path, |request| request.json(body)).await
    }

    pub async fn db(&self, name: &str) -> Result<Db<'_>, Value> {
        let list = self.get("/db", &json!({})).await;
        let Some(names) = list.as_array() else { return Err(list) };
        if !names.contains(&json!(name)) {
            let made = self.post("/db", &json!({ "name": name })).await;
            if made.get("_error").is_some() {
                return Err(made);
            }
        }
        Ok(Db { sdk: self, name: name.to_owned() })
    }
}

impl Db<'_> {
    pub async fn create_collection(&self, name: &str, options: Value) -> Value {
        if !is_name(name) {
            return json!({ "_error": "Invalid collection name" });
        }
        self.sdk.post(&format!("/db/{}", self.name), &json!({ "collection": name, "options": options })).await
    }

    pub async fn collections(&self) -> Value {
        self.sdk.get(&format!("/db/{}", self.name), &json!({ "options": {} })).await
    }

    pub async fn collection(&self, name: &str) -> Result<Collection<'_>, Value> {
        let known = self.collections().await;
        if !known.as_array().is_some_and(|names| names.contains(&json!(name))) {
            return Err(json!({ "_error": format!("Collection \"{name}\" does not exist") }));
        }
        Ok(Collection { sdk: self.sdk, path: format!("/db/{}/{name}", self.name) })
    }

    pub async fn drop_collection(&self, name: &str) -> Value {
        self.sdk.delete(&format!("/db/{}/{name}/collection", self.name), &json!({})).await
    }

    pub async fn drop_database(&self) -> Value {
        self.sdk.delete(&format!("/db/{}", self.name), &json!({})).await
    }
}

impl Collection<'_> {
    pub async fn create_index(&self, field: &str, options: Value) -> Value {
        if !is_name(field) {
            return json!({ "_error": "Invalid index field name" });
        }
        self.sdk.post(&format!("{}/index/{field}", self.path), &json!({ "options": options })).await
    }

    pub async fn drop_index(&self, field: &str) -> Value {
        self.sdk.delete(&format!("{}/index/{field}", self.path), &json!({})).await
    }

    pub async fn list_indexes(&self) -> Value {
        self.sdk.get(&format!("{}/index", self.path), &json!({ "options": {} })).await
    }

    pub async fn insert_one(&self, document: &Value) -> Value {
        self.sdk.post(&self.path, &json!({ "doc": document, "options": {} })).await
    }

    pub async fn insert_many(&self, documents: &Value) -> Value {
        self.insert_one(documents).await
    }

    pub async fn find(&self, filter: &Value) -> Result<Vec<Value>, Value> {
        self.find_with(filter, &json!({}), &json!({})).await
    }

    pub async fn find_with(
        &self,
        filter: &Value,
        projection: &Value,
        options: &Value,
    ) -> Result<Vec<Value>, Value> {
        let params = json!({ "query": filter.to_string(), "projection": projection, "options": options });
        let answer = self.sdk.get(&self.path, &params).await;
        if answer.get("_error").is_some() || answer["_ok"] != true {
            return Err(answer);
        }
        Ok(answer["data"].as_array().unwrap().clone())
    }

    pub async fn find_one(&self, filter: &Value) -> Value {
        self.find_one_with(filter, &json!({})).await
    }

    pub async fn find_one_with(&self, filter: &Value, options: &Value) -> Value {
        let mut options: Map<String, Value> = options.as_object().unwrap().clone();
        options.insert("one".to_owned(), json!(true));
        let answer = match filter.get("_id") {
            Some(id) => {
                let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
                self.sdk.get(&format!("{}/{id}", self.path), &json!({ "options": options })).await
            }
            None => self.sdk.get(&self.path, &json!({ "query": filter, "options": options })).await,
        };
        if answer.get("_error").is_some() {
            return answer;
        }
        assert!(answer["dataLength"].as_i64().unwrap() <= 1, "{answer}");
        answer["data"][0].clone()
    }

    pub async fn count(&self, filter: &Value) -> Value {
        let answer = self.sdk.get(&format!("{}/count", self.path), &json!({ "query": filter })).await;
        if answer.get("_error").is_some() { answer } else { answer["count"].clone() }
    }

    pub async fn replace_one(&self, document: &Value) -> Value {
        let Some(id) = document.get("_id") else { return json!({ "_error": "doc._id is required" }) };
        let id = id.as_str().map_or_else(|| id.to_string(), str::to_owned);
        self.sdk.put(&format!("{}/{id}", self.path), document).await
    }

    pub async fn update_one(&self, filter: &Value, update: &Value) -> Value {
        let body = json!({ "filter": filter, "update": update, "options": { "one": true } });
        self.sdk.put(&self.path, &body).await
    }

    pub async fn update_many(&self, filter: &Value, update: &Value) -> Value {
        let body = json!({ "filter": filter, "update": update, "options": {} });
        self.sdk.put(&self.path, &body).await
    }

    pub async fn delete_one(&self, filter: &Value) -> Value {
        self.sdk.delete(&self.path, &json!({ "filter": filter, "options": { "one": true } })).await
    }

    pub async fn delete_many(&self, filter: &Value) -> Value {
        self.sdk.delete(&self.path, &json!({ "filter": filter, "options": {} })).await
    }

    pub async fn attach(&self, id: &str, label: &str, file: &str, kind: &str, content: Vec<u8>) -> Value {
        let boundary = "--------------------------012345678901234567890123";
        let head = format!(
            "--{boundary}\r\nContent-Disposition: form-data; name=\"file\"; filename=\"{file}\"\r\nContent-Type: {kind}\r\n\r\n"
        );
        let body = [head.as_bytes(), &content, format!("\r\n--{boundary}--\r\n").as_bytes()].concat();
        let path = format!("{}/{id}/attachment?label={label}", self.path);
        let form = format!("multipart/form-data; boundary={boundary}");
        self.sdk.send("POST", &path, |request| request.header("content-type", form).body(body)).await
    }
}
