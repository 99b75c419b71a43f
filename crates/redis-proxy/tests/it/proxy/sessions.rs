//! What a client may set on its connection, and what it may do that a shared connection could not.

use capstan_testkit::redis::{Wire, command};

use super::{Setup, until};

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_one_piece_and_stays_in_one_slot() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let mut wire = setup.client()?;
    for (said, expected) in [
        ("EXEC", "-ERR EXEC without MULTI\r\n"),
        ("DISCARD", "-ERR DISCARD without MULTI\r\n"),
        ("MULTI", "+OK\r\n"),
        ("MULTI", "-ERR MULTI calls can not be nested\r\n"),
        ("SET {a}1 x", "+QUEUED\r\n"),
        ("INCR {a}2", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n+OK\r\n:1\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET {a}1 y", "+QUEUED\r\n"),
        ("SET {b}1 y", "+QUEUED\r\n"),
        ("EXEC", "-CROSSSLOT Keys in request don't hash to the same slot\r\n"),
        ("GET {a}1", "$1\r\nx\r\n"),
        ("MULTI", "+OK\r\n"),
        ("NOSUCH", "-ERR unknown command 'NOSUCH', with args beginning with: \r\n"),
        ("EXEC", "-EXECABORT Transaction discarded because of previous errors.\r\n"),
        ("MULTI", "+OK\r\n"),
        ("INCR {a}1", "+QUEUED\r\n"),
        ("GET {a}1", "+QUEUED\r\n"),
        ("EXEC", "*2\r\n-ERR value is not an integer or out of range\r\n$1\r\nx\r\n"),
        ("MULTI", "+OK\r\n"),
        ("EXEC", "*0\r\n"),
        ("MULTI", "+OK\r\n"),
        ("SET {a}1 z", "+QUEUED\r\n"),
        ("DISCARD", "+OK\r\n"),
        ("GET {a}1", "$1\r\nx\r\n"),
    ] {
        assert_eq!(wire.say(said)?, expected, "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_watched_key_that_changes_undoes_the_transaction() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let (mut one, mut other) = (setup.client()?, setup.client()?);
    for touched in [false, true] {
        assert_eq!(one.say("SET k 1")?, "+OK\r\n");
        assert_eq!(one.say("WATCH k")?, "+OK\r\n");
        if touched {
            assert_eq!(other.say("SET k 2")?, "+OK\r\n");
        }
        assert_eq!(one.say("MULTI")?, "+OK\r\n");
        assert_eq!(one.say("INCR k")?, "+QUEUED\r\n");
        assert_eq!(one.say("EXEC")?, if touched { "*-1\r\n" } else { "*1\r\n:2\r\n" });
    }
    assert_eq!(one.say("WATCH k")?, "+OK\r\n");
    assert_eq!(other.say("SET k 5")?, "+OK\r\n");
    assert_eq!(one.say("UNWATCH")?, "+OK\r\n");
    one.send(
        &[command(&["MULTI"]), command(&["INCR", "k"]), command(&["EXEC"]), command(&["GET", "k"])].concat(),
    )?;
    let replies: Vec<_> = (0..4).map(|_| one.reply()).collect::<Result<_, _>>()?;
    assert_eq!(replies, [&b"+OK\r\n"[..], b"+QUEUED\r\n", b"*1\r\n:6\r\n", b"$1\r\n6\r\n"]);
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn scripts_run_where_their_keys_are_and_are_known_everywhere() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    let mut wire = setup.client()?;
    let load = wire.ask(&["SCRIPT", "LOAD", "return redis.call('incr', KEYS[1])"])?;
    let sha = String::from_utf8(load)?.lines().nth(1).unwrap_or_default().to_owned();
    for key in ["a", "b", "c", "d", "e", "f"] {
        assert_eq!(wire.ask(&["EVALSHA", &sha, "1", key])?, b":1\r\n", "{key}");
    }
    assert_eq!(
        wire.ask(&["SCRIPT", "EXISTS", &sha, "0000000000000000000000000000000000000000"])?,
        b"*2\r\n:1\r\n:0\r\n"
    );
    assert_eq!(wire.ask(&["EVAL", "return 7", "0"])?, b":7\r\n");
    let cross = wire.ask(&["EVAL", "return 1", "2", "a", "b"])?;
    assert!(cross.starts_with(b"-CROSSSLOT"), "{cross:?}");
    let library = "#!lua name=lib\nredis.register_function('bump', function(keys) return redis.call('incr', keys[1]) end)";
    assert_eq!(wire.ask(&["FUNCTION", "LOAD", library])?, b"$3\r\nlib\r\n");
    for key in ["a", "b", "c"] {
        assert_eq!(wire.ask(&["FCALL", "bump", "1", key])?, b":2\r\n", "{key}");
    }
    assert_eq!(wire.say("SCRIPT FLUSH")?, "+OK\r\n");
    assert!(wire.ask(&["EVALSHA", &sha, "1", "a"])?.starts_with(b"-NOSCRIPT"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_waits_disturbs_nobody_and_leaves_nothing() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let (mut waiting, mut busy) = (setup.client()?, setup.client()?);
    waiting.command(&["BLPOP", "queue", "0"])?;
    for n in 0..100 {
        assert_eq!(busy.say(&format!("SET k{n} v"))?, "+OK\r\n");
    }
    assert_eq!(busy.say("RPUSH queue one")?, ":1\r\n");
    assert_eq!(waiting.reply()?, b"*2\r\n$5\r\nqueue\r\n$3\r\none\r\n");
    assert_eq!(waiting.say("BLPOP queue 0.05")?, "*-1\r\n");
    // A client that disconnects while blocked takes no element.
    waiting.command(&["BLPOP", "queue", "0"])?;
    let mut node = Wire::connect(setup.nodes[0].address())?;
    until("the node has a blocked client", || Ok(node.say("INFO clients")?.contains("blocked_clients:1")));
    drop(waiting);
    until("the node has no blocked client", || Ok(node.say("INFO clients")?.contains("blocked_clients:0")));
    assert_eq!(busy.say("RPUSH queue two")?, ":1\r\n");
    assert_eq!(node.say("LLEN queue")?, ":1\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_hear_channels_of_every_node() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    let (mut subscriber, mut publisher) = (setup.client()?, setup.client()?);
    subscriber.command(&["SUBSCRIBE", "a", "b", "c"])?;
    for (count, channel) in ["a", "b", "c"].iter().enumerate() {
        let expected = format!("*3\r\n$9\r\nsubscribe\r\n$1\r\n{channel}\r\n:{}\r\n", count + 1);
        assert_eq!(String::from_utf8(subscriber.reply()?)?, expected);
    }
    let refused = subscriber.say("GET x")?;
    assert!(refused.starts_with("-ERR Can't execute 'get': only (P|S)SUBSCRIBE"), "{refused}");
    assert_eq!(subscriber.say("PING")?, "*2\r\n$4\r\npong\r\n$0\r\n\r\n");
    let mut second = setup.client()?;
    second.command(&["PSUBSCRIBE", "*"])?;
    assert_eq!(second.reply()?, b"*3\r\n$10\r\npsubscribe\r\n$1\r\n*\r\n:1\r\n");
    for channel in ["a", "b", "c"] {
        assert_eq!(publisher.say(&format!("PUBLISH {channel} hello"))?, ":2\r\n", "both hear it");
        let expected = format!("*3\r\n$7\r\nmessage\r\n$1\r\n{channel}\r\n$5\r\nhello\r\n");
        assert_eq!(String::from_utf8(subscriber.reply()?)?, expected);
        assert!(second.reply()?.starts_with(b"*4\r\n$8\r\npmessage\r\n"));
    }
    assert_eq!(publisher.say("PUBSUB NUMSUB a z")?, "*4\r\n$1\r\na\r\n:1\r\n$1\r\nz\r\n:0\r\n");
    assert_eq!(publisher.say("PUBSUB NUMPAT")?, ":1\r\n");
    assert_eq!(subscriber.say("UNSUBSCRIBE b")?, "*3\r\n$11\r\nunsubscribe\r\n$1\r\nb\r\n:2\r\n");
    subscriber.command(&["UNSUBSCRIBE"])?;
    let rest = [subscriber.reply()?, subscriber.reply()?].concat();
    assert!(rest.ends_with(b":0\r\n"), "{rest:?}");
    assert_eq!(subscriber.say("GET x")?, "$-1\r\n", "an ordinary client again");
    until("no subscriber of a", || Ok(publisher.say("PUBSUB NUMSUB a")?.ends_with(":0\r\n")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_resp3_subscriber_may_go_on_with_other_commands() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let (mut subscriber, mut publisher) = (setup.client()?, setup.client()?);
    assert!(subscriber.say("HELLO 3")?.starts_with("%7\r\n"));
    assert_eq!(subscriber.say("SUBSCRIBE a")?, ">3\r\n$9\r\nsubscribe\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(subscriber.say("SET k v")?, "+OK\r\n");
    assert_eq!(publisher.say("PUBLISH a x")?, ":1\r\n");
    assert_eq!(subscriber.reply()?, b">3\r\n$7\r\nmessage\r\n$1\r\na\r\n$1\r\nx\r\n");
    assert_eq!(subscriber.say("GET k")?, "$1\r\nv\r\n");
    assert_eq!(subscriber.say("SSUBSCRIBE a")?, ">3\r\n$10\r\nssubscribe\r\n$1\r\na\r\n:1\r\n");
    assert_eq!(publisher.say("SPUBLISH a y")?, ":1\r\n");
    assert_eq!(subscriber.reply()?, b">3\r\n$8\r\nsmessage\r\n$1\r\na\r\n$1\r\ny\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn connections_can_be_named_listed_killed_and_muted() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let (mut one, mut other) = (setup.client()?, setup.client()?);
    assert_eq!(one.say("CLIENT SETNAME alice")?, "+OK\r\n");
    assert_eq!(one.say("CLIENT GETNAME")?, "$5\r\nalice\r\n");
    let list = other.say("CLIENT LIST")?;
    assert!(list.contains("name=alice") && list.contains("cmd=client|list"), "{list}");
    one.send(
        &[command(&["CLIENT", "REPLY", "SKIP"]), command(&["SET", "k", "1"]), command(&["GET", "k"])]
            .concat(),
    )?;
    assert_eq!(one.reply()?, b"$1\r\n1\r\n");
    one.send(&[command(&["CLIENT", "REPLY", "OFF"]), command(&["GET", "k"]), command(&["PING"])].concat())?;
    assert_eq!(one.say("CLIENT REPLY ON")?, "+OK\r\n");
    assert_eq!(one.say("SELECT 0")?, "+OK\r\n");
    assert!(one.say("SELECT 1")?.starts_with("-ERR"));
    assert_eq!(
        one.say("CLIENT TRACKING ON")?,
        "-NOPERM this user has no permissions to run the 'client|tracking' command\r\n"
    );
    let id = one.say("CLIENT ID")?.trim_start_matches(':').trim().to_owned();
    assert_eq!(other.say(&format!("CLIENT KILL ID {id}"))?, ":1\r\n");
    assert_eq!(one.rest()?, b"");
    assert_eq!(other.say("RESET")?, "+RESET\r\n");
    assert_eq!(other.say("QUIT")?, "+OK\r\n");
    assert_eq!(other.rest()?, b"");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn users_belong_to_databases_and_may_be_readers() -> anyhow::Result<()> {
    let hash = "2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b"; // SHA-256 of "secret"
    let users = format!(
        r#"{{"users":[{{"name":"default","password_sha256":["{hash}"]}},{{"name":"reader","password_sha256":["{hash}"],"commands":"read"}}]}}"#
    );
    let setup = Setup::with(1, Default::default(), &users).await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("GET k")?, "-NOAUTH Authentication required.\r\n");
    assert!(wire.say("HELLO 3")?.starts_with("-NOAUTH HELLO must be called"));
    assert!(wire.say("AUTH wrong")?.starts_with("-WRONGPASS"));
    assert_eq!(wire.say("AUTH secret")?, "+OK\r\n");
    assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    let mut reader = setup.client()?;
    assert!(reader.say("HELLO 3 AUTH reader secret SETNAME r")?.starts_with("%7\r\n"));
    assert_eq!(reader.say("GET k")?, "$1\r\nv\r\n");
    assert_eq!(reader.say("SET k w")?, "-NOPERM this user has no permissions to run the 'set' command\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_monitor_sees_the_commands_of_all_workers() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    let mut monitor = setup.client()?;
    assert_eq!(monitor.say("MONITOR")?, "+OK\r\n");
    for number in 0..6 {
        let mut other = setup.client()?;
        until("the other worker has the monitor", || {
            other.say(&format!("SET k{number} v"))?;
            monitor.socket().set_read_timeout(Some(std::time::Duration::from_millis(50)))?;
            // A line that came late was asked for again: those of earlier rounds may be left.
            let line = loop {
                let Ok(line) = monitor.reply() else { return Ok(false) };
                let line = String::from_utf8(line)?;
                if !(0..number).any(|earlier| line.contains(&format!("\"k{earlier}\""))) {
                    break line;
                }
            };
            let (time, rest) = line.split_once(" [0 127.0.0.1:").unwrap_or_default();
            assert!(
                time.starts_with('+') && rest.ends_with(&format!("] \"SET\" \"k{number}\" \"v\"\r\n")),
                "{line}"
            );
            Ok(true)
        });
        // The client of the round before may not have ended yet.
        until("two clients are shown, and no administration", || {
            Ok(other.say("CLIENT LIST")?.matches("name=").count() == 2)
        });
    }
    monitor.command(&["RESET"])?;
    until("it watches no more", || Ok(monitor.reply()? == b"+RESET\r\n"));
    assert_eq!(monitor.say("GET k0")?, "$1\r\nv\r\n", "an ordinary client again");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn paused_clients_wait_and_go_on() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let (mut one, mut writer) = (setup.client()?, setup.client()?);
    assert_eq!(one.say("CLIENT PAUSE 60000 WRITE")?, "+OK\r\n");
    until("the other worker has the pause", || {
        let mut probe = setup.client()?;
        probe.socket().set_read_timeout(Some(std::time::Duration::from_secs(1)))?;
        Ok(probe.say("SET probe x").is_err())
    });
    writer.command(&["SET", "k", "v"])?;
    assert_eq!(one.say("GET k")?, "$-1\r\n", "reading goes on");
    writer.socket().set_read_timeout(Some(std::time::Duration::from_millis(100)))?;
    assert!(writer.reply().is_err(), "a write waits");
    assert_eq!(one.say("CLIENT UNPAUSE")?, "+OK\r\n");
    writer.socket().set_read_timeout(Some(super::DEADLINE))?;
    assert_eq!(writer.reply()?, b"+OK\r\n");
    // A pause ends by itself, and until then everything waits.
    one.send(&[command(&["CLIENT", "PAUSE", "50"]), command(&["PING"])].concat())?;
    assert_eq!(one.reply()?, b"+OK\r\n");
    assert_eq!(one.reply()?, b"+PONG\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_published_in_a_transaction_reaches_subscribers_of_another_node() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    let (mut subscriber, mut one) = (setup.client()?, setup.client()?);
    subscriber.command(&["SUBSCRIBE", "a", "b", "c", "d"])?;
    for _ in 0..4 {
        subscriber.reply()?;
    }
    for channel in ["a", "b", "c", "d"] {
        one.send(
            &[
                command(&["MULTI"]),
                command(&["SET", "k", channel]),
                command(&["PUBLISH", channel, "hello"]),
                command(&["CLIENT", "GETNAME"]),
                command(&["GET", "k"]),
                command(&["EXEC"]),
            ]
            .concat(),
        )?;
        let replies: Vec<_> = (0..6).map(|_| one.reply()).collect::<Result<_, _>>()?;
        let expected = format!("*4\r\n+OK\r\n:1\r\n$-1\r\n$1\r\n{channel}\r\n");
        assert_eq!(String::from_utf8(replies[5].clone())?, expected);
        let expected = format!("*3\r\n$7\r\nmessage\r\n$1\r\n{channel}\r\n$5\r\nhello\r\n");
        assert_eq!(String::from_utf8(subscriber.reply()?)?, expected);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keeps_a_node_busy_is_in_the_slowlog() -> anyhow::Result<()> {
    let setup = Setup::start(2).await?;
    for node in &setup.nodes {
        Wire::connect(node.address())?.say("CONFIG SET slowlog-log-slower-than 0")?;
    }
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SLOWLOG RESET")?, "+OK\r\n");
    for key in ["foo", "bar"] {
        wire.say(&format!("SET {key} v"))?;
    }
    let log = wire.say("SLOWLOG GET 100")?;
    assert!(log.contains("foo") && log.contains("bar"), "commands of both nodes: {log}");
    assert!(wire.say("SLOWLOG GET 1")?.starts_with("*1\r\n*6\r\n:"));
    let len = wire.say("SLOWLOG LEN")?.trim_start_matches(':').trim().parse::<u32>()?;
    assert!(len >= 4, "{len}");
    let info = wire.say("INFO keyspace")?;
    assert!(info.contains("db0:keys=2,expires=0"), "{info}");
    assert!(wire.say("INFO")?.contains("redis_mode:cluster"));
    assert!(wire.say("LATENCY HISTOGRAM set")?.contains("calls\r\n:2\r\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn events_of_keys_are_heard_from_every_node() -> anyhow::Result<()> {
    let setup = Setup::start(3).await?;
    for node in &setup.nodes {
        Wire::connect(node.address())?.say("CONFIG SET notify-keyspace-events KEA")?;
    }
    let (mut subscriber, mut one) = (setup.client()?, setup.client()?);
    assert!(subscriber.say("SUBSCRIBE __keyevent@0__:del")?.ends_with(":1\r\n"));
    for key in ["foo", "bar", "baz", "x", "y"] {
        one.say(&format!("SET {key} v"))?;
        assert_eq!(one.say(&format!("DEL {key}"))?, ":1\r\n");
        let said = String::from_utf8(subscriber.reply()?)?;
        assert!(said.ends_with(&format!("\r\n{key}\r\n")), "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn who_sends_and_leaves_at_once_leaves_nothing_behind() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    for number in 0..300 {
        let mut hasty = setup.client()?;
        match number % 3 {
            0 => hasty.command(&["BLPOP", "queue", "0"])?,
            1 => hasty.send(b"PING\r\nGET x\r\n*1\r\n")?,
            _ => hasty.command(&["SUBSCRIBE", "c"])?,
        }
    }
    let mut wire = setup.client()?;
    until("no other client is connected", || {
        Ok(wire.say("INFO clients")?.contains("connected_clients:1\r\n"))
    });
    assert!(wire.say("INFO clients")?.contains("blocked_clients:0\r\n"));
    let mut node = Wire::connect(setup.nodes[0].address())?;
    until("no client is blocked in the node", || Ok(node.say("INFO clients")?.contains("blocked_clients:0")));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_node_may_be_known_by_name() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let port = setup.nodes[0].address().port();
    setup.tell(&format!("NMCTL SETDB 2 NOFLAG db localhost:{port} 0-16383"))?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET k v")?, "+OK\r\n", "held until the name is resolved");
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    setup.tell("NMCTL SETDB 3 NOFLAG db no-such-host.invalid:1 0-16383")?;
    let said = wire.say("GET k")?;
    assert!(said.starts_with("-CLUSTERDOWN"), "{said}");
    Ok(())
}
