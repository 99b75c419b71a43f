//! A node that froze and was replaced: its late replies never count as acknowledgments.

use capstan_redis_proxy::Limits;

use super::{Setup, until};

/// Slots of the first node in a cluster of two; `bar` is there, `foo` on the other.
const FIRST: &str = "0-8191";
const SECOND: &str = "8192-16383";

/// Every kind of command that may wait for a node, sent to a frozen one that is then replaced.
#[tokio::test(flavor = "multi_thread")]
async fn late_replies_of_a_replaced_node_are_not_delivered() -> anyhow::Result<()> {
    let setup = Setup::with(2, Limits::default(), "{\"split\":true}").await?;
    let (old, new) = (setup.nodes[0].address(), setup.nodes[1].address());
    let mut plain = setup.client()?;
    assert_eq!(plain.say("SET bar before")?, "+OK\r\n");
    let mut blocked = setup.client()?;
    blocked.command(&["BLPOP", "{bar}list", "0"])?;
    let mut prepared = setup.client()?;
    assert_eq!(prepared.say("MULTI")?, "+OK\r\n");
    assert_eq!(prepared.say("SET bar transaction")?, "+QUEUED\r\n");
    let mut split = setup.client()?;
    let mut busy = setup.client()?;
    until("the blocking command is in the node", || {
        Ok(busy.say("INFO clients")?.contains("blocked_clients:1"))
    });

    setup.nodes[0].pause()?;
    plain.command(&["SET", "bar", "late"])?;
    plain.command(&["SET", "{foo}2", "elsewhere"])?;
    prepared.command(&["EXEC"])?;
    prepared.command(&["SET", "{foo}3", "elsewhere"])?;
    split.command(&["MSET", "bar", "late", "foo", "split"])?;
    // The other node has executed what came after, on each connection: by then the frozen one has received its part.
    until("the other node has its part", || Ok(busy.say("GET foo")? == "$5\r\nsplit\r\n"));
    for key in ["{foo}2", "{foo}3"] {
        until("it has what came after", || Ok(busy.say(&format!("GET {key}"))? == "$9\r\nelsewhere\r\n"));
    }
    setup.tell(&format!("NMCTL SETDB 2 NOFLAG db {new} {FIRST} db {new} {SECOND}"))?;

    for (name, wire) in
        [("SET", &mut plain), ("EXEC", &mut prepared), ("MSET", &mut split), ("BLPOP", &mut blocked)]
    {
        let reply = String::from_utf8(wire.reply()?)?;
        assert!(reply.starts_with("-OUTCOMEUNKNOWN "), "{name}: {reply}");
        assert!(reply.contains(&old.to_string()), "{name}: {reply}");
    }
    for wire in [&mut plain, &mut prepared] {
        assert_eq!(wire.reply()?, b"+OK\r\n", "the command behind it was for another node");
    }
    assert_eq!(plain.say("GET bar")?, "$-1\r\n", "served by the node that replaced it");
    setup.nodes[0].resume()?;
    // Nothing of the old node is delivered any more, and only this test is connected to it.
    for wire in [&mut plain, &mut prepared, &mut split, &mut blocked] {
        assert_eq!(wire.say("PING")?, "+PONG\r\n");
    }
    let mut node = capstan_testkit::redis::Wire::connect(old)?;
    until("connections to the old node are closed", || {
        Ok(node.say("INFO clients")?.contains("connected_clients:1\r\n"))
    });
    Ok(())
}

