//! Several proxies: redirection, forwarding, channels across hosts, and slots that move under load.

use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};

use capstan_control::tasks::Supervisor;
use capstan_redis_proxy::nodes::Nodes;
use capstan_redis_proxy::{Config, Proxy};
use capstan_testkit::redis::Wire;
use capstan_testkit::{RedisServer, TempDir};

use super::until;

/// A host: one node and the proxy in front of it.
struct Host {
    proxy: Proxy,
    node: RedisServer,
    _supervisor: Supervisor,
    _dir: TempDir,
}

impl Host {
    async fn start() -> anyhow::Result<Host> {
        let (node, dir, supervisor) =
            (RedisServer::start().await?, TempDir::new("proxy")?, Supervisor::default());
        let config = Config {
            admin_password: Some("admin-secret".to_owned()),
            state_dir: Some(dir.path().to_owned()),
            ..super::config()?
        };
        let proxy = Proxy::start(config, Nodes::external(None), &supervisor)?;
        Ok(Host { proxy, node, _supervisor: supervisor, _dir: dir })
    }

    fn address(&self) -> SocketAddr {
        self.proxy.address()
    }

    fn client(&self) -> anyhow::Result<Wire> {
        Wire::connect(self.address())
    }

    fn say(&self, message: &str) -> anyhow::Result<String> {
        let mut wire = self.client()?;
        anyhow::ensure!(wire.say("AUTH admin admin-secret")? == "+OK\r\n", "no admin");
        wire.say(message)
    }

    fn tell(&self, message: &str) -> anyhow::Result<()> {
        let reply = self.say(message)?;
        anyhow::ensure!(reply == "+OK\r\n", "{message}: {reply}");
        Ok(())
    }
}

/// Two hosts with half of the slots each.
async fn pair(settings: &str) -> anyhow::Result<(Host, Host)> {
    let (one, two) = (Host::start().await?, Host::start().await?);
    for (host, other, own, others) in
        [(&one, &two, "0-8191", "8192-16383"), (&two, &one, "8192-16383", "0-8191")]
    {
        host.tell(&format!("NMCTL SETDB 1 NOFLAG db {} {own}", host.node.address()))?;
        host.tell(&format!("NMCTL SETPEER 1 NOFLAG db {} {others}", other.address()))?;
        host.tell(&format!("NMCTL SETCONF 1 NOFLAG db {settings}"))?;
    }
    Ok((one, two))
}

