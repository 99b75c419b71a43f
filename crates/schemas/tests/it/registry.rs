//! The records of the registry, and what concurrent registrations leave behind.

use capstan_meta::Store;
use capstan_meta::embedded::{Embedded, Options};
use capstan_schemas::api::{NewVersion, Which};
use capstan_schemas::{Definition, Mode, Registry, SchemaError, SchemaType, Subject};
use serde_json::{Value, json};

pub fn store() -> Store {
    Store::new(Embedded::in_memory(Options::default()))
}

fn subject(name: &str) -> Subject {
    Subject::new(name).unwrap()
}

fn avro(fields: &str) -> NewVersion {
    let text = format!(r#"{{"type":"record","name":"Product","fields":[{fields}]}}"#);
    NewVersion::new(Definition::parse(SchemaType::Avro, &text).unwrap(), "danube-client")
}

const ID: &str = r#"{"name":"id","type":"int"}"#;
const ID_AND_NAME: &str = r#"{"name":"id","type":"int"},{"name":"name","type":"string","default":""}"#;

async fn value(store: &Store, key: &str) -> Value {
    let found = store.get(key.to_owned()).await.unwrap().unwrap_or_else(|| panic!("{key} is absent"));
    serde_json::from_slice(&found.value).unwrap()
}

#[tokio::test]
async fn the_tree_is_as_the_document_shows_it() {
    let store = store();
    let registry = Registry::open(store.clone()).await.unwrap();
    let name = subject("product-catalog");
    let first = registry.register(&name, &avro(ID)).await.unwrap();
    let second = registry.register(&name, &avro(ID_AND_NAME)).await.unwrap();
    assert_eq!((first.schema_id, first.version, first.is_new_version), (1, 1, true));
    assert_eq!((second.schema_id, second.version, second.is_new_version), (1, 2, true));
    let again = registry.register(&name, &avro(ID)).await.unwrap();
    assert_eq!((again.version, again.is_new_version), (1, false));

    assert_eq!(value(&store, "/schemas/_global/next_schema_id").await, json!(2));
    let index = value(&store, "/schemas/_index/by_id/1").await;
    assert_eq!(index, json!({"schema_id": 1, "subject": "product-catalog"}));
    let version = value(&store, "/schemas/product-catalog/versions/1").await;
    let mut fields = version.as_object().unwrap().keys().map(String::as_str).collect::<Vec<_>>();
    fields.sort_unstable();
    let expected =
        ["created_at", "created_by", "fingerprint", "is_deprecated", "schema_def", "tags", "version"];
    assert_eq!(fields, expected);
    assert_eq!(version["schema_def"]["Avro"]["fingerprint"], version["fingerprint"]);
    assert!(version["fingerprint"].as_str().unwrap().starts_with("sha256:"));
    let metadata = value(&store, "/schemas/product-catalog/metadata").await;
    assert_eq!(metadata["compatibility_mode"], "Backward");
    assert_eq!((&metadata["id"], &metadata["latest_version"]), (&json!(1), &json!(2)));
    assert_eq!(metadata["topics_using"], json!([]));
    assert_eq!(metadata["versions"][0], version);
}

#[tokio::test]
async fn an_incompatible_version_is_refused_and_leaves_nothing() {
    let store = store();
    let registry = Registry::open(store.clone()).await.unwrap();
    let name = subject("orders");
    registry.register(&name, &avro(ID)).await.unwrap();
    let before = value(&store, "/schemas/orders/metadata").await;
    let broken = avro(r#"{"name":"id","type":"string"}"#);
    let error = registry.register(&name, &broken).await.unwrap_err();
    assert!(error.to_string().contains("/id: int cannot be read as string"), "{error}");
    assert_eq!(value(&store, "/schemas/orders/metadata").await, before);
    assert!(store.get("/schemas/orders/versions/2").await.unwrap().is_none());

    registry.set_mode(&name, Mode::None).await.unwrap();
    assert_eq!(registry.register(&name, &broken).await.unwrap().version, 2);
    assert_eq!(value(&store, "/schemas/orders/compatibility").await, json!({"mode": "None"}));
}

#[tokio::test]
async fn transitive_modes_look_at_every_version() {
    let registry = Registry::open(store()).await.unwrap();
    let name = subject("t");
    // The name disappears and comes back with another type: fine for data of version 2, not for data of version 1.
    for fields in [ID_AND_NAME, ID] {
        registry.register(&name, &avro(fields)).await.unwrap();
    }
    let back = avro(r#"{"name":"id","type":"int"},{"name":"name","type":"int","default":0}"#);
    assert!(registry.check(&name, &back.definition, None).await.unwrap().is_empty());
    let all = registry.check(&name, &back.definition, Some(Mode::BackwardTransitive)).await.unwrap();
    assert!(all[0].to_string().contains("data of version 1"), "{all:?}");
}

#[tokio::test]
async fn racing_registrations_lose_no_version_and_share_no_id() {
    let store = store();
    let registries =
        [Registry::open(store.clone()).await.unwrap(), Registry::open(store.clone()).await.unwrap()];
    let mut tasks = tokio::task::JoinSet::new();
    for n in 0..12 {
        let registry = registries[n % 2].clone();
        tasks.spawn(async move {
            let shared = avro(&format!(r#"{ID},{{"name":"f{n}","type":"int","default":{n}}}"#));
            let version = registry.register(&subject("shared"), &shared).await.unwrap().version;
            let own = registry.register(&subject(&format!("own-{n}")), &avro(ID)).await.unwrap().schema_id;
            (version, own)
        });
    }
    let (mut versions, mut ids) = (Vec::new(), Vec::new());
    while let Some(done) = tasks.join_next().await {
        let (version, id) = done.unwrap();
        versions.push(version);
        ids.push(id);
    }
    versions.sort_unstable();
    assert_eq!(versions, (1..=12).collect::<Vec<u32>>());
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 12);
    let record = registries[0].subject(&subject("shared")).await.unwrap();
    assert_eq!(record.versions.len(), 12);
}

#[tokio::test]
async fn a_deleted_version_number_is_never_given_again_and_a_used_one_stays() {
    let store = store();
    let registry = Registry::open(store.clone()).await.unwrap();
    let name = subject("s");
    registry.register(&name, &avro(ID)).await.unwrap();
    registry.register(&name, &avro(ID_AND_NAME)).await.unwrap();
    registry.bind(&name, "/default/orders").await.unwrap();
    let error = registry.delete_version(&name, 2).await.unwrap_err();
    assert!(matches!(error, SchemaError::InUse { version: 2, .. }), "{error}");
    registry.unbind(&name, "/default/orders").await.unwrap();
    registry.delete_version(&name, 2).await.unwrap();
    assert_eq!(registry.version(&name, Which::Latest).await.unwrap().version.version, 1);
    assert!(store.get("/schemas/s/versions/2").await.unwrap().is_none());
    assert_eq!(registry.register(&name, &avro(ID_AND_NAME)).await.unwrap().version, 3);
    assert_eq!(registry.delete_subject(&name).await.unwrap(), [1, 3]);
    assert!(registry.subjects().is_empty());
    assert_eq!(registry.register(&name, &avro(ID)).await.unwrap().schema_id, 2, "ids are not given again");
}

#[tokio::test]
async fn names_that_collide_with_the_registry_are_refused() {
    for name in ["_global", "_index", "a/b", ""] {
        assert!(Subject::new(name).is_err(), "{name:?}");
    }
    let registry = Registry::open(store()).await.unwrap();
    assert_eq!(
        registry.version(&subject("x"), Which::Latest).await.unwrap_err(),
        SchemaError::NoSubject(subject("x"))
    );
    assert_eq!(registry.by_id(9, Which::Latest).await.unwrap_err(), SchemaError::NoId(9));
}