/// A proxy whose lease expired may have been replaced without a push.
#[tokio::test(flavor = "multi_thread")]
async fn replies_after_the_end_of_the_lease_are_not_delivered() -> anyhow::Result<()> {
    let limits = Limits { hold: std::time::Duration::from_millis(200), ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET bar before")?, "+OK\r\n");
    setup.nodes[0].pause()?;
    setup.tell("NMCTL LEASE c1 1 3000")?;
    wire.command(&["SET", "bar", "late"])?;
    let mut info = setup.client()?;
    until("the lease has ended", || Ok(info.say("NMCTL INFO")?.contains("serving:no")));
    setup.nodes[0].resume()?;
    let reply = String::from_utf8(wire.reply()?)?;
    assert!(reply.starts_with("-OUTCOMEUNKNOWN "), "{reply}");
    setup.tell("NMCTL LEASE c1 1 60000")?;
    assert_eq!(wire.say("GET bar")?, "$4\r\nlate\r\n", "executed, as the error allows");
    Ok(())
}

/// A late renewal costs waiting, not errors.
#[tokio::test(flavor = "multi_thread")]
async fn replies_wait_for_a_late_renewal() -> anyhow::Result<()> {
    let limits = Limits { hold: std::time::Duration::from_secs(20), ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET bar before")?, "+OK\r\n");
    setup.nodes[0].pause()?;
    setup.tell("NMCTL LEASE c1 1 3000")?;
    wire.command(&["SET", "bar", "waited"])?;
    let mut info = setup.client()?;
    until("the lease has ended", || Ok(info.say("NMCTL INFO")?.contains("serving:no")));
    setup.nodes[0].resume()?;
    let mut node = capstan_testkit::redis::Wire::connect(setup.nodes[0].address())?;
    until("the node has executed it", || Ok(node.say("GET bar")? == "$6\r\nwaited\r\n"));
    setup.tell("NMCTL LEASE c1 1 60000")?;
    assert_eq!(wire.reply()?, b"+OK\r\n");
    Ok(())
}

/// A node that thaws right after its replacement replies at once: its `+OK` is about a write that its successor lacks.
#[tokio::test(flavor = "multi_thread")]
async fn a_node_that_thaws_right_after_its_replacement_acknowledges_nothing() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let reply = thawed_after(&setup, "NOFLAG").await?;
    assert!(reply.starts_with("-OUTCOMEUNKNOWN "), "{reply}");
    Ok(())
}

/// In a planned handover the successor gets what the node has executed: its last replies are valid.
#[tokio::test(flavor = "multi_thread")]
async fn the_last_replies_of_a_planned_handover_are_delivered() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    // On a loaded machine the node may take longer than it is waited for.
    let mut replies = Vec::new();
    for _ in 0..10 {
        replies.push(thawed_after(&setup, "HANDOVER").await?);
        if replies.iter().any(|reply| reply == "+OK\r\n") {
            return Ok(());
        }
    }
    panic!("{replies:?}")
}

/// The lease of a frozen host has ended: a handover that was planned before is a forced one by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_handover_without_a_lease_acknowledges_nothing() -> anyhow::Result<()> {
    let limits = Limits { hold: std::time::Duration::from_secs(20), ..Limits::default() };
    let setup = Setup::with(2, limits, "{}").await?;
    let (old, new) = (&setup.nodes[0], setup.nodes[1].address());
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET bar before")?, "+OK\r\n");
    old.pause()?;
    setup.tell("NMCTL LEASE c1 1 3000")?;
    wire.command(&["SET", "bar", "late"])?;
    let mut info = setup.client()?;
    until("the lease has ended", || Ok(info.say("NMCTL INFO")?.contains("serving:no")));
    old.resume()?;
    let mut node = capstan_testkit::redis::Wire::connect(old.address())?;
    until("the node has executed it", || Ok(node.say("GET bar")? == "$4\r\nlate\r\n"));
    // The new table and the new lease arrive together.
    let mut admin = setup.client()?;
    admin.command(&["NMCTL", "SETDB", "2", "HANDOVER", "db", &new.to_string(), "0-16383"])?;
    admin.command(&["NMCTL", "LEASE", "c1", "1", "60000"])?;
    assert_eq!(admin.reply()?, b"+OK\r\n");
    assert_eq!(admin.reply()?, b"+OK\r\n");
    let reply = String::from_utf8(wire.reply()?)?;
    assert!(reply.starts_with("-OUTCOMEUNKNOWN "), "{reply}");
    Ok(())
}

/// The reply to a write in a node that is frozen, loses its slots by a `SETDB` with this flag, and thaws at once.
async fn thawed_after(setup: &Setup, flag: &str) -> anyhow::Result<String> {
    let (old, new) = (&setup.nodes[0], setup.nodes[1].address());
    let mut info = setup.client()?;
    let text = info.say("NMCTL EPOCH")?;
    let epoch = text.lines().nth(3).and_then(|line| line.strip_prefix(':')).unwrap_or_default().to_owned();
    let epoch: u64 = epoch.parse()?;
    setup.tell(&format!("NMCTL SETDB {} NOFLAG {}", epoch + 1, setup.ranges()))?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET bar before")?, "+OK\r\n");
    let mut other = setup.client()?;
    old.pause()?;
    wire.command(&["SET", "bar", "late"])?;
    wire.command(&["SET", "foo", "elsewhere"])?;
    // The other node has executed the command behind it: by then the frozen one has received its own.
    until("the other node has its command", || Ok(other.say("GET foo")? == "$9\r\nelsewhere\r\n"));
    setup.tell(&format!("NMCTL SETDB {} {flag} db {new} 0-16383", epoch + 2))?;
    old.resume()?;
    let reply = String::from_utf8(wire.reply()?)?;
    wire.reply()?;
    assert_eq!(wire.say("DEL foo")?, ":1\r\n");
    Ok(reply)
}
