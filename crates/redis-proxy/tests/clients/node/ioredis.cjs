// ioredis, as it comes: with its ready check, which wants CLUSTER INFO and CLUSTER SLOTS.
//
//   node ioredis.cjs host:port,host:port,...
const { Cluster, Redis } = require("ioredis");
const { equal, refused, run, seeds, until } = require("./check.cjs");

const nodes = seeds();
const db = new Cluster(nodes);
const plains = nodes.map(({ host, port }) => new Redis({ host, port }));

async function strings() {
  await Promise.all(plains.map((plain) => plain.flushall()));
  for (let n = 0; n < 100; n++) equal(await db.set(`s${n}`, `v${n}`), "OK");
  for (let n = 0; n < 100; n++) equal(await db.get(`s${n}`), `v${n}`);
  equal(await db.incrby("counter", 5), 5);
  equal(await db.set("s0", "x", "EX", 100, "GET"), "v0");
  equal(await db.get("nothing"), null);
  const large = Buffer.alloc(1_000_000, 255);
  equal(await db.set("large", large), "OK");
  equal((await db.getBuffer("large")).equals(large), true);
}

async function hashes_lists_sets() {
  equal(await db.hset("h", { a: 1, b: 2 }), 2);
  equal(await db.hgetall("h"), { a: "1", b: "2" });
  equal(await db.rpush("l", 1, 2, 3), 3);
  equal(await db.lrange("l", 0, -1), ["1", "2", "3"]);
  equal(await db.sadd("{s}1", "a", "b"), 2);
  equal(await db.sadd("{s}2", "b"), 1);
  equal(await db.sinter("{s}1", "{s}2"), ["b"]);
  equal(await db.zadd("z", 1, "a", 2.5, "b"), 2);
  equal(await db.zrange("z", 0, -1, "WITHSCORES"), ["a", "1", "b", "2.5"]);
}

async function streams() {
  const id = await db.xadd("x", "*", "f", "1");
  equal(await db.xgroup("CREATE", "x", "g", "0"), "OK");
  equal(await db.xreadgroup("GROUP", "g", "me", "COUNT", 5, "STREAMS", "x", ">"), [["x", [[id, ["f", "1"]]]]]);
  equal(await db.xack("x", "g", id), 1);
}

async function scripts() {
  equal(await db.eval("return {KEYS[1], ARGV[1]}", 1, "k", "v"), ["k", "v"]);
  db.defineCommand("setGet", { numberOfKeys: 1, lua: "redis.call('SET', KEYS[1], ARGV[1]) return redis.call('GET', KEYS[1])" });
  equal(await db.setGet("script", "v"), "v");
  equal(await db.setGet("script2", "w"), "w");
}

async function transactions() {
  equal(await db.multi().set("{t}a", 1).incr("{t}a").get("{t}a").exec(), [[null, "OK"], [null, 2], [null, "2"]]);
}

async function pipelines() {
  const pipe = db.pipeline();
  for (let n = 0; n < 300; n++) pipe.set(`{p}${n}`, n).get(`{p}${n}`);
  const got = await pipe.exec();
  equal(got.map(([error, answer]) => error ?? answer), [...Array(300).keys()].flatMap((n) => ["OK", String(n)]));
}

async function several_slots() {
  await refused(() => plains[0].mget("a", "b"), "CROSSSLOT");
  equal(await db.mset("{m}1", 1, "{m}2", 2), "OK");
  equal(await db.mget("{m}1", "{m}2", "{m}3"), ["1", "2", null]);
}

async function moved() {
  const answers = await Promise.all(plains.map((plain) => plain.set("moved-key", 1).catch((error) => error.message)));
  equal(answers.filter((answer) => answer === "OK").length, 1);
  equal(answers.filter((answer) => /^MOVED \d+ .+:\d+$/.test(answer)).length, plains.length - 1);
}

async function pubsub() {
  const subscriber = new Cluster(nodes);
  const got = [];
  subscriber.on("message", (channel, message) => got.push([channel, message]));
  subscriber.on("pmessage", (pattern, channel, message) => got.push([pattern, channel, message]));
  equal(await subscriber.subscribe("news"), 1);
  equal(await subscriber.psubscribe("n*s"), 2);
  for (const plain of plains) await plain.publish("news", "hello");
  await until("messages", () => got.length >= 2 * plains.length);
  equal(got.filter((message) => message.length === 2).length, plains.length);
  await subscriber.quit();
}

async function blocking() {
  const waiter = new Cluster(nodes);
  const waiting = waiter.blpop("{b}l", 20);
  for (let n = 0; n < 100; n++) await db.set("{b}other", n);
  await db.rpush("{b}l", "woken");
  equal(await waiting, ["{b}l", "woken"]);
  equal(await waiter.blpop("{b}l", 0.05), null);
  await waiter.quit();
}

async function whole_database() {
  const counts = await Promise.all(db.nodes("master").map((node) => node.dbsize()));
  const found = new Set();
  for (const node of db.nodes("master")) {
    let cursor = "0";
    do {
      const [next, keys] = await node.scan(cursor, "COUNT", 50);
      keys.forEach((key) => found.add(key));
      cursor = next;
    } while (cursor !== "0");
  }
  equal(found.size, counts.reduce((sum, count) => sum + count, 0));
}

async function farewell() {
  await db.quit();
  await Promise.all(plains.map((plain) => plain.quit()));
}

run([
  strings,
  hashes_lists_sets,
  streams,
  scripts,
  transactions,
  pipelines,
  several_slots,
  moved,
  pubsub,
  blocking,
  whole_database,
  farewell,
]);