#[tokio::test(flavor = "multi_thread")]
async fn a_strangers_nmctl_is_refused() -> anyhow::Result<()> {
    let host = Host::start().await?;
    let refused = host.client()?.say("NMCTL CLEARDB")?;
    assert!(refused.starts_with("-NOPERM NMCTL needs a connection"), "{refused}");
    assert!(host.client()?.say("AUTH admin wrong")?.starts_with("-WRONGPASS"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn clients_that_know_clusters_are_redirected_and_the_others_served() -> anyhow::Result<()> {
    let (one, two) = pair("{}").await?;
    // `foo` has slot 12182, `bar` has slot 5061.
    assert_eq!(one.client()?.say("SET foo 1")?, format!("-MOVED 12182 {}\r\n", two.address()));
    assert_eq!(two.client()?.say("SET foo 1")?, "+OK\r\n");
    let (one, _two) = pair(r#"{"mode":"single","split":true}"#).await?;
    let mut wire = one.client()?;
    for (said, expected) in [
        ("SET foo 1", "+OK\r\n"),
        ("SET bar 2", "+OK\r\n"),
        ("MGET foo bar x", "*3\r\n$1\r\n1\r\n$1\r\n2\r\n$-1\r\n"),
        ("DBSIZE", ":2\r\n"),
        ("MULTI", "+OK\r\n"),
        ("INCR foo", "+QUEUED\r\n"),
        ("EXEC", "*1\r\n:2\r\n"),
        ("EVAL return(redis.call('incr',KEYS[1])) 1 foo", ":3\r\n"),
        ("RPUSH {foo}l 1", ":1\r\n"),
        ("BLPOP {foo}l 1", "*2\r\n$6\r\n{foo}l\r\n$1\r\n1\r\n"),
        ("FLUSHALL", "+OK\r\n"),
        ("DBSIZE", ":0\r\n"),
    ] {
        assert_eq!(wire.say(said)?, expected, "{said}");
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn subscribers_hear_publishers_of_other_hosts() -> anyhow::Result<()> {
    let (one, two) = pair("{}").await?;
    let mut subscriber = one.client()?;
    for channel in ["foo", "bar"] {
        subscriber.say(&format!("SUBSCRIBE {channel}"))?;
    }
    let mut patterns = two.client()?;
    patterns.say("PSUBSCRIBE *")?;
    for publisher in [&one, &two] {
        for channel in ["foo", "bar"] {
            assert_eq!(publisher.client()?.say(&format!("PUBLISH {channel} x"))?, ":2\r\n");
            let expected = format!("*3\r\n$7\r\nmessage\r\n$3\r\n{channel}\r\n$1\r\nx\r\n");
            assert_eq!(String::from_utf8(subscriber.reply()?)?, expected);
            assert!(patterns.reply()?.starts_with(b"*4\r\n$8\r\npmessage\r\n"));
        }
    }
    Ok(())
}

/// Follows one redirection, as a cluster client does.
fn ask_following(wires: &mut [Wire; 2], addresses: [SocketAddr; 2], at: &mut usize, said: &str) -> String {
    for _ in 0..100 {
        let reply = wires[*at].say(said).unwrap();
        match reply.strip_prefix("-MOVED ") {
            None => return reply,
            Some(moved) => *at = usize::from(moved.trim_end().ends_with(&addresses[1].to_string())),
        }
    }
    panic!("{said}: redirected without end")
}

#[tokio::test(flavor = "multi_thread")]
async fn slots_move_while_clients_write_and_wait() -> anyhow::Result<()> {
    let (one, two) = pair("{}").await?;
    let addresses = [one.address(), two.address()];
    let stop = AtomicBool::new(false);
    let mut waiting = one.client()?;
    // `bar` is in the range that moves.
    waiting.command(&["BLPOP", "{bar}queue", "0"])?;
    std::thread::scope(|scope| -> anyhow::Result<()> {
        let mut writers = Vec::new();
        for writer in 0..3 {
            let mut wires = [one.client()?, two.client()?];
            let stop = &stop;
            writers.push(scope.spawn(move || {
                let (mut at, mut written) = (0, 0_u64);
                while !stop.load(Ordering::Relaxed) {
                    let key = format!("{{bar}}{writer}:{}", written % 50);
                    let reply = ask_following(&mut wires, addresses, &mut at, &format!("INCR {key}"));
                    assert_eq!(reply, format!(":{}\r\n", written / 50 + 1), "{key}");
                    written += 1;
                }
                written
            }));
        }
        let moved = move_slots(&one, &two);
        stop.store(true, Ordering::Relaxed);
        let written: u64 = writers.into_iter().map(|writer| writer.join().expect("no wrong reply")).sum();
        assert!(written > 0, "no write succeeded");
        moved
    })?;
    let woken = String::from_utf8(waiting.reply()?)?;
    assert_eq!(
        woken,
        format!("-MOVED 5061 {}\r\n", two.address()),
        "the blocked client is redirected to the new owner"
    );
    Ok(())
}

/// Moves slots 0-8191 from the first to the second, as a coordinator does.
fn move_slots(one: &Host, two: &Host) -> anyhow::Result<()> {
    let (from, to) = (one.node.address(), two.node.address());
    two.tell(&format!("NMCTL SETDB 2 NOFLAG db {to} 8192-16383 db {to} importing {} 0-8191", one.address()))?;
    one.tell(&format!("NMCTL SETDB 2 NOFLAG db {from} migrating {} 0-8191", two.address()))?;
    let release = format!("NMCTL RELEASING 2 NOFLAG db {from} migrating {} 0-8191", two.address());
    until("the source lets go", || Ok(one.say(&release)? == "+OK\r\n"));
    two.tell(&format!("NMCTL SETDB 3 NOFLAG db {to} 0-16383"))?;
    one.tell(&format!("NMCTL SETPEER 3 NOFLAG db {} 0-16383", two.address()))?;
    one.tell("NMCTL SETDB 3 NOFLAG")?;
    two.tell("NMCTL SETPEER 3 NOFLAG")
}
