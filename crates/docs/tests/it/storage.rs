//! One suite for every engine.

use bytes::Bytes;
use capstan_docs::storage::{Change, DiskEngine, Engine, MemoryEngine};
use capstan_testkit::TempDir;

fn put(key: &str, value: &str) -> Change {
    Change::Put(Bytes::from(key.to_owned()), Bytes::from(value.to_owned()))
}

fn keys(engine: &dyn Engine, from: &str, before: &str) -> Vec<String> {
    let pairs = engine.snapshot().range(from.as_bytes(), before.as_bytes());
    pairs.map(|pair| String::from_utf8(pair.unwrap().0.to_vec()).unwrap()).collect()
}

fn suite(engine: &dyn Engine) {
    engine.write(vec![put("a", "1"), put("b1", "2"), put("b2", "3"), put("c", "4")]).unwrap();
    assert_eq!(engine.get(b"b1").unwrap().unwrap(), "2");
    assert_eq!(engine.get(b"x").unwrap(), None);
    assert_eq!(keys(engine, "a", "c"), ["a", "b1", "b2"]);
    assert_eq!(keys(engine, "c", "a"), Vec::<String>::new());
    let before = engine.snapshot();
    let prefix = Change::DeletePrefix(Bytes::from_static(b"b"));
    engine.write(vec![prefix, put("b3", "5"), Change::Delete(Bytes::from_static(b"a"))]).unwrap();
    assert_eq!(keys(engine, "a", "z"), ["b3", "c"]);
    assert_eq!(before.get(b"b1").unwrap().unwrap(), "2");
    assert_eq!(before.range(b"a", b"z").count(), 4);
    engine.sync().unwrap();
}

#[test]
fn every_engine_passes_the_suite() {
    let dir = TempDir::new("engine").unwrap();
    suite(&MemoryEngine::default());
    suite(&DiskEngine::open(&dir.join("e"), 1 << 20).unwrap());
    let reopened = DiskEngine::open(&dir.join("e"), 1 << 20).unwrap();
    assert_eq!(keys(&reopened, "a", "z"), ["b3", "c"]);
}
