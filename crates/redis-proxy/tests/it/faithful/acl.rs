//! ACL rules, compared with a real server: random rules, random commands; the same verdict and the same error.

use std::net::SocketAddr;

use anyhow::ensure;
use capstan_redis_protocol::acl::{Denied, Rules};
use capstan_redis_protocol::command::{Command, Handling, commands, find};
use capstan_testkit::RedisServer;
use capstan_testkit::redis::Wire;
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use super::with_request;

const RULES: &str = "~* ~a:* ~b:* ~a:1 ~[ab]:? %R~a:* %R~c %W~b:* %W~c %RW~d %R~* %W~* allkeys resetkeys &* &a:* &b:1 allchannels \
                     resetchannels +@all -@all allcommands nocommands +@read -@read +@write -@write +@string -@string +@keyspace \
                     -@keyspace +@pubsub -@pubsub +@slow -@slow +@fast -@fast +@dangerous -@dangerous +@admin -@admin +@hash \
                     -@connection +@connection +@scripting -@scripting +@transaction -@blocking +@stream +get -get +set -set +mget \
                     +config -config +config|get -config|get -config|set +client|list -client +object -object|freq +publish \
                     -publish +subscribe +psubscribe +eval -eval +xread -xread +copy +bitfield +georadius -georadius +memory|usage";

const WORDS: &str = "a:1 a:1 a:2 a: b:1 b:1 b:22 c c d x 0 1 2 GET get SET STORE STREAMS COUNT a:* b:* * u8 KEYS BY LIMIT EX NX";

/// Commands that can be executed on a shared connection without an effect on later ones.
const EXECUTED: &str = "GET a:1|GET b:1|GET x|SET a:1 v|SET b:1 v|SET c v|SET c v GET|SET c get|MGET a:1 b:1|MGET a:1 x|DEL a:1|DEL c|\
                        EXISTS a:1 b:1|EXISTS x|COPY a:1 b:1|COPY b:1 a:1|STRLEN c|INCR d|TYPE c|OBJECT ENCODING a:1|\
                        OBJECT FREQ a:1|PUBLISH a:1 m|PUBLISH b:1 m|PUBLISH x m|SPUBLISH a:1 m|CONFIG GET port|CLIENT LIST|\
                        CLIENT GETNAME|PING|ECHO x|TIME|DBSIZE|RANDOMKEY|KEYS zz*|SCAN 0|HGETALL a:1|LPUSH b:1 v|LRANGE b:1 0 -1|\
                        SADD a:s m|SINTERSTORE a:d a:s b:s|ZUNIONSTORE c 2 a:z b:z|ZRANGESTORE c a:z 0 -1|BITFIELD c GET u8 0|\
                        BITFIELD c SET u8 0 1|XADD a:x * f v|XREAD COUNT 1 STREAMS a:x b:x 0 0|GETEX c|GETDEL d|SORT a:l|\
                        SORT a:l STORE b:l|MEMORY USAGE a:1|WAIT 0 1|GEORADIUS a:g 0 0 1 m STORE b:g|RENAME a:1 b:1|UNLINK x|\
                        TOUCH a:1|EXPIRE c 100|TTL c|PFCOUNT a:p|PFADD b:p x|SLOWLOG LEN|ACL WHOAMI|COMMAND COUNT|LOLWUT";

fn chosen<'t>(rng: &mut StdRng, from: &'t str, separator: char) -> &'t str {
    from.split(separator).map(str::trim).collect::<Vec<_>>().choose(rng).copied().unwrap_or_default()
}

/// Rules that can be applied in this order.
fn rules(rng: &mut StdRng) -> (String, Rules) {
    let mut words: Vec<String> = vec!["on".to_owned(), ">pw".to_owned()];
    let mut rules: Rules = words.join(" ").parse().unwrap();
    let mut apply = |word: String| {
        if rules.apply(&word).is_ok() {
            words.push(word);
        }
    };
    for _ in 0..rng.random_range(1..8) {
        apply(chosen(rng, RULES, ' ').to_owned());
    }
    if rng.random_ratio(1, 4) {
        let selector: Vec<&str> = (0..rng.random_range(1..4)).map(|_| chosen(rng, RULES, ' ')).collect();
        apply(format!("({})", selector.join(" ")));
    }
    (words.join(" "), rules)
}

/// Words as `ACL SETUSER` gets them: a selector may be one word.
fn set(wire: &mut Wire, rules: &str) -> anyhow::Result<()> {
    let words: Vec<&str> = ["ACL", "SETUSER", "u", "reset"].into_iter().chain(rules.split(' ')).collect();
    let reply = wire.ask(&words)?;
    ensure!(reply == b"+OK\r\n", "{rules}: {}", String::from_utf8_lossy(&reply));
    Ok(())
}

/// Our verdict; `None` where we are stricter on purpose (docs/redis-proxy.md).
fn verdict(rules: &Rules, words: &[&str]) -> Option<Result<(), Denied>> {
    with_request(words, |request| {
        let command = find(request).ok()?;
        let unclear = command.keys(request).is_err()
            || !command.keys_are_complete(request)
            || command.hides_keys(request);
        match rules.check(command, request) {
            _ if unclear => None,
            Err(Denied::Script(_)) => Some(Ok(())),
            verdict => Some(verdict),
        }
    })
}

