// node-redis, with RESP2 or RESP3.
//
//   node node-redis.cjs host:port,host:port,... 2|3
const { createClient, createCluster } = require("redis");
const { equal, refused, run, seeds, until } = require("./check.cjs");

const RESP = Number(process.argv[3]);
const nodes = seeds();
const urls = nodes.map(({ host, port }) => `redis://${host}:${port}`);
const db = createCluster({ rootNodes: urls.map((url) => ({ url })), RESP });
db.on("error", (error) => console.error(error));
const plains = urls.map((url) => createClient({ url, RESP }).on("error", (error) => console.error(error)));

async function connect() {
  await db.connect();
  await Promise.all(plains.map((plain) => plain.connect()));
}

async function strings() {
  await Promise.all(plains.map((plain) => plain.flushAll()));
  for (let n = 0; n < 100; n++) equal(await db.set(`s${n}`, `v${n}`), "OK");
  for (let n = 0; n < 100; n++) equal(await db.get(`s${n}`), `v${n}`);
  equal(await db.incrBy("counter", 5), 5);
  equal(await db.get("nothing"), null);
  const large = "x".repeat(1_000_000);
  equal(await db.set("large", large), "OK");
  equal((await db.get("large")) === large, true);
}

async function hashes_lists_sets() {
  equal(await db.hSet("h", { a: 1, b: 2 }), 2);
  equal(await db.hGetAll("h"), { a: "1", b: "2" });
  equal(await db.rPush("l", ["1", "2", "3"]), 3);
  equal(await db.lRange("l", 0, -1), ["1", "2", "3"]);
  equal(await db.sAdd("{s}1", ["a", "b"]), 2);
  equal(await db.sAdd("{s}2", "b"), 1);
  equal([...(await db.sInter(["{s}1", "{s}2"]))], ["b"]);
  equal(await db.zAdd("z", [{ score: 1, value: "a" }, { score: 2.5, value: "b" }]), 2);
  equal(await db.zRangeWithScores("z", 0, -1), [{ value: "a", score: 1 }, { value: "b", score: 2.5 }]);
}

async function streams() {
  const id = await db.xAdd("x", "*", { f: "1" });
  equal(await db.xGroupCreate("x", "g", "0"), "OK");
  const read = await db.xReadGroup("g", "me", { key: "x", id: ">" }, { COUNT: 5 });
  const messages = Array.isArray(read) ? read[0].messages : read.x;
  equal(messages.map((message) => [message.id, message.message]), [[id, { f: "1" }]]);
  equal(await db.xAck("x", "g", id), 1);
}

async function scripts() {
  equal(await db.eval("return {KEYS[1], ARGV[1]}", { keys: ["k"], arguments: ["v"] }), ["k", "v"]);
}

async function transactions() {
  equal(await db.multi().set("{t}a", 1).incr("{t}a").get("{t}a").exec(), ["OK", 2, "2"]);
}

async function pipelines() {
  const answers = await Promise.all([...Array(300).keys()].flatMap((n) => [db.set(`p${n}`, n), db.get(`p${n}`)]));
  equal(answers, [...Array(300).keys()].flatMap((n) => ["OK", String(n)]));
}

async function several_slots() {
  await refused(() => plains[0].sendCommand(["MGET", "a", "b"]), "CROSSSLOT");
  equal(await db.mSet({ "{m}1": "1", "{m}2": "2" }), "OK");
  equal(await db.mGet(["{m}1", "{m}2", "{m}3"]), ["1", "2", null]);
}

async function moved() {
  const answers = await Promise.all(plains.map((plain) => plain.set("moved-key", 1).catch((error) => error.message)));
  equal(answers.filter((answer) => answer === "OK").length, 1);
  equal(answers.filter((answer) => /^MOVED \d+ .+:\d+$/.test(answer)).length, plains.length - 1);
}

async function pubsub() {
  const got = [];
  await db.subscribe("news", (message, channel) => got.push(`${channel} ${message}`));
  await db.pSubscribe("n*s", (message, channel) => got.push(`pattern ${channel} ${message}`));
  for (const plain of plains) await plain.publish("news", "hello");
  await until("messages", () => got.length >= 2 * plains.length);
  equal(got.filter((message) => message === "news hello").length, plains.length);
  await db.unsubscribe("news");
  await db.pUnsubscribe("n*s");
  const sharded = [];
  await db.sSubscribe("shard", (message) => sharded.push(message));
  await db.sPublish("shard", "hello");
  await until("a sharded message", () => sharded.length === 1);
  await db.sUnsubscribe("shard");
}

async function blocking() {
  // A connection of its own, as node-redis asks for.
  const waiter = createCluster({ rootNodes: urls.map((url) => ({ url })), RESP });
  await waiter.connect();
  const waiting = waiter.blPop("{b}l", 20);
  for (let n = 0; n < 100; n++) await db.set("{b}other", n);
  await db.rPush("{b}l", "woken");
  equal(await waiting, { key: "{b}l", element: "woken" });
  equal(await waiter.blPop("{b}l", 0.05), null);
  await waiter.close();
}

async function whole_database() {
  const counts = await Promise.all(plains.map((plain) => plain.dbSize()));
  const found = new Set();
  for (const plain of plains) {
    for await (const keys of plain.scanIterator({ COUNT: 50 })) [keys].flat().forEach((key) => found.add(key));
  }
  equal(found.size, counts.reduce((sum, count) => sum + count, 0));
}

async function farewell() {
  await db.close();
  await Promise.all(plains.map((plain) => plain.close()));
}

run([
  connect,
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
