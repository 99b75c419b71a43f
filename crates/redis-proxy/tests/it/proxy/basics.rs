//! Commands and replies in order, through connections shared by all clients.

use capstan_testkit::redis::{Wire, command};
use capstan_testkit::seed;
use rand::RngExt as _;

use super::Setup;

#[tokio::test(flavor = "multi_thread")]
async fn commands_reach_the_node_and_replies_the_client() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("PING")?, "+PONG\r\n");
    assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    wire.send(b"get k\r\n")?;
    assert_eq!(wire.reply()?, b"$1\r\nv\r\n", "inline");
    assert_eq!(
        wire.say("NOSUCH a b")?,
        "-ERR unknown command 'NOSUCH', with args beginning with: 'a' 'b' \r\n"
    );
    assert_eq!(wire.say("GET")?, "-ERR wrong number of arguments for 'get' command\r\n");
    Ok(())
}

/// Keys of one client.
const KEYS: usize = 20;
/// Commands in one pipeline.
const DEPTH: usize = 200;

#[tokio::test(flavor = "multi_thread")]
async fn a_pipeline_over_several_nodes_is_executed_and_answered_in_its_order() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    seed::seeds(1, |seed| {
        let run = |client: u64| (client, setup.client().unwrap());
        let clients: Vec<_> = (0..4).map(run).collect();
        std::thread::scope(|scope| {
            for (client, wire) in clients {
                scope.spawn(move || write_and_read(wire, client, seed ^ client));
            }
        });
    });
    Ok(())
}

/// Writes and reads its own keys in deep pipelines; every reply must match a model of one Redis.
fn write_and_read(mut wire: Wire, client: u64, seed: u64) {
    let mut random = seed::rng(seed);
    let mut values = vec![None::<String>; KEYS];
    for round in 0..seed::soak(30, 3000) {
        let (mut pipeline, mut expected) = (Vec::new(), Vec::new());
        for step in 0..DEPTH {
            let index = random.random_range(0..KEYS);
            let key = format!("client{client}:{index}");
            if random.random() {
                let value = format!("{round}-{step}");
                pipeline.extend(command(&["SET", &key, &value]));
                expected.push("+OK\r\n".to_owned());
                values[index] = Some(value);
            } else {
                pipeline.extend(command(&["GET", &key]));
                let value = values[index].as_ref();
                expected.push(
                    value.map_or("$-1\r\n".to_owned(), |value| format!("${}\r\n{value}\r\n", value.len())),
                );
            }
        }
        wire.send(&pipeline).unwrap();
        for (step, expected) in expected.into_iter().enumerate() {
            let reply = String::from_utf8(wire.reply().unwrap()).unwrap();
            assert_eq!(reply, expected, "client {client}, round {round}, step {step}");
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_reply_passes_through() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let mut wire = setup.client()?;
    let long = vec![b'x'; 5_000_000];
    assert_eq!(wire.ask(&[b"SET", &b"long"[..], &long])?, b"+OK\r\n");
    wire.send(&[command(&["GET", "long"]), command(&["GET", "other"]), command(&["PING"])].concat())?;
    assert_eq!(wire.reply()?.len(), long.len() + "$5000000\r\n\r\n".len());
    assert_eq!(wire.reply()?, b"$-1\r\n");
    assert_eq!(wire.reply()?, b"+PONG\r\n");
    Ok(())
}
