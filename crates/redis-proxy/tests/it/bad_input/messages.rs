//! Control messages that must be refused.

use std::path::PathBuf;

use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::Wire;
use capstan_testkit::seed::{rng, seeds, soak};
use capstan_testkit::{RedisServer, TempDir};
use rand::RngExt;
use rand::seq::IndexedRandom;

fn start(
    supervisor: &Supervisor,
    admin_password: Option<&str>,
    state_dir: Option<PathBuf>,
) -> anyhow::Result<Proxy> {
    let config = Config {
        listen: "127.0.0.1:0".parse()?,
        announce: None,
        workers: 1,
        limits: Limits::default(),
        tls: None,
        admin_password: admin_password.map(str::to_owned),
        state_dir,
        require_lease: false,
    };
    Ok(Proxy::start(config, Nodes::external(None), supervisor)?)
}

#[tokio::test(flavor = "multi_thread")]
async fn nonsense_is_explained_and_changes_nothing() -> anyhow::Result<()> {
    let supervisor = Supervisor::default();
    let node = RedisServer::start().await?;
    let proxy = start(&supervisor, None, None)?;
    let mut wire = Wire::connect(proxy.address())?;
    let node = node.address();
    assert_eq!(wire.say(&format!("NMCTL SETDB 5 NOFLAG db {node} 0-16383"))?, "+OK\r\n");
    assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    for (message, refusal) in [
        ("NMCTL", "-ERR wrong number of arguments for 'nmctl' command"),
        ("NMCTL NOSUCH", "-ERR unknown NMCTL subcommand 'NOSUCH'"),
        ("NMCTL SETDB", "-ERR NMCTL SETDB: an epoch, at least 1 is missing"),
        ("NMCTL SETDB 0 NOFLAG", "-ERR NMCTL SETDB: '0' is not an epoch"),
        ("NMCTL SETDB -1 NOFLAG", "-ERR NMCTL SETDB: '-1' is not an epoch"),
        (
            "NMCTL SETDB 99999999999999999999 NOFLAG",
            "-ERR NMCTL SETDB: '99999999999999999999' is not an epoch",
        ),
        ("NMCTL SETDB 9 NOFLAG db", "-ERR NMCTL SETDB: an address is missing"),
        ("NMCTL SETDB 9 NOFLAG db h:1 5-3", "-ERR NMCTL SETDB: '5-3' is not a range"),
        ("NMCTL SETDB 9 NOFLAG db h:1 0-99999", "-ERR NMCTL SETDB: '0-99999' is not a range"),
        ("NMCTL SETDB 9 NOFLAG db h:1 0-9 db h:2 5-20", "-ERR NMCTL SETDB: slot 5 of db is claimed by h:1"),
        ("NMCTL SETPEER 9 NOFLAG db h:1 migrating h:2 0-9", "-ERR NMCTL SETPEER: 'migrating' is not a range"),
        ("NMCTL SETCONF 9 NOFLAG db {", "-ERR NMCTL SETCONF: '{' is not the settings"),
        ("NMCTL LEASE c 0 1000", "-ERR NMCTL LEASE: '0' is not a number of coordinators"),
        ("NMCTL SETDB 4 NOFLAG", "-OLD_EPOCH known 5"),
        ("NMCTL SETDB 5 NOFLAG", "-ERR SETDB of epoch 5 was accepted with other content"),
    ] {
        let said = wire.say(message)?;
        assert!(said.starts_with(refusal), "{message}: {said}");
        assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n", "after {message}");
    }
    assert_eq!(wire.say(&format!("NMCTL SETDB 5 NOFLAG db {node} 0-16383"))?, "+OK\r\n");
    assert_eq!(wire.say(&format!("NMCTL SETDB 3 FORCE db {node} 0-16383"))?, "+OK\r\n");
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn only_the_admin_steers_a_proxy_that_has_a_password() -> anyhow::Result<()> {
    let supervisor = Supervisor::default();
    let proxy = start(&supervisor, Some("secret"), None)?;
    let mut stranger = Wire::connect(proxy.address())?;
    for message in
        ["NMCTL LISTDB", "NMCTL CLEARDB", "NMCTL SETDB 9 FORCE", "NMCTL LEASE c 1 1000", "NMCTL PEER db"]
    {
        let said = stranger.say(message)?;
        assert!(said.starts_with("-NOPERM ") || said.starts_with("-NOAUTH "), "{message}: {said}");
    }
    assert!(stranger.say("AUTH admin wrong")?.starts_with("-WRONGPASS "));
    assert!(stranger.say("NMCTL LISTDB")?.starts_with("-NO"));
    let mut admin = Wire::connect(proxy.address())?;
    assert_eq!(admin.say("AUTH admin secret")?, "+OK\r\n");
    assert_eq!(admin.say("NMCTL SETDB 1 NOFLAG db h:1 0-9")?, "+OK\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_restarted_proxy_still_refuses_the_past() -> anyhow::Result<()> {
    let dir = TempDir::new("redis-proxy")?;
    let supervisor = Supervisor::default();
    let node = RedisServer::start().await?;
    let own = format!("db {} 0-16383", node.address());
    {
        let proxy = start(&supervisor, None, Some(dir.join("state")))?;
        let mut wire = Wire::connect(proxy.address())?;
        assert_eq!(wire.say(&format!("NMCTL SETDB 7 NOFLAG {own}"))?, "+OK\r\n");
        assert_eq!(wire.say("SET k v")?, "+OK\r\n");
    }
    let proxy = start(&supervisor, None, Some(dir.join("state")))?;
    let mut wire = Wire::connect(proxy.address())?;
    assert_eq!(wire.say("GET k")?, "$1\r\nv\r\n", "it serves at once");
    assert_eq!(wire.say(&format!("NMCTL SETDB 6 NOFLAG {own}"))?, "-OLD_EPOCH known 7\r\n");
    assert_eq!(wire.say(&format!("NMCTL SETDB 7 NOFLAG {own}"))?, "+OK\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_damaged_state_is_refused_loudly() -> anyhow::Result<()> {
    let dir = TempDir::new("redis-proxy")?;
    let supervisor = Supervisor::default();
    {
        let proxy = start(&supervisor, None, Some(dir.join("state")))?;
        let mut wire = Wire::connect(proxy.address())?;
        assert_eq!(wire.say("NMCTL SETPEER 7 NOFLAG db h:1 0-9")?, "+OK\r\n");
    }
    let path = dir.join("state").join("proxy.state");
    let text = std::fs::read_to_string(&path)?;
    std::fs::write(&path, text.replace("0-9", "0-8"))?;
    let refused =
        start(&supervisor, None, Some(dir.join("state"))).err().expect("it believed a damaged file");
    assert!(refused.to_string().contains("its checksum is wrong"), "{refused}");
    Ok(())
}

/// Words of messages, and words that are not part of any.
const WORDS: &str = "SETDB SETPEER SETREPL SETCONF RELEASING IMPORT LISTDB MOVES EPOCH INFO PEER NOSUCH 0 1 2 -1 7.5 \
                     99999999999999999999 NOFLAG FORCE FORCE,X , db db2 x/y h:1 h: :1 127.0.0.1:1 127.0.0.1:99999 [::1]:7 0-100 \
                     0-16383 50-60 5-3 16384 0-16384 7 - -- migrating importing primary replica-of {} {\"mode\":\"single\"} \
                     {\"mode\":1} {\"users\":[{}]} [ \u{e9}";

#[tokio::test(flavor = "multi_thread")]
async fn random_messages_are_answered_and_leave_the_proxy_well() -> anyhow::Result<()> {
    let supervisor = Supervisor::default();
    let node = RedisServer::start().await?;
    let proxy = start(&supervisor, None, None)?;
    let own = format!("db {} 0-16383", node.address());
    seeds(1, |seed| {
        let mut rng = rng(seed);
        let words: Vec<&str> = WORDS.split(' ').collect();
        let mut wire = Wire::connect(proxy.address()).unwrap();
        for turn in 0..soak(400, 20_000) {
            let mut message = vec!["NMCTL"];
            let count = rng.random_range(1..12);
            message.extend((0..count).map(|_| *words.choose(&mut rng).unwrap()));
            let reply = wire.ask(&message).unwrap();
            assert!(b"+-*$:".contains(&reply[0]), "{message:?}: {}", String::from_utf8_lossy(&reply));
            if turn % 20 == 0 {
                // Whatever was accepted: a valid message with FORCE is accepted too, and the proxy works.
                let mut admin = Wire::connect(proxy.address()).unwrap();
                assert_eq!(admin.say("NMCTL CLEARDB").unwrap(), "+OK\r\n");
                assert_eq!(admin.say(&format!("NMCTL SETDB 1 FORCE {own}")).unwrap(), "+OK\r\n");
                assert_eq!(admin.say("SET k v").unwrap(), "+OK\r\n", "after {message:?}");
            }
        }
    });
    Ok(())
}