fn dry_run(denied: Denied, words: &[&str]) -> String {
    let text = with_request(words, |request| denied.dry_run(request));
    format!("${}\r\n{}\r\n", text.len(), String::from_utf8_lossy(&text))
}

fn candidates() -> Vec<&'static Command> {
    let all = commands().iter().flat_map(|command| match command.subcommands() {
        [] => std::slice::from_ref(command),
        subcommands => subcommands,
    });
    all.filter(|command| !command.is_newer() && command.handling() != Handling::Admin).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn acl_verdicts_are_those_of_redis() -> anyhow::Result<()> {
    let redis = RedisServer::start().await?;
    let mut wire = Wire::connect(redis.address())?;
    let from = candidates();
    seeds(1, |seed| {
        let mut rng = rng(seed);
        let mut compared = 0;
        for _ in 0..soak(60, 5_000) {
            let (text, rules) = rules(&mut rng);
            set(&mut wire, &text).unwrap();
            for _ in 0..10 {
                let command = from.choose(&mut rng).unwrap();
                let count = rng.random_range(0..6);
                let words: Vec<&str> = command
                    .name()
                    .split('|')
                    .chain((0..count).map(|_| chosen(&mut rng, WORDS, ' ')))
                    .collect();
                let Some(ours) = verdict(&rules, &words) else { continue };
                let ours = ours.map_or_else(|denied| dry_run(denied, &words), |()| "+OK\r\n".to_owned());
                let asked: Vec<&str> =
                    ["ACL", "DRYRUN", "u"].into_iter().chain(words.iter().copied()).collect();
                let theirs = String::from_utf8(wire.ask(&asked).unwrap()).unwrap();
                assert_eq!(ours, theirs, "{text}: {words:?}");
                compared += 1;
            }
        }
        assert!(compared > 200, "only {compared} compared");
    });
    Ok(())
}

fn logged_in(address: SocketAddr) -> anyhow::Result<Wire> {
    let mut wire = Wire::connect(address)?;
    ensure!(wire.say("AUTH u pw")? == "+OK\r\n");
    Ok(wire)
}

#[tokio::test(flavor = "multi_thread")]
async fn acl_errors_are_those_of_redis() -> anyhow::Result<()> {
    let redis = RedisServer::start().await?;
    let mut admin = Wire::connect(redis.address())?;
    seeds(1, |seed| {
        let mut rng = rng(seed);
        for _ in 0..soak(40, 2_000) {
            let (text, rules) = rules(&mut rng);
            set(&mut admin, &text).unwrap();
            let mut wire = logged_in(redis.address()).unwrap();
            for _ in 0..10 {
                let line = chosen(&mut rng, EXECUTED, '|');
                let words: Vec<&str> = line.split(' ').collect();
                let Some(ours) = verdict(&rules, &words) else { continue };
                let theirs = wire.say(line).unwrap();
                match ours {
                    Ok(()) => assert!(!theirs.starts_with("-NOPERM"), "{text}: {line}: {theirs}"),
                    Err(denied) => assert_eq!(format!("-{}\r\n", denied.line()), theirs, "{text}: {line}"),
                }
            }
        }
    });
    Ok(())
}

/// What Redis prints is read and printed again; the categories have the same commands.
#[tokio::test(flavor = "multi_thread")]
async fn acl_texts_of_redis_are_understood() -> anyhow::Result<()> {
    let redis = RedisServer::start().await?;
    let mut wire = Wire::connect(redis.address())?;
    for text in [
        "on nopass ~* &* +@all",
        "on >pw ~a:* %R~b:* %W~c &x +@read -get +config|get",
        "off +@all -@dangerous (~x +set %W~y &z) (allkeys +@all -@write)",
    ] {
        set(&mut wire, text)?;
        let list = wire.say("ACL LIST")?;
        let line = list.lines().find_map(|line| line.strip_prefix("user u ")).unwrap_or_default();
        let (theirs, ours): (Rules, Rules) = (line.parse()?, text.parse()?);
        for command in candidates() {
            let words: Vec<&str> = command.name().split('|').chain(["a:1", "b:1", "1", "x"]).collect();
            assert_eq!(verdict(&theirs, &words), verdict(&ours, &words), "{line}: {words:?}");
        }
    }
    for category in capstan_redis_protocol::command::category_names() {
        let reply = wire.say(&format!("ACL CAT {category}"))?;
        let mut theirs: Vec<&str> = reply.lines().filter(|line| !line.starts_with(['*', '$'])).collect();
        let all = commands().iter().flat_map(|command| std::iter::once(command).chain(command.subcommands()));
        let ours = all.filter(|command| !command.is_newer() && command.is_in_category(category.as_bytes()));
        let mut ours: Vec<&str> = ours.map(|command| command.name()).collect();
        theirs.sort_unstable();
        ours.sort_unstable();
        assert_eq!(ours, theirs, "@{category}");
    }
    Ok(())
}
