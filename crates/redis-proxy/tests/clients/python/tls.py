"""A cluster client of redis-py over TLS: redirections must lead it to where TLS is spoken."""

import sys

from redis.cluster import RedisCluster

port, authority = int(sys.argv[1]), sys.argv[2]
for protocol in (2, 3):
    with RedisCluster(host="127.0.0.1", port=port, ssl=True, ssl_ca_certs=authority, protocol=protocol) as db:
        for number in range(50):
            db.set(f"tls{number}", number)
            assert db.get(f"tls{number}") == str(number).encode()
        with db.pipeline() as pipe:
            for number in range(50):
                pipe.incr(f"tls{number}")
            assert pipe.execute() == list(range(1, 51))
        large = b"x" * 2_000_000
        db.set("tls-large", large)
        assert db.get("tls-large") == large
        db.delete(*[f"{{tls}}{number}" for number in range(5)])
