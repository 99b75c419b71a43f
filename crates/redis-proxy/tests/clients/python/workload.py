"""One workload for redis-py and valkey-py, against any Redis cluster.

    workload.py redis|valkey 2|3 host:port,host:port,...

Exits with 0 if every answer is what Redis Cluster gives.
"""

import importlib
import sys
import threading
import time

DEADLINE = 20


def until(what, look):
    """Waits for a condition, never for a time."""
    end = time.monotonic() + DEADLINE
    while time.monotonic() < end:
        found = look()
        if found:
            return found
    raise AssertionError(f"{what}: not within {DEADLINE} seconds")


def equal(got, expected):
    if got != expected:
        raise AssertionError(f"got {got!r}, expected {expected!r}")


def refused(error, call, text):
    try:
        got = call()
    except error as refusal:
        if text not in str(refusal):
            raise AssertionError(f"refused with {refusal!r} instead of {text}") from refusal
        return
    raise AssertionError(f"got {got!r} instead of {text}")


class Workload:
    def __init__(self, library, protocol, seeds):
        self.library = importlib.import_module(library)
        cluster = importlib.import_module(library + ".cluster")
        self.error = self.library.exceptions.ResponseError
        self.protocol = protocol
        self.seeds = seeds
        client = getattr(cluster, {"redis": "RedisCluster", "valkey": "ValkeyCluster"}[library])
        nodes = [cluster.ClusterNode(host, port) for host, port in seeds]
        self.db = client(startup_nodes=nodes, protocol=protocol, decode_responses=True)
        self.plain_class = getattr(self.library, {"redis": "Redis", "valkey": "Valkey"}[library])

    def plain(self, index):
        host, port = self.seeds[index]
        return self.plain_class(host=host, port=port, protocol=self.protocol, decode_responses=True)

    def run(self):
        self.db.flushall(target_nodes="primaries")
        for name in sorted(name for name in dir(self) if name.startswith("check_")):
            print(name, flush=True)
            getattr(self, name)()

    def check_strings(self):
        db = self.db
        for number in range(200):
            equal(db.set(f"s{number}", f"v{number}"), True)
        for number in range(200):
            equal(db.get(f"s{number}"), f"v{number}")
        equal(db.get("nothing"), None)
        equal(db.append("s0", "x"), 3)
        equal(db.incr("counter", 5), 5)
        equal(db.incrbyfloat("float", 1.5), 1.5)
        equal(db.setnx("s0", "y"), False)
        equal(db.set("s0", "z", get=True), "v0x")
        equal(db.getrange("s1", 0, 0), "v")
        equal(db.set("ttl", "x", px=50_000), True)
        assert 0 < db.pttl("ttl") <= 50_000
        equal(db.getdel("ttl"), "x")
        equal(db.exists("ttl"), 0)
        equal(db.setbit("bits", 7, 1), 0)
        equal(db.bitcount("bits"), 1)
        equal(db.pfadd("hll", "a", "b"), 1)
        equal(db.pfcount("hll"), 2)
        value = bytes(range(256)).decode("latin1") * 4000
        equal(db.set("large", value), True)
        equal(db.get("large"), value)

    def check_hashes(self):
        db = self.db
        equal(db.hset("h", mapping={"a": 1, "b": 2}), 2)
        equal(db.hgetall("h"), {"a": "1", "b": "2"})
        equal(db.hmget("h", "a", "x"), ["1", None])
        equal(db.hincrby("h", "a", 4), 5)
        equal(db.hdel("h", "a"), 1)
        equal(db.hlen("h"), 1)
        equal(db.hscan("h"), (0, {"b": "2"}))

    def check_lists(self):
        db = self.db
        equal(db.rpush("l", 1, 2, 3), 3)
        equal(db.lrange("l", 0, -1), ["1", "2", "3"])
        equal(db.lpop("l"), "1")
        equal(db.lmove("l", "l", "LEFT", "RIGHT"), "2")
        equal(db.lpos("l", "2"), 1)
        equal(db.rpoplpush("{t}a", "{t}b"), None)

    def check_sets(self):
        db = self.db
        equal(db.sadd("{set}1", "a", "b"), 2)
        equal(db.sadd("{set}2", "b", "c"), 2)
        equal(set(db.sinter("{set}1", "{set}2")), {"b"})
        equal(db.sunionstore("{set}3", "{set}1", "{set}2"), 3)
        equal(db.smismember("{set}1", ["a", "x"]), [1, 0])
        equal(db.sintercard(2, ["{set}1", "{set}2"]), 1)

    def check_sorted_sets(self):
        db = self.db
        equal(db.zadd("{z}", {"a": 1, "b": 2.5}), 2)
        equal(flat(db.zrange("{z}", 0, -1, withscores=True)), ["a", 1.0, "b", 2.5])
        equal(db.zscore("{z}", "b"), 2.5)
        equal(db.zincrby("{z}", 1, "a"), 2.0)
        equal(db.zunionstore("{z}2", {"{z}": 2}), 2)
        equal(db.zrangebyscore("{z}2", 5, "+inf"), ["b"])
        equal(flat(db.zpopmin("{z}")), ["a", 2.0])
        equal(db.geoadd("geo", (13.361389, 38.115556, "Palermo")), 1)
        equal(db.geosearch("geo", longitude=13, latitude=38, radius=100, unit="km"), ["Palermo"])

    def check_streams(self):
        db = self.db
        first = db.xadd("{x}", {"f": "1"})
        equal(db.xgroup_create("{x}", "g", id="0"), True)
        read = db.xreadgroup("g", "me", {"{x}": ">"}, count=10)
        entries = read["{x}"][0] if isinstance(read, dict) else read[0][1]
        equal([entry for entry in entries], [(first, {"f": "1"})])
        equal(db.xack("{x}", "g", first), 1)
        equal(db.xlen("{x}"), 1)
        equal(db.xinfo_groups("{x}")[0]["name"], "g")
        equal(db.xread({"{x}": "$"}, block=1) in ({}, [], None), True)

    def check_scripts(self):
        db = self.db
        script = db.register_script("return {KEYS[1], ARGV[1], redis.call('SET', KEYS[1], ARGV[1])}")
        equal(script(keys=["script"], args=["v"]), ["script", "v", "OK"])
        equal(script(keys=["script2"], args=["w"]), ["script2", "w", "OK"])
        equal(db.get("script2"), "w")
        equal(db.eval("return #KEYS", 2, "{e}1", "{e}2"), 2)
        sha = db.script_load("return 7")
        equal(db.evalsha(sha, 1, "any"), 7)
        equal(db.script_exists(sha, "f" * 40), [True, False])
        refused(self.error, lambda: db.evalsha("f" * 40, 1, "x"), "No matching script")
        library = "#!lua name=lib\nredis.register_function('f', function(keys, args) return keys[1] end)"
        # One answer of each primary.
        equal(set(db.function_load(library, replace=True).values()), {"lib"})
        equal(db.fcall("f", 1, "{fn}"), "{fn}")

    def check_transactions(self):
        # valkey-py has no transactions on clusters; there, one node is asked, which has the slot.
        db = self.db if self.library.__name__ == "redis" else self.owner("{tx}a")
        with db.pipeline(transaction=True) as pipe:
            pipe.set("{tx}a", 1)
            pipe.incr("{tx}a")
            pipe.get("{tx}a")
            equal(true(pipe.execute()), [True, 2, "2"])
        with db.pipeline(transaction=True) as pipe:
            pipe.watch("{tx}a")
            value = int(pipe.get("{tx}a"))
            pipe.multi()
            pipe.set("{tx}a", value + 1)
            equal(true(pipe.execute()), [True])
        with db.pipeline(transaction=True) as pipe:
            pipe.watch("{tx}a")
            self.db.set("{tx}a", "changed")
            pipe.multi()
            pipe.set("{tx}a", "lost")
            try:
                pipe.execute()
                raise AssertionError("a watched key had changed")
            except self.library.exceptions.WatchError:
                pass
        equal(self.db.get("{tx}a"), "changed")
        owner = self.owner("{tx}a")
        with owner.pipeline(transaction=True) as pipe:
            pipe.execute_command("SET", "{tx}a", 1)
            pipe.execute_command("NOSUCH")
            refused(self.error, pipe.execute, "unknown command")
        equal(owner.get("{tx}a"), "changed")

    def owner(self, key):
        """A plain connection to the one that has the key."""
        for index in range(len(self.seeds)):
            plain = self.plain(index)
            try:
                plain.exists(key)
                return plain
            except self.error:
                continue
        raise AssertionError(f"nobody has {key}")

    def check_pipelines(self):
        pipe = self.db.pipeline(transaction=False)
        for number in range(500):
            pipe.set(f"p{number}", number)
            pipe.get(f"p{number}")
        got = pipe.execute()
        equal(got, [answer for number in range(500) for answer in (True, str(number))])

    def check_multi_key(self):
        db = self.db
        equal(db.mset_nonatomic({f"m{n}": n for n in range(50)}) is not None, True)
        equal(db.mget_nonatomic([f"m{n}" for n in range(50)]), [str(n) for n in range(50)])
        equal(db.mset({"{m}1": 1, "{m}2": 2}), True)
        equal(db.mget("{m}1", "{m}2"), ["1", "2"])
        equal(db.delete(*[f"m{n}" for n in range(50)]), 50)
        equal(db.exists("m1", "{m}1"), 1)
        plain = self.plain(0)
        refused(self.error, lambda: plain.execute_command("MGET", "a", "b"), "hash to the same slot")

    def check_whole_database(self):
        db = self.db
        before = sum(self.plain(index).dbsize() for index in range(len(self.seeds)))
        equal(len(set(db.scan_iter(count=50))), before)
        equal(sum(len(self.plain(index).keys()) for index in range(len(self.seeds))), before)
        assert db.randomkey() is not None
        equal(db.ping(target_nodes="all"), True)

    def check_moved(self):
        plains = [self.plain(index) for index in range(len(self.seeds))]
        slot = plains[0].execute_command("CLUSTER KEYSLOT", "moved-key")
        answers = []
        for plain in plains:
            try:
                answers.append(plain.set("moved-key", "1"))
            except self.error as error:
                answers.append(str(error))
        moved = [answer for answer in answers if answer is not True]
        equal(len(moved), len(self.seeds) - 1)
        for text in moved:
            assert str(slot) in text, text

    def check_pubsub(self):
        pubsub = self.db.pubsub()
        pubsub.subscribe("news")
        pubsub.psubscribe("n*s")
        until("subscribed", lambda: confirmed(pubsub, 2))
        # Through every proxy, since a message reaches the subscribers of all of them.
        for index in range(len(self.seeds)):
            self.plain(index).publish("news", f"hello {index}")
        got = set()
        until("messages", lambda: (got.update(messages(pubsub)), len(got) >= 2 * len(self.seeds))[1])
        expected = {(kind, f"hello {n}") for kind in ("message", "pmessage") for n in range(len(self.seeds))}
        equal(got, expected)
        pubsub.unsubscribe()
        pubsub.punsubscribe()
        pubsub.close()

    def check_sharded_pubsub(self):
        db = self.db
        pubsub = db.pubsub()
        pubsub.ssubscribe("shard-channel")
        got = []

        def look():
            message = pubsub.get_sharded_message(timeout=0.1)
            if message:
                got.append((message["type"], message["data"]))
            return got

        until("subscribed", lambda: ("ssubscribe", 1) in look())
        db.spublish("shard-channel", "hello")
        until("a message", lambda: ("smessage", "hello") in look())
        pubsub.close()

    def check_blocking(self):
        db = self.db
        answers = []
        thread = threading.Thread(target=lambda: answers.append(db.blpop(["{b}l", "{b}m"], timeout=DEADLINE)))
        thread.start()
        # While one client waits, everybody else is served.
        for number in range(100):
            db.set("{b}other", number)
        db.rpush("{b}m", "woken")
        thread.join(DEADLINE)
        equal([list(answer) for answer in answers], [["{b}m", "woken"]])
        equal(db.blpop("{b}l", timeout=0.05), None)
        equal(db.bzpopmin("{b}z", timeout=0.05), None)
        equal(db.blmove("{b}l", "{b}k", timeout=0.05), None)
        thread = threading.Thread(target=lambda: answers.append(db.xread({"{b}x": "$"}, block=DEADLINE * 1000)))
        thread.start()
        # The reader has to wait before something is added: `$` is what comes after it.
        until("an entry", lambda: (db.xadd("{b}x", {"f": "1"}), len(answers) == 2)[1])
        thread.join(DEADLINE)

    def check_server(self):
        info = self.db.info(target_nodes=self.db.get_random_node())
        equal(info["redis_mode"] if "redis_mode" in info else info["server_mode"], "cluster")
        equal(info["cluster_enabled"], 1)
        assert self.db.cluster_info(target_nodes=self.db.get_random_node())["cluster_state"] == "ok"
        assert len(self.db.cluster_nodes()) >= len(self.seeds)
        assert self.db.command_count(target_nodes=self.db.get_random_node()) >= 240
        plain = self.plain(0)
        equal(plain.client_setname("me"), True)
        equal(plain.client_getname(), "me")
        assert plain.client_id() > 0
        assert plain.time()[0] > 0
        equal(plain.echo("x"), "x")
        refused(self.error, lambda: plain.execute_command("NOSUCH", "a"), "unknown command")
        refused(self.error, lambda: plain.execute_command("GET"), "wrong number of arguments")
        refused(self.error, lambda: plain.execute_command("SELECT", 1), "SELECT is not allowed in cluster mode")
        plain.close()


def flat(pairs):
    """Names and scores in one row; libraries and protocols pack them differently."""
    return [part for pair in pairs for part in (pair if isinstance(pair, (list, tuple)) else [pair])]


def true(answers):
    """Some libraries leave the OK of a transaction as it is."""
    return [True if answer == "OK" else answer for answer in answers]


def confirmed(pubsub, count):
    message = pubsub.get_message(timeout=0.1)
    if message and message["type"] in ("subscribe", "psubscribe"):
        pubsub.confirmations = getattr(pubsub, "confirmations", 0) + 1
    return getattr(pubsub, "confirmations", 0) == count


def messages(pubsub):
    message = pubsub.get_message(timeout=0.1)
    if message and message["type"] in ("message", "pmessage"):
        return [(message["type"], message["data"])]
    return []


def seeds(text):
    return [(host, int(port)) for host, port in (seed.rsplit(":", 1) for seed in text.split(","))]


if __name__ == "__main__":
    Workload(sys.argv[1], int(sys.argv[2]), seeds(sys.argv[3])).run()
