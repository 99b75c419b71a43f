//! Commands that concern several nodes.

use std::collections::BTreeSet;

use super::Setup;

#[tokio::test(flavor = "multi_thread")]
async fn keys_of_several_slots_are_refused_or_split_as_the_database_says() -> anyhow::Result<()> {
    let strict = Setup::start(2).await?;
    let mut wire = strict.client()?;
    for said in ["MGET a b c", "MSET a 1 b 2", "DEL a b", "SINTER a b"] {
        assert_eq!(wire.say(said)?, "-CROSSSLOT Keys in request don't hash to the same slot\r\n", "{said}");
    }
    assert_eq!(wire.say("MSET {t}a 1 {t}b 2")?, "+OK\r\n");
    let split = Setup::with(3, Default::default(), r#"{"split":true}"#).await?;
    let mut wire = split.client()?;
    for (said, expected) in [
        ("MSET a 1 b 2 c 3 d 4 e 5", "+OK\r\n"),
        ("MGET e x c b a d", "*6\r\n$1\r\n5\r\n$-1\r\n$1\r\n3\r\n$1\r\n2\r\n$1\r\n1\r\n$1\r\n4\r\n"),
        ("EXISTS a b c x a", ":4\r\n"),
        ("TOUCH a b x", ":2\r\n"),
        ("UNLINK a b", ":2\r\n"),
        ("DEL a c d e", ":3\r\n"),
        ("SINTER a b", "-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
    ] {
        assert_eq!(wire.say(said)?, expected, "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn all_nodes_are_scanned_counted_and_emptied() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    let mut wire = setup.client()?;
    let names: BTreeSet<String> = (0..500).map(|n| format!("key:{n}")).collect();
    for name in &names {
        assert_eq!(wire.ask(&["SET", name, "v"])?, b"+OK\r\n");
    }
    assert_eq!(wire.say("DBSIZE")?, ":500\r\n");
    let words = |reply: String| -> Vec<String> {
        reply.lines().filter(|line| !line.starts_with(['*', '$'])).map(str::to_owned).collect()
    };
    let keys: BTreeSet<String> = words(wire.say("KEYS *")?).into_iter().collect();
    assert_eq!(keys, names);
    let (mut found, mut cursor) = (BTreeSet::new(), "0".to_owned());
    loop {
        let mut batch = words(wire.say(&format!("SCAN {cursor} COUNT 50"))?).into_iter();
        cursor = batch.next().unwrap_or_default();
        found.extend(batch);
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, names);
    assert_eq!(wire.say("SCAN x")?, "-ERR invalid cursor\r\n");
    assert!(words(wire.say("RANDOMKEY")?).first().is_some_and(|key| names.contains(key)));
    let slot = wire.say("CLUSTER KEYSLOT key:7")?.trim_start_matches(':').trim().to_owned();
    let count = wire.say(&format!("CLUSTER COUNTKEYSINSLOT {slot}"))?;
    let keys = words(wire.say(&format!("CLUSTER GETKEYSINSLOT {slot} 10"))?);
    assert!(keys.contains(&"key:7".to_owned()), "{keys:?}");
    assert_eq!(count, format!(":{}\r\n", keys.len()));
    assert_eq!(wire.say("FLUSHALL")?, "+OK\r\n");
    assert_eq!(wire.say("DBSIZE")?, ":0\r\n");
    assert_eq!(wire.say("RANDOMKEY")?, "$-1\r\n");
    assert_eq!(wire.say("WAIT 0 10")?, ":0\r\n");
    Ok(())
}
