"""The same kinds of work with the asyncio clients, many at once.

    workload_async.py redis|valkey 2|3 host:port,host:port,...
"""

import asyncio
import importlib
import sys

from workload import DEADLINE, equal, seeds


async def main(library, protocol, nodes):
    cluster = importlib.import_module(library + ".asyncio.cluster")
    plain = importlib.import_module(library + ".asyncio")
    client = getattr(cluster, {"redis": "RedisCluster", "valkey": "ValkeyCluster"}[library])
    one = getattr(plain, {"redis": "Redis", "valkey": "Valkey"}[library])
    start = [cluster.ClusterNode(host, port) for host, port in nodes]
    db = client(startup_nodes=start, protocol=protocol, decode_responses=True)
    await db.initialize()
    for check in (data, pipelines, blocking):
        print(check.__name__, flush=True)
        await check(db)
    print("pubsub", flush=True)
    await pubsub([one(host=host, port=port, protocol=protocol, decode_responses=True) for host, port in nodes])
    await db.aclose()


async def data(db):
    async def worker(number):
        for turn in range(20):
            key = f"async{number}:{turn}"
            await db.set(key, turn)
            equal(await db.get(key), str(turn))
            await db.hset(key + "h", mapping={"a": turn})
            equal(await db.hgetall(key + "h"), {"a": str(turn)})
            await db.rpush(key + "l", 1, 2)
            equal(await db.lrange(key + "l", 0, -1), ["1", "2"])
            await db.zadd(key + "z", {"m": 1})
            equal(await db.zscore(key + "z", "m"), 1.0)
            equal(await db.eval("return KEYS[1]", 1, key), key)

    await asyncio.gather(*(worker(number) for number in range(20)))


async def pipelines(db):
    pipe = db.pipeline()
    for number in range(300):
        pipe.set(f"ap{number}", number)
        pipe.get(f"ap{number}")
    got = await pipe.execute()
    equal(got, [answer for number in range(300) for answer in (True, str(number))])


async def blocking(db):
    waiting = asyncio.ensure_future(db.blpop("{ab}l", timeout=DEADLINE))
    for number in range(100):
        await db.set("{ab}other", number)
    await db.rpush("{ab}l", "woken")
    equal(list(await waiting), ["{ab}l", "woken"])


async def pubsub(plains):
    subscriber = plains[0].pubsub()
    await subscriber.subscribe("async-news")
    got, subscribed = [], asyncio.Event()

    async def read():
        while True:
            message = await subscriber.get_message(timeout=DEADLINE)
            if message:
                got.append((message["type"], message["data"]))
                subscribed.set()
            if len(got) == 1 + len(plains):
                return

    reading = asyncio.ensure_future(read())
    await asyncio.wait_for(subscribed.wait(), DEADLINE)
    for number, plain in enumerate(plains):
        await plain.publish("async-news", f"hello {number}")
    await asyncio.wait_for(reading, DEADLINE)
    equal(set(got[1:]), {("message", f"hello {number}") for number in range(len(plains))})
    await subscriber.aclose()
    for plain in plains:
        await plain.aclose()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], int(sys.argv[2]), seeds(sys.argv[3])))
