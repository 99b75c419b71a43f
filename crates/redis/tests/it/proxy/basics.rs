//! Commands and replies in order, through a connection that all clients share.

use capstan_testkit::RedisServer;
use capstan_testkit::redis::{Wire, command};

#[tokio::test]
async fn commands_reach_the_node_and_replies_the_client() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let proxy = super::proxy(&node)?;
    let mut wire = Wire::connect(proxy.address())?;
    assert_eq!(wire.say("PING")?, "+PONG\r\n");
    assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    Ok(())
}

#[tokio::test]
async fn a_pipeline_is_answered_in_its_order() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let proxy = super::proxy(&node)?;
    let mut wire = Wire::connect(proxy.address())?;
    let mut pipeline = Vec::new();
    for n in 0..2000 {
        pipeline.extend(command(&["SET".to_owned(), "k".to_owned(), n.to_string()]));
        pipeline.extend(command(&["PING"]));
        pipeline.extend(command(&["GET", "k"]));
    }
    wire.send(&pipeline)?;
    for n in 0..2000 {
        assert_eq!(wire.reply()?, b"+OK\r\n");
        assert_eq!(wire.reply()?, b"+PONG\r\n");
        let number = n.to_string();
        assert_eq!(String::from_utf8(wire.reply()?)?, format!("${}\r\n{number}\r\n", number.len()));
    }
    Ok(())
}

#[tokio::test]
async fn a_long_reply_passes_through() -> anyhow::Result<()> {
    let node = RedisServer::start().await?;
    let proxy = super::proxy(&node)?;
    let mut wire = Wire::connect(proxy.address())?;
    let long = vec![b'x'; 5_000_000];
    assert_eq!(wire.ask(&[b"SET", &b"long"[..], &long])?, b"+OK\r\n");
    let reply = wire.ask(&["GET", "long"])?;
    assert_eq!(reply.len(), long.len() + "$5000000\r\n\r\n".len());
    Ok(())
}
