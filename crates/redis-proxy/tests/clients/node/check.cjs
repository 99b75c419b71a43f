// What both workloads of this directory share.
const { isDeepStrictEqual } = require("node:util");

const DEADLINE_MS = 20_000;

function equal(got, expected) {
  if (!isDeepStrictEqual(plain(got), plain(expected))) {
    throw new Error(`got ${JSON.stringify(plain(got))}, expected ${JSON.stringify(plain(expected))}`);
  }
}

// Libraries give objects without a prototype, and sets or maps for RESP3.
function plain(value) {
  if (value instanceof Map) return plain(Object.fromEntries(value));
  if (value instanceof Set) return plain([...value].sort());
  if (Array.isArray(value)) return value.map(plain);
  if (value && typeof value === "object") {
    return Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, plain(inner)]));
  }
  return value;
}

async function refused(call, text) {
  let got;
  try {
    got = await call();
  } catch (error) {
    if (!String(error.message).includes(text)) throw new Error(`refused with ${error.message} instead of ${text}`);
    return;
  }
  throw new Error(`got ${JSON.stringify(got)} instead of ${text}`);
}

// Waits for a condition, never for a time.
async function until(what, look) {
  const end = Date.now() + DEADLINE_MS;
  while (Date.now() < end) {
    if (await look()) return;
    await new Promise((resolve) => setImmediate(resolve));
  }
  throw new Error(`${what}: not within ${DEADLINE_MS} ms`);
}

function seeds() {
  return process.argv[2].split(",").map((seed) => {
    const at = seed.lastIndexOf(":");
    return { host: seed.slice(0, at), port: Number(seed.slice(at + 1)) };
  });
}

// Runs everything; the first failure ends the process with its reason.
function run(checks) {
  const all = async () => {
    for (const check of checks) {
      console.log(check.name);
      await check();
    }
  };
  all().catch((error) => {
    console.error(error);
    process.exit(1);
  });
}

module.exports = { equal, refused, run, seeds, until };
