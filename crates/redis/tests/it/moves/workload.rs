//! What do clients do? Random commands on keys of their own, of every type, with predictable replies.

use rand::RngExt;
use rand::rngs::StdRng;
use redis::Cmd;

/// A command, and the keys that it may write.
#[derive(Clone)]
pub(super) struct Op {
    pub cmd: Cmd,
    pub keys: Vec<String>,
    pub writes: bool,
}

/// Keys of one client. No other client uses them, so their values follow from what the client did.
pub(super) struct Author {
    name: String,
    keys: u32,
    rng: StdRng,
    /// Grows with every command: ids of stream entries, and distinct values.
    turn: u64,
}

/// Far enough not to arrive while a test runs.
const LATER_MS: u64 = 3_600_000;

impl Author {
    pub(super) fn new(name: impl Into<String>, keys: u32, rng: StdRng) -> Author {
        Author { name: name.into(), keys, rng, turn: 0 }
    }

    /// A command for every key, so that all types exist.
    pub(super) fn first_ops(&mut self) -> Vec<Op> {
        (0..self.keys).map(|number| self.write_of(number)).collect()
    }

    pub(super) fn next(&mut self) -> Op {
        self.turn += 1;
        let number = self.rng.random_range(0..self.keys);
        match self.rng.random_range(0..100) {
            0..55 => self.write_of(number),
            55..62 => self.removal(number),
            62..68 => self.expiry(number),
            68..74 => self.script(number),
            74..80 => self.pair(number),
            _ => self.read_of(number),
        }
    }

    /// The type of a key follows from its number.
    fn key(&self, number: u32) -> String {
        let kind = ["string", "counter", "hash", "list", "set", "sorted", "stream"][number as usize % 7];
        format!("{}:{kind}:{number}", self.name)
    }

    fn op(&self, words: &[&str], number: u32, writes: bool) -> Op {
        let key = self.key(number);
        let mut cmd = redis::cmd(words[0]);
        cmd.arg(&key);
        for word in &words[1..] {
            cmd.arg(*word);
        }
        Op { cmd, keys: vec![key], writes }
    }

    fn write_of(&mut self, number: u32) -> Op {
        self.turn += 1;
        let (turn, member) = (self.turn.to_string(), format!("m{}", self.rng.random_range(0..40)));
        let dice = self.rng.random_range(0..3);
        let words: &[&str] = match (number % 7, dice) {
            (0, 0) => &["SET", &turn],
            (0, 1) => &["APPEND", &turn],
            (0, _) => &["GETSET", &turn],
            (1, _) => &["INCRBY", &turn],
            (2, 0) => &["HSET", &member, &turn],
            (2, 1) => &["HINCRBY", &member, "3"],
            (2, _) => &["HDEL", &member],
            (3, 0) => &["RPUSH", &turn, &member],
            (3, 1) => &["LPUSH", &turn],
            (3, _) => &["LPOP"],
            (4, 0 | 1) => &["SADD", &member, &turn],
            (4, _) => &["SREM", &member],
            (5, 0 | 1) => &["ZADD", &turn, &member],
            (5, _) => &["ZPOPMIN"],
            (_, 0 | 1) => &["XADD", &turn, "field", &member],
            (_, _) => &["XTRIM", "MAXLEN", "20"],
        };
        self.op(words, number, true)
    }

    fn read_of(&mut self, number: u32) -> Op {
        let member = format!("m{}", self.rng.random_range(0..40));
        let words: &[&str] = match number % 7 {
            0 | 1 => &["GET"],
            2 => &["HGET", &member],
            3 => &["LRANGE", "0", "-1"],
            4 => &["SISMEMBER", &member],
            5 => &["ZRANGE", "0", "-1", "WITHSCORES"],
            _ => &["XRANGE", "-", "+"],
        };
        self.op(words, number, false)
    }

    fn removal(&mut self, number: u32) -> Op {
        let word = ["DEL", "UNLINK"][self.rng.random_range(0..2)];
        self.op(&[word], number, true)
    }

    fn expiry(&mut self, number: u32) -> Op {
        match self.rng.random_range(0..3) {
            0 => self.op(&["PERSIST"], number, true),
            1 => self.op(&["PEXPIREAT", "1"], number, true),
            _ => {
                let at = capstan_meta::clock::since_epoch().as_millis() as u64 / LATER_MS * LATER_MS;
                let at = (at + 5 * LATER_MS + self.turn).to_string();
                self.op(&["PEXPIREAT", &at], number, true)
            }
        }
    }

    /// A script that reads and writes its key.
    fn script(&mut self, number: u32) -> Op {
        let number = number - number % 7;
        let key = self.key(number);
        let text = "local old = redis.call('GET', KEYS[1]) \
                    redis.call('SET', KEYS[1], ARGV[1] .. #(old or '')) return old";
        let mut cmd = redis::cmd("EVAL");
        cmd.arg(text).arg(1).arg(&key).arg(self.turn);
        Op { cmd, keys: vec![key], writes: true }
    }

    /// Two keys of one slot at once.
    fn pair(&mut self, number: u32) -> Op {
        let keys = [1, 2].map(|of| format!("{{{}:pair:{number}}}:{of}", self.name));
        let mut cmd = redis::cmd("MSET");
        cmd.arg(&keys[0]).arg(self.turn).arg(&keys[1]).arg(self.turn);
        if self.turn.is_multiple_of(3) {
            cmd = redis::cmd("RENAME");
            cmd.arg(&keys[0]).arg(&keys[1]);
        } else if self.turn.is_multiple_of(5) {
            cmd = redis::cmd("MGET");
            cmd.arg(&keys);
            return Op { cmd, keys: keys.to_vec(), writes: false };
        }
        Op { cmd, keys: keys.to_vec(), writes: true }
    }
}
