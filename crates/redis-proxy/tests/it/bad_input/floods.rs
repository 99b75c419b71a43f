//! Too much of something: messages that are not read, endless transactions, a million arguments, one byte at
//! a time.

use std::time::Duration;

use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{Config, Limits, Proxy};
use capstan_testkit::redis::{Wire, command};
use capstan_testkit::{RedisServer, eventually_blocking};

const SOON: Duration = Duration::from_secs(30);

struct Setup {
    proxy: Proxy,
    _node: RedisServer,
    _supervisor: Supervisor,
}

impl Setup {
    async fn with(limits: Limits) -> anyhow::Result<Setup> {
        let (node, supervisor) = (RedisServer::start().await?, Supervisor::default());
        let config = Config {
            listen: "127.0.0.1:0".parse()?,
            announce: None,
            workers: 2,
            limits,
            tls: None,
            admin_password: None,
            state_dir: None,
            require_lease: false,
        };
        let proxy = Proxy::start(config, Nodes::external(None), &supervisor)?;
        let setup = Setup { proxy, _node: node, _supervisor: supervisor };
        let message = format!("NMCTL SETDB 1 NOFLAG db {} 0-16383", setup._node.address());
        assert_eq!(setup.client()?.say(&message)?, "+OK\r\n");
        Ok(setup)
    }

    fn client(&self) -> anyhow::Result<Wire> {
        Wire::connect(self.proxy.address())
    }
}

/// Waits until the only client is this one.
fn alone(wire: &mut Wire) {
    eventually_blocking("the others were disconnected", SOON, || {
        let info = wire.say("INFO clients").map_err(|e| e.to_string())?;
        if info.contains("connected_clients:1\r\n") { Ok(()) } else { Err(info) }
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn who_does_not_read_what_he_subscribed_to_is_cut_off_alone() -> anyhow::Result<()> {
    let limits = Limits { subscriber_output_bytes: 1 << 20, ..Limits::default() };
    let setup = Setup::with(limits).await?;
    let (mut deaf, mut watcher, mut publisher) = (setup.client()?, setup.client()?, setup.client()?);
    deaf.say("SUBSCRIBE c")?;
    watcher.say("MONITOR")?;
    let message = vec![b'x'; 100_000];
    for _ in 0..200 {
        let reply = publisher.ask(&[b"PUBLISH", &b"c"[..], &message])?;
        assert!(reply == b":1\r\n" || reply == b":0\r\n", "{reply:?}");
    }
    alone(&mut publisher);
    assert_eq!(publisher.say("PUBLISH c x")?, ":0\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_without_end_is_ended() -> anyhow::Result<()> {
    let setup = Setup::with(Limits { queued: 100, ..Limits::default() }).await?;
    let mut wire = setup.client()?;
    let pipeline: Vec<u8> = (0..150).flat_map(|_| command(&["INCR", "k"])).collect();
    wire.send(&[command(&["MULTI"]), pipeline, command(&["EXEC"]), command(&["GET", "k"])].concat())?;
    let replies: Vec<_> = (0..153).map(|_| wire.reply()).collect::<Result<_, _>>()?;
    assert_eq!(replies[100], b"+QUEUED\r\n");
    assert_eq!(replies[101], b"-ERR too many commands in one transaction\r\n");
    assert_eq!(replies[151], b"-EXECABORT Transaction discarded because of previous errors.\r\n");
    assert_eq!(replies[152], b"$-1\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn as_many_arguments_as_redis_takes_are_taken_and_no_more() -> anyhow::Result<()> {
    let setup = Setup::with(Limits::default()).await?;
    let (mut wire, mut other) = (setup.client()?, setup.client()?);
    let mut words = vec!["RPUSH", "{a}l"];
    words.resize(1024 * 1024, "x");
    wire.send(&command(&words))?;
    assert_eq!(wire.reply()?, b":1048574\r\n");
    assert_eq!(other.say("LLEN {a}l")?, ":1048574\r\n");
    wire.send(b"*1048577\r\n")?;
    assert_eq!(wire.rest()?, b"-ERR Protocol error: invalid multibulk length\r\n");
    assert_eq!(other.say("PING")?, "+PONG\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_byte_at_a_time_from_many_keeps_nobody_waiting() -> anyhow::Result<()> {
    let setup = Setup::with(Limits::default()).await?;
    let mut other = setup.client()?;
    let mut slow = (0..100).map(|_| setup.client()).collect::<Result<Vec<_>, _>>()?;
    let bytes = command(&["SET", "slow", "done"]);
    for byte in &bytes[..bytes.len() - 1] {
        for one in &mut slow {
            one.send(&[*byte])?;
        }
        assert_eq!(other.say("SET quick done")?, "+OK\r\n");
    }
    for one in &mut slow {
        one.send(&bytes[bytes.len() - 1..])?;
        assert_eq!(one.reply()?, b"+OK\r\n");
    }
    drop(slow);
    alone(&mut other);
    Ok(())
}
