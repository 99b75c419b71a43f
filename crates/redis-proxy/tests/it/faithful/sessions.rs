//! Whole conversations: does a proxy reply, byte by byte, like a redis-server in cluster mode?

use capstan_testkit::redis::{Wire, command};

use super::cluster_node;
use crate::clients::Proxies;

/// One conversation per line, commands separated by bars; each has a connection of its own that ends with
/// `QUIT`.
const CONVERSATIONS: &str = "\
EXEC|DISCARD|UNWATCH|MULTI|MULTI|EXEC
MULTI|GET|EXEC|GET k
MULTI|NOSUCH|SET k 1|EXEC|GET k
MULTI|SET {a}1 1|LPUSH {a}1 x|GET {a}1|EXEC
MULTI|WATCH a|EXEC
WATCH a b
WATCH a|MULTI|DISCARD|EXEC
WATCH w|SET w 1|MULTI|GET w|EXEC
MULTI|BLPOP l 0|EXEC
MULTI|PING|ECHO x|EXEC
MULTI|CLUSTER NOSUCH|EXEC
MULTI|SET t 1|RESET|EXEC|GET t
MULTI|EXEC
MULTI|GET k|EXEC|MULTI|GET k|EXEC
MULTI|XREAD BLOCK 0 STREAMS x 0|EXEC
MULTI|EVAL return(1) 0|SET {e}a 1|EXEC
SUBSCRIBE a b|PING|PING x|GET k|SUBSCRIBE c|UNSUBSCRIBE a|UNSUBSCRIBE b c|GET k
PSUBSCRIBE a* b*|SET k v|PUNSUBSCRIBE a* b*|PING
SSUBSCRIBE {a}1 {a}2|SUNSUBSCRIBE {a}1 {a}2|PING
SSUBSCRIBE a b
SUBSCRIBE a|MULTI|UNSUBSCRIBE|MULTI|EXEC
SUBSCRIBE a|RESET|GET k
UNSUBSCRIBE|PUNSUBSCRIBE|SUNSUBSCRIBE|UNSUBSCRIBE x
SUBSCRIBE a|PUBLISH a m
HELLO 3|SUBSCRIBE a|PING|GET k|UNSUBSCRIBE a|GET k
HELLO 3|PUBLISH nobody m|SPUBLISH nobody m
CLIENT REPLY OFF|SET k v|GET k|CLIENT REPLY ON|GET k
CLIENT REPLY SKIP|SET k 2|GET k
CLIENT SETNAME me|CLIENT GETNAME|RESET|CLIENT GETNAME
CLIENT SETNAME a\\tb|CLIENT SETNAME|CLIENT KILL|CLIENT UNBLOCK x
ASKING|GET k|READONLY|GET k|READWRITE|GET k
AUTH x|AUTH a b|AUTH default x|AUTH|AUTH a b c
HELLO 3 AUTH a b|HELLO 9|HELLO x|HELLO 2 SETNAME x|CLIENT GETNAME
SCRIPT LOAD return(1)|EVALSHA e0e1f9fabfc9d4800c877a703b823ac0578ff8db 0|SCRIPT EXISTS x|SCRIPT FLUSH bad|SCRIPT NOSUCH
EVAL return(KEYS) 2 a b|EVAL return(KEYS) 2 {a}1 {a}2|EVAL return(1) x|EVAL return(1) 5 a|EVAL syntax( 0|EVAL return(1) -1
FUNCTION LIST|FUNCTION LOAD bad|FUNCTION DELETE nosuch|FCALL nosuch 0|FCALL nosuch 1 a|FUNCTION NOSUCH|FUNCTION FLUSH bad
RPUSH sl 3 1 2|SORT sl|SORT sl BY w*|SORT sl GET x|SORT sl BY nosort|SORT sl STORE sd|SORT sl STORE {sl}d|SORT_RO sl GET #
MOVE k 1|SWAPDB 0 1|COPY {a}1 {a}2 DB 1|COPY {a}1 {a}9|SELECT 5|SELECT x|REPLICAOF no one|FAILOVER
MGET a b|DEL a b|RENAME a b|SUNION a b|MSETNX a 1 b 2|EXISTS a b|TOUCH a b|UNLINK a b|PFCOUNT a b|BITOP AND d a b
ZUNIONSTORE d 2 a b|XREAD STREAMS a b 0 0|BLPOP a b 1|LMPOP 2 a b LEFT|SINTERCARD 2 a b|LCS a b|SMOVE a b m|RPOPLPUSH a b
GEOSEARCHSTORE a b FROMLONLAT 0 0 BYRADIUS 1 m|ZRANGESTORE a b 0 1|BLMPOP 1 2 a b LEFT|BZPOPMIN a b 1|MSET a 1 b 2
SET foo 1|CLUSTER COUNTKEYSINSLOT 12182|CLUSTER GETKEYSINSLOT 12182 5|CLUSTER COUNTKEYSINSLOT 1|CLUSTER GETKEYSINSLOT 1 5
SCAN x|SCAN 0 COUNT 0|SCAN 0 BAD|SCAN 0 MATCH nosuch* COUNT 1000 TYPE hash|SCAN
FLUSHALL BAD|FLUSHDB BAD|RANDOMKEY x|DBSIZE x|KEYS|KEYS nosuch*|WAIT a b|WAIT 0 0|WAIT 0|LASTSAVE x
SET d v|RESTORE d 0 bad|RESTORE d2 0 bad REPLACE|DUMP nosuch|OBJECT ENCODING nosuch|OBJECT NOSUCH d|OBJECT FREQ d
PUBLISH c|SPUBLISH c m|PUBSUB SHARDCHANNELS|PUBSUB SHARDNUMSUB a|PUBSUB NOSUCH|PUBSUB NUMSUB|PUBSUB CHANNELS x y
LATENCY NOSUCH|SLOWLOG NOSUCH|MEMORY USAGE nosuch|MEMORY NOSUCH|CONFIG GET|CONFIG NOSUCH|DEBUG|ACL WHOAMI|ACL CAT nosuch
ACL NOSUCH|MODULE LIST|MODULE LOAD x|MODULE NOSUCH|COMMAND NOSUCH|LOLWUT|ROLE|ECHO|ECHO a b|TIME x
SET s 1|GETEX s EX 0|GETEX s BAD|SET s 1 EX 0|SET s 1 EX 1 PX 1|SET s 1 NX XX|SETEX s 0 v|INCRBY s x|INCRBYFLOAT s x
HSET h|HSET h a|HSET h a 1 b|HINCRBY h a x|LPUSH l|LSET l 99 x|LINSERT l NEAR a b|ZADD z x a|ZADD z NX XX 1 a|XADD x 0-0 a b
XGROUP CREATE nosuch g 0|XGROUP NOSUCH a b|XREADGROUP GROUP g c STREAMS nosuch >|XINFO STREAM nosuch|XREAD STREAMS a
GEOADD g 999 999 m|GEODIST g a b|BITFIELD b GET|SETBIT b 7 2|PFADD|EXPIRE k x|EXPIRE k 100 NX XX|PEXPIREAT k -1|TTL k
MULTI|SET a 1|SET b 2|EXEC|GET a
MULTI|SELECT 0|SELECT 1|EXEC
MULTI|CLUSTER KEYSLOT a|EXEC
MULTI|SET a 1|NOSUCH|SET b 2|EXEC
MULTI|CLIENT SETNAME x|CLIENT GETNAME|SET k 1|CLIENT GETNAME|INCR k|EXEC|CLIENT GETNAME
MULTI|SWAPDB 0 1|MOVE k 1|COPY {a}1 {a}2 DB 1|SORT l BY w*|REPLICAOF no one|EXEC
MULTI|FLUSHALL|DBSIZE|SET k 1|DBSIZE|KEYS *|RANDOMKEY|SCAN 0|FLUSHDB|EXEC|DBSIZE
MULTI|PUBLISH c m|SPUBLISH c m|PING|PING x|ECHO x|EXEC
MULTI|CONFIG GET maxmemory|CONFIG GET nosuch|COMMAND COUNT x|LOLWUT|ROLE|ACL WHOAMI|MODULE LIST|CLUSTER LINKS|EXEC
MULTI|WATCH a b|EXEC|EXEC x|DISCARD x|MULTI x
MULTI|READONLY|READWRITE|ASKING|AUTH x|SELECT x|EXEC
WATCH k|MULTI|CLIENT SETNAME y|EXEC|CLIENT GETNAME
MULTI|HELLO 3|EXEC|HGETALL nosuch
HELLO 3|MULTI|GET nosuch|CLIENT GETNAME|HGETALL nosuch|EXEC
CLIENT PAUSE x|CLIENT PAUSE -1|CLIENT PAUSE 1 x|CLIENT PAUSE x y|CLIENT PAUSE 1 write x|CLIENT PAUSE 20|GET k|SET k 1
CLIENT PAUSE 20 WRITE|GET k|SET k 1|CLIENT UNPAUSE|CLIENT UNPAUSE x|CLIENT PAUSE 0|GET k
CLIENT TRACKING x|CLIENT TRACKING off|CLIENT TRACKING on x|CLIENT TRACKING on PREFIX a|CLIENT TRACKING on REDIRECT x
CLIENT TRACKING on BCAST OPTIN|CLIENT TRACKING on OPTIN OPTOUT|CLIENT CACHING yes|CLIENT GETREDIR|CLIENT TRACKINGINFO
CLIENT UNBLOCK 1 x y|CLIENT UNBLOCK x y|CLIENT UNBLOCK 99999|CLIENT UNBLOCK -5|CLIENT NO-EVICT x|CLIENT HELP|CLIENT REPLY x
CLIENT KILL ID x|CLIENT KILL ID 0|CLIENT KILL TYPE Nosuch|CLIENT KILL SKIPME x|CLIENT KILL a b c|CLIENT KILL 1.2.3.4:5|CLIENT LIST ID x
CLIENT LIST TYPE Nosuch|CLIENT LIST x|CLIENT LIST ID|CLIENT KILL ID 99999|CLIENT KILL ADDR 1.2.3.4:5|CLIENT KILL TYPE master
SLOWLOG GET x|SLOWLOG GET -2|SLOWLOG GET 1 2|SLOWLOG HELP|SLOWLOG RESET|SLOWLOG LEN x|LATENCY LATEST|LATENCY HISTORY command
LATENCY RESET|LATENCY GRAPH command|LATENCY HISTOGRAM nosuch|LATENCY HELP|LATENCY DOCTOR x|LATENCY RESET command
CONFIG GET save|CONFIG GET maxmemory-policy|CONFIG GET TIMEOUT|CONFIG GET notify-keyspace-events|CONFIG GET hash-max-listpack-e*
EXEC x|MULTI|EXEC x|EXEC|SUBSCRIBE a|EXEC|MGET a b|SET k v|UNSUBSCRIBE
SUNSUBSCRIBE a b|SUNSUBSCRIBE {a}1 {a}2|FLUSHALL|SCAN 5|SCAN -1|SCAN 1x|SCAN 99999999999999999999999|SCAN 18446744073709551615|SCAN 0 TYPE
SORT l x GET #|SORT_RO l STORE {l}2 GET #|SORT l LIMIT 0 1 ASC GET #|SORT l LIMIT x y BY w*|MONITOR x|RESET
NOSUCH \\xff\\x00a b|\\xffNO \\x01|OBJECT \\xff\\x00 x|CLUSTER \\xff|NOSUCH a\\nb\\rc|GET \\xff\\x00|SET \\xff\\x00 \\x00\\x01|GET \\xff\\x00
GET \"\"|SET \"\" empty|GET \"\"|DEL \"\"|STRLEN {}|CLUSTER KEYSLOT {}|CLUSTER KEYSLOT {}a";

fn transcript(wire: &mut Wire, conversation: &str) -> anyhow::Result<String> {
    let mut bytes = Vec::new();
    for line in conversation.split('|') {
        let words: Vec<Vec<u8>> = line.split(' ').map(spelt).collect();
        bytes.extend(command(&words));
    }
    bytes.extend(command(&["QUIT"]));
    wire.send(&bytes)?;
    Ok(without_client_ids(&wire.rest()?))
}

/// A word of a conversation: `""` is the empty one, and bytes are written as in Rust.
fn spelt(word: &str) -> Vec<u8> {
    if word == "\"\"" {
        return Vec::new();
    }
    let (mut bytes, mut rest) = (Vec::new(), word);
    while let Some((before, escape)) = rest.split_once('\\') {
        bytes.extend_from_slice(before.as_bytes());
        let (byte, len) = match escape.as_bytes()[0] {
            b't' => (b'\t', 1),
            b'n' => (b'\n', 1),
            b'r' => (b'\r', 1),
            _ => (u8::from_str_radix(&escape[1..3], 16).unwrap(), 3),
        };
        bytes.push(byte);
        rest = &escape[len..];
    }
    [&bytes, rest.as_bytes()].concat()
}

/// The replies of `HELLO` without the client id, which each server counts.
pub fn without_client_ids(transcript: &[u8]) -> String {
    let transcript = transcript.escape_ascii().to_string().replace("\\r\\n", "\r\n");
    let mut parts = transcript.split("$2\r\nid\r\n:");
    let first = parts.next().unwrap_or_default().to_owned();
    parts.fold(first, |text, part| text + "$2\r\nid" + part.trim_start_matches(|c: char| c.is_ascii_digit()))
}

#[tokio::test(flavor = "multi_thread")]
async fn conversations_are_those_of_redis() -> anyhow::Result<()> {
    compare(CONVERSATIONS).await
}

async fn compare(conversations: &str) -> anyhow::Result<()> {
    let (redis, _bus) = cluster_node().await?;
    let proxies = Proxies::start(1).await?;
    let mut different = Vec::new();
    for conversation in conversations.lines() {
        let theirs = transcript(&mut Wire::connect(redis.address())?, conversation)?;
        let ours = transcript(&mut Wire::connect(proxies.addresses()[0])?, conversation)?;
        if ours != theirs {
            different.push(format!("{conversation}\n   ours {ours:?}\n  redis {theirs:?}"));
        }
    }
    assert!(different.is_empty(), "{}", different.join("\n"));
    Ok(())
}
