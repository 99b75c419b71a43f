//! Slow readers, bad input, dead nodes: the right error, bounded memory, no effect on other clients.

use std::io::Write as _;

use capstan_redis_proxy::Limits;
use capstan_testkit::redis::{Wire, command};

use super::{Setup, until};

#[tokio::test(flavor = "multi_thread")]
async fn broken_frames_get_rediss_protocol_errors() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let redis = setup.nodes[0].address();
    for bytes in [
        &b"*1\r\n+PING\r\n"[..],
        b"*x\r\n",
        b"*1\r\n$-1\r\n",
        b"*1\r\n$99999999999\r\n",
        b"*9999999999\r\n",
        b"SET \"a\r\n",
        &[b'a'; 70_000],
    ] {
        let mut answers = Vec::new();
        for address in [setup.address(), redis] {
            let mut wire = Wire::connect(address)?;
            wire.send(bytes)?;
            answers.push(String::from_utf8_lossy(&wire.rest()?).into_owned());
        }
        assert_eq!(answers[0], answers[1], "{:?}", String::from_utf8_lossy(&bytes[..bytes.len().min(20)]));
        assert!(answers[0].starts_with("-ERR Protocol error"), "{answers:?}");
    }
    // Earlier commands of the same connection are answered first.
    let mut wire = setup.client()?;
    wire.send(b"SET k v\r\nGET k\r\n*x\r\n")?;
    assert_eq!(wire.rest()?, b"+OK\r\n$1\r\nv\r\n-ERR Protocol error: invalid multibulk length\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_that_does_not_read_is_cut_off_alone() -> anyhow::Result<()> {
    let limits = Limits { output_bytes: 1_000_000, output_pause_bytes: 100_000, ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let (mut slow, mut other) = (setup.client()?, setup.client()?);
    let value = vec![b'x'; 100_000];
    assert_eq!(slow.ask(&[b"SET", &b"big"[..], &value])?, b"+OK\r\n");
    // Far more than sockets and limits hold, never read.
    let pipeline = command(&["GET", "big"]).repeat(1000);
    slow.socket().set_write_timeout(Some(super::DEADLINE))?;
    let _ = slow.socket().write_all(&pipeline);
    until("the slow reader is gone", || {
        assert_eq!(other.say("SET k v")?, "+OK\r\n");
        Ok(other.say("INFO clients")?.contains("connected_clients:1\r\n"))
    });
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_is_only_slow_gets_everything() -> anyhow::Result<()> {
    let limits = Limits { output_pause_bytes: 100_000, in_flight: 64, ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let mut slow = setup.client()?;
    let value = vec![b'x'; 10_000];
    assert_eq!(slow.ask(&[b"SET", &b"big"[..], &value])?, b"+OK\r\n");
    let mut writer = slow.socket().try_clone()?;
    let pipeline = command(&["GET", "big"]).repeat(2000);
    let thread = std::thread::Builder::new().spawn(move || writer.write_all(&pipeline))?;
    for n in 0..2000 {
        assert_eq!(slow.reply()?.len(), value.len() + 10, "{n}");
    }
    thread.join().expect("no panic")?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lost_node_is_an_error_and_its_return_is_noticed() -> anyhow::Result<()> {
    let mut setup = Setup::start(2).await?;
    let mut wire = setup.client()?;
    // `foo` is on the second node, `bar` on the first.
    for key in ["foo", "bar"] {
        assert_eq!(wire.say(&format!("SET {key} v"))?, "+OK\r\n");
    }
    setup.nodes[1].pause()?;
    wire.command(&["GET", "foo"])?;
    setup.nodes[1].kill9()?;
    let lost = String::from_utf8(wire.reply()?)?;
    assert!(lost.starts_with("-OUTCOMEUNKNOWN ") || lost.starts_with("-CLUSTERDOWN The node"), "{lost}");
    let down = wire.say("GET foo")?;
    assert!(down.starts_with("-CLUSTERDOWN The node"), "{down}");
    assert_eq!(wire.say("GET bar")?, "$1\r\nv\r\n", "the other node serves");
    setup.nodes[1].restart().await?;
    until("the node serves again", || Ok(wire.say("GET foo")? == "$-1\r\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_slot_that_nobody_serves_is_held_and_then_refused() -> anyhow::Result<()> {
    let limits = Limits { hold: std::time::Duration::from_secs(2), ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let node = setup.nodes[0].address();
    setup.tell(&format!("NMCTL SETDB 2 NOFLAG db {node} 0-100"))?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("GET foo")?, "-CLUSTERDOWN Hash slot not served\r\n");
    wire.command(&["GET", "foo"])?;
    setup.tell(&format!("NMCTL SETDB 3 NOFLAG db {node} 0-16383"))?;
    assert_eq!(wire.reply()?, b"$-1\r\n", "held until the slot has an owner");
    assert_eq!(setup.client()?.say("NMCTL SETDB 2 NOFLAG")?, "-OLD_EPOCH known 3\r\n");
    setup.tell("NMCTL SETPEER 4 NOFLAG db 127.0.0.1:1 12000-16383")?;
    assert_eq!(wire.say("GET foo")?, "-MOVED 12182 127.0.0.1:1\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_that_is_not_renewed_ends_the_serving() -> anyhow::Result<()> {
    let limits = Limits { hold: std::time::Duration::from_millis(100), ..Limits::default() };
    let setup = Setup::with(1, limits, "{}").await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    setup.tell("NMCTL LEASE c1 1 3000")?;
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    until("the lease has run out", || {
        Ok(wire.say("GET k")? == "-CLUSTERDOWN The proxy has no lease from the coordinators\r\n")
    });
    setup.tell("NMCTL LEASE c1 1 60000")?;
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    Ok(())
}
