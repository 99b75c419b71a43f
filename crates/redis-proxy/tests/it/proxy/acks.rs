//! `acks: replica`: a write is acknowledged when a replica has it, and only then.

use std::time::Duration;

use capstan_redis_proxy::Limits;
use capstan_testkit::RedisServer;
use capstan_testkit::redis::{Wire, command};

use super::{DEADLINE, Setup, until};

const STRICT: &str = "{\"acks\":\"replica\",\"split\":true}";

/// A replica of each node of a setup, in sync.
async fn replicas(setup: &Setup) -> anyhow::Result<Vec<RedisServer>> {
    let mut replicas = Vec::new();
    for node in &setup.nodes {
        let replica = RedisServer::start().await?;
        let mut wire = Wire::connect(replica.address())?;
        assert_eq!(wire.say(&format!("REPLICAOF 127.0.0.1 {}", node.address().port()))?, "+OK\r\n");
        until("the replica is in sync", || {
            Ok(wire.say("INFO replication")?.contains("master_link_status:up"))
        });
        replicas.push(replica);
    }
    Ok(replicas)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_acknowledged_is_on_a_replica() -> anyhow::Result<()> {
    let limits = Limits { replica_ack: DEADLINE, ..Limits::default() };
    let setup = Setup::with(2, limits, STRICT).await?;
    let replicas = replicas(&setup).await?;
    let mut wire = setup.client()?;
    let mut copies =
        replicas.iter().map(|replica| Wire::connect(replica.address())).collect::<Result<Vec<_>, _>>()?;
    // Each kind of write, read from the replica right after its acknowledgment.
    for round in 0..20 {
        let keys = [format!("{{foo}}{round}"), format!("{{bar}}{round}")];
        wire.send(&[command(&["SET", &keys[0], "v"]), command(&["GET", &keys[0]])].concat())?;
        assert_eq!(wire.reply()?, b"+OK\r\n");
        assert_eq!(copies[1].say(&format!("GET {}", keys[0]))?, "$1\r\nv\r\n", "SET");
        assert_eq!(wire.reply()?, b"$1\r\nv\r\n");
        assert_eq!(wire.say(&format!("MSET {} a {} b", keys[0], keys[1]))?, "+OK\r\n");
        assert_eq!(copies[0].say(&format!("GET {}", keys[1]))?, "$1\r\nb\r\n", "MSET");
        wire.send(&[command(&["MULTI"]), command(&["INCR", "foo"]), command(&["EXEC"])].concat())?;
        for expected in ["+OK\r\n".to_owned(), "+QUEUED\r\n".to_owned(), format!("*1\r\n:{}\r\n", round + 1)]
        {
            assert_eq!(String::from_utf8(wire.reply()?)?, expected);
        }
        assert_eq!(
            copies[1].say("GET foo")?,
            format!("${}\r\n{}\r\n", (round + 1).to_string().len(), round + 1)
        );
        wire.command(&["EVAL", "return redis.call('SET', KEYS[1], ARGV[1])", "1", &keys[1], "script"])?;
        assert_eq!(wire.reply()?, b"+OK\r\n");
        assert_eq!(copies[0].say(&format!("GET {}", keys[1]))?, "$6\r\nscript\r\n", "EVAL");
        assert_eq!(wire.say(&format!("LPUSH {{bar}}list{round} x"))?, ":1\r\n");
        wire.command(&["BLPOP", &format!("{{bar}}list{round}"), "1"])?;
        assert!(wire.reply()?.starts_with(b"*2\r\n"));
        assert_eq!(copies[0].say(&format!("EXISTS {{bar}}list{round}"))?, ":0\r\n", "BLPOP");
    }
    // A pipeline costs one round trip to the replica, not one per command.
    let pipeline: Vec<u8> = (0..1000).flat_map(|n| command(&["SET", &format!("p{n}"), "v"])).collect();
    wire.send(&pipeline)?;
    for n in 0..1000 {
        assert_eq!(wire.reply()?, b"+OK\r\n", "{n}");
    }
    assert_eq!(wire.say("GET p999")?, "$1\r\nv\r\n");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn without_a_replica_writes_are_unknown_and_reads_answered() -> anyhow::Result<()> {
    let limits = Limits { replica_ack: Duration::from_millis(300), ..Limits::default() };
    let setup = Setup::with(1, limits, STRICT).await?;
    let replicas = replicas(&setup).await?;
    let mut wire = setup.client()?;
    until("the replica acknowledges", || Ok(wire.say("SET k before")? == "+OK\r\n"));
    replicas[0].pause()?;
    let unknown = wire.say("SET k after")?;
    assert!(unknown.starts_with("-OUTCOMEUNKNOWN ") && unknown.contains("no replica"), "{unknown}");
    assert_eq!(wire.say("GET k")?, "$5\r\nafter\r\n", "executed, as the error allows");
    assert_eq!(wire.say("DBSIZE")?, ":1\r\n");
    let wrong = wire.say("INCR k")?;
    assert!(wrong.starts_with("-ERR value is not an integer"), "an error acknowledges nothing: {wrong}");
    replicas[0].resume()?;
    until("the replica acknowledges again", || Ok(wire.say("SET k again")? == "+OK\r\n"));
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_primary_that_is_replaced_before_its_replica_confirms_acknowledges_nothing() -> anyhow::Result<()> {
    let limits = Limits { replica_ack: DEADLINE, ..Limits::default() };
    let setup = Setup::with(1, limits, STRICT).await?;
    let replicas = replicas(&setup).await?;
    let mut wire = setup.client()?;
    assert_eq!(wire.say("SET k before")?, "+OK\r\n");
    replicas[0].pause()?;
    wire.command(&["SET", "k", "only at the primary"])?;
    let mut primary = Wire::connect(setup.nodes[0].address())?;
    until("the primary has it", || Ok(primary.say("GET k")?.contains("only at the primary")));
    let successor = replicas[0].address();
    setup.tell(&format!("NMCTL SETDB 2 NOFLAG db {successor} 0-16383"))?;
    let reply = String::from_utf8(wire.reply()?)?;
    assert!(reply.starts_with("-OUTCOMEUNKNOWN "), "{reply}");
    replicas[0].resume()?;
    Ok(())
}

/// One of two replicas may be promoted: a write that only the other one has would be lost by a failover.
#[tokio::test(flavor = "multi_thread")]
async fn a_replica_that_may_not_be_promoted_acknowledges_nothing() -> anyhow::Result<()> {
    let limits = Limits { replica_ack: Duration::from_secs(2), ..Limits::default() };
    let setup = Setup::with(1, limits, STRICT).await?;
    let mut both = replicas(&setup).await?;
    both.extend(replicas(&setup).await?);
    let (member, other) = (&both[0], &both[1]);
    let node = setup.nodes[0].address();
    setup.tell(&format!("NMCTL SETSYNC 1 NOFLAG db {node} 5 {}", member.address()))?;
    let mut wire = setup.client()?;
    until("both replicas acknowledge", || Ok(wire.say("SET k before")? == "+OK\r\n"));
    // More commands than one query covers, and the member has each of them.
    let pipeline: Vec<u8> = (0..1000).flat_map(|n| command(&["SET", &format!("p{n}"), "v"])).collect();
    wire.send(&pipeline)?;
    for n in 0..1000 {
        assert_eq!(wire.reply()?, b"+OK\r\n", "{n}");
    }
    assert_eq!(Wire::connect(member.address())?.say("GET p999")?, "$1\r\nv\r\n");

    member.pause()?;
    let unknown = wire.say("SET k after")?;
    assert!(unknown.starts_with("-OUTCOMEUNKNOWN ") && unknown.contains("in sync"), "{unknown}");
    let mut copy = Wire::connect(other.address())?;
    until("the other replica has it", || Ok(copy.say("GET k")? == "$5\r\nafter\r\n"));
    let read = wire.say("GET k")?;
    assert!(read.starts_with("-OUTCOMEUNKNOWN "), "a failover could revert what it shows: {read}");
    // The coordinators took it from the set; a message from before does not bring it back.
    setup.tell(&format!("NMCTL SETSYNC 1 NOFLAG db {node} 7 none"))?;
    setup.tell(&format!("NMCTL SETSYNC 1 NOFLAG db {node} 6 {}", member.address()))?;
    assert_eq!(wire.say("SET k alone")?, "+OK\r\n");
    // Both may be promoted: both must have it.
    setup.tell(&format!("NMCTL SETSYNC 2 NOFLAG db {node} 3 {},{}", other.address(), member.address()))?;
    let unknown = wire.say("SET k both")?;
    assert!(unknown.starts_with("-OUTCOMEUNKNOWN "), "{unknown}");
    let refused = setup.client()?.say(&format!("NMCTL SETSYNC 1 NOFLAG db {node} 9 none"))?;
    assert!(refused.starts_with("-OLD_EPOCH "), "{refused}");
    member.resume()?;
    until("both acknowledge again", || Ok(wire.say("SET k again")? == "+OK\r\n"));
    assert_eq!(wire.say("GET k")?, "$5\r\nagain\r\n");
    Ok(())
}
