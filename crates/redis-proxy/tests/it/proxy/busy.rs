//! A node that runs a long script is busy, not dead: other clients are answered, and the script can be
//! killed.

use capstan_redis_proxy::Config;
use capstan_testkit::redis::Wire;

use super::{Setup, config, until};

/// Runs until it is killed.
const ENDLESS: &str = "while true do end";

#[tokio::test(flavor = "multi_thread")]
async fn a_busy_node_says_so_and_its_script_can_be_killed() -> anyhow::Result<()> {
    // All clients share the connections of one worker.
    let setup = Setup::on(Config { workers: 1, ..config()? }, 2, "{}").await?;
    for node in &setup.nodes {
        let mut wire = Wire::connect(node.address())?;
        wire.command(&["CONFIG", "SET", "busy-reply-threshold", "50"])?;
        assert_eq!(wire.reply()?, b"+OK\r\n");
    }
    let (mut script, mut other) = (setup.client()?, setup.client()?);
    assert_eq!(other.say("SET bar v")?, "+OK\r\n");
    script.command(&["EVAL", ENDLESS, "1", "bar"])?;
    until("others get BUSY", || Ok(other.say("GET bar")?.starts_with("-BUSY ")));
    assert_eq!(other.say("SET foo v")?, "+OK\r\n", "the other node serves");
    // The killing client is not the waiting one; its earlier commands are answered first.
    assert_eq!(setup.client()?.say("SCRIPT KILL")?, "+OK\r\n");
    let ended = String::from_utf8(script.reply()?)?;
    assert!(ended.starts_with("-ERR ") && ended.contains("killed"), "{ended}");
    until("the node serves again", || Ok(other.say("GET bar")? == "$1\r\nv\r\n"));
    Ok(())
}

/// Scripts have a connection of their own; the commands of one client still run in order.
#[tokio::test(flavor = "multi_thread")]
async fn scripts_keep_their_place_among_a_clients_commands() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let mut wire = setup.client()?;
    for round in 0..50 {
        let (before, after) = (format!("{round}"), format!("{round}{round}"));
        wire.command(&["SET", "k", &before])?;
        wire.command(&["EVAL", "return redis.call('APPEND', KEYS[1], ARGV[1])", "1", "k", &before])?;
        wire.command(&["GET", "k"])?;
        wire.command(&["MULTI"])?;
        wire.command(&["EVAL", "return redis.call('GET', KEYS[1])", "1", "k"])?;
        wire.command(&["EXEC"])?;
        wire.command(&["EVALSHA_RO", "0", "0"])?;
        let value = format!("${}\r\n{after}\r\n", after.len());
        for expected in ["+OK\r\n".to_owned(), format!(":{}\r\n", after.len()), value.clone()] {
            assert_eq!(String::from_utf8(wire.reply()?)?, expected);
        }
        assert_eq!(wire.reply()?, b"+OK\r\n");
        assert_eq!(wire.reply()?, b"+QUEUED\r\n");
        assert_eq!(String::from_utf8(wire.reply()?)?, format!("*1\r\n{value}"));
        assert!(wire.reply()?.starts_with(b"-NOSCRIPT"));
    }
    Ok(())
}
