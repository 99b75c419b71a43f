//! Replies through the proxy are those of a redis-server, byte by byte, in RESP2 and RESP3.

use capstan_testkit::redis::Wire;

use super::Setup;
use crate::faithful::cluster_node;

/// Commands whose replies have every shape that RESP3 has. `{}` of a key keeps those of one command in one slot.
const COMMANDS: &str = "SET s hello
GET s
GET nothing
GETRANGE s 1 3
STRLEN s
APPEND s world
INCR n
INCRBYFLOAT n 1.5
SETNX s x
SET s x NX
SET s x XX GET
GETDEL s
MSET {m}a 1 {m}b 2
MGET {m}a {m}x {m}b
LCS {m}a {m}b IDX
HSET h a 1 b 2 c 3
HGETALL h
HMGET h a x
HINCRBYFLOAT h a 1.25
HRANDFIELD h 0
HKEYS h
HGET h nothing
HSCAN h 0
RPUSH l 1 2 3 4
LRANGE l 0 -1
LPOS l 3
LPOS l 9
LPOP l 2
LPOP nothing 2
LPOP nothing
LMPOP 1 l LEFT COUNT 1
LMOVE l {l}2 LEFT RIGHT
SADD t a
SMEMBERS t
SISMEMBER t a
SMISMEMBER t a b
SINTER {u}1 {u}2
SPOP t
SPOP t 2
SRANDMEMBER t
ZADD z 1 a 2.5 b 3 c
ZADD z INCR 1 a
ZADD z NX INCR 1 a
ZSCORE z b
ZSCORE z x
ZMSCORE z a x
ZRANGE z 0 -1
ZRANGE z 0 -1 WITHSCORES
ZRANGEBYSCORE z -inf +inf WITHSCORES
ZRANK z a
ZRANDMEMBER z 0
ZINCRBY z 1 b
ZPOPMIN z
ZPOPMAX z 2
ZMPOP 1 z MIN
ZDIFF 1 nothing WITHSCORES
ZUNION 2 {z}1 {z}2 WITHSCORES
GEOADD g 13.361389 38.115556 Palermo 15.087269 37.502669 Catania
GEODIST g Palermo Catania
GEOPOS g Palermo x
GEOSEARCH g FROMLONLAT 15 37 BYRADIUS 200 km ASC WITHCOORD WITHDIST
PFADD p a b c
PFCOUNT p
SETBIT b 7 1
GETBIT b 7
BITCOUNT b
BITFIELD b GET u4 0 OVERFLOW FAIL INCRBY u2 100 1
XADD x 1-1 f v
XADD x 1-2 f v g w
XLEN x
XRANGE x - +
XREAD COUNT 1 STREAMS x 0
XREAD STREAMS x 9
XGROUP CREATE x grp 0
XREADGROUP GROUP grp me COUNT 1 STREAMS x >
XPENDING x grp
XACK x grp 1-1
XINFO GROUPS x
XAUTOCLAIM x grp me 0 0
EXPIRE x 100
TTL nothing
PERSIST x
TYPE x
TYPE nothing
EXISTS x
OBJECT ENCODING h
OBJECT REFCOUNT h
OBJECT FREQ nothing
OBJECT HELP
DUMP nothing
COPY h {h}2
RENAME nothing {nothing}2
SORT l
SETRANGE nothing 0 v
EVAL return{1,2.5,{3,'a'},false,true} 0
EVAL return{double=3.5} 0
EVAL redis.setresp(3);return{map={a=1}} 0
EVAL redis.setresp(3);return{set={a=true}} 0
EVAL redis.setresp(3);return{double=1e300} 0
EVAL redis.setresp(3);return(nil) 0
EVAL return{err='ERR\tx'} 0
EVAL return{ok='fine'} 0
EVAL return(redis.call('incr','x')) 0
EVALSHA ffffffffffffffffffffffffffffffffffffffff 0
LPUSH h x
INCR h
SET
SETEX k 0 v
BLPOP nothing 0.01
BLMPOP 0.01 1 nothing LEFT
BZPOPMIN nothing 0.01
BZMPOP 0.01 1 nothing MIN
XREAD BLOCK 10 STREAMS nothing 0
BLMOVE nothing {nothing}2 LEFT RIGHT 0.01
WAIT 0 10
ECHO hi
PING
PING hi
SELECT 0
CLIENT GETNAME
CLIENT NO-EVICT on
CLIENT GETREDIR
CLIENT TRACKINGINFO
CLIENT REPLY wrong
CLIENT NOSUCH
COMMAND INFO get
COMMAND GETKEYS set a b
MULTI
GET s
HGETALL h
EXEC
MULTI
DISCARD
WATCH k
UNWATCH
DEBUG JMAP
NOSUCH a b
DBSIZE
PUBLISH c m
PUBSUB NUMPAT
PUBSUB CHANNELS
PUBSUB NUMSUB a
SUBSCRIBE
UNSUBSCRIBE
RESET";

#[tokio::test(flavor = "multi_thread")]
async fn replies_are_those_of_redis_byte_by_byte() -> anyhow::Result<()> {
    let setup = Setup::start(1).await?;
    let (redis, _bus) = cluster_node().await?;
    let mut different = Vec::new();
    for protocol in ["2", "3"] {
        let (mut ours, mut theirs) = (setup.client()?, Wire::connect(redis.address())?);
        for wire in [&mut ours, &mut theirs] {
            wire.say("FLUSHALL")?;
            wire.say(&format!("HELLO {protocol}"))?;
        }
        for command in COMMANDS.lines() {
            let (our, their) = (ours.say(command)?, theirs.say(command)?);
            if our != their {
                different.push(format!("RESP{protocol} {command}\n   ours {our:?}\n  redis {their:?}"));
            }
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    Ok(())
}
