#!/usr/bin/env bash
# Installs the Redis clients that the tests run, at the versions pinned beside the tests, below the target directory.
# Needs no root and changes nothing else. What is there at the right versions is left alone.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
pinned=$root/crates/redis/tests/clients
installed=${CARGO_TARGET_DIR:-$root/target}/clients

say() { echo "clients: $*"; }
die() { echo "clients: $*" >&2; exit 1; }

# The copy of a lock file is the last thing that an installation writes.
is_current() { cmp -s "$pinned/$1" "$installed/$1"; }

if ! is_current python/requirements.txt; then
    say "redis-py and valkey-py from PyPI"
    rm -rf "$installed/python"
    mkdir -p "$installed/python"
    python3 -m venv "$installed/python/venv" || die "cannot make a Python environment (Debian: python3-venv)"
    "$installed/python/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        --requirement "$pinned/python/requirements.txt" ||
        die "cannot install the Python clients: is PyPI reachable from here? The tests of Redis clients need them"
    cp "$pinned/python/requirements.txt" "$installed/python/requirements.txt"
fi

if ! is_current node/package-lock.json; then
    say "ioredis and node-redis from npm"
    rm -rf "$installed/node"
    mkdir -p "$installed/node"
    cp "$pinned/node/package.json" "$installed/node/package.json"
    cp "$pinned/node/package-lock.json" "$installed/node/npm-shrinkwrap.json"
    (cd "$installed/node" && npm ci --silent --no-audit --no-fund --ignore-scripts) ||
        die "cannot install the Node.js clients: is the npm registry reachable from here? The tests of Redis clients need them"
    cp "$pinned/node/package-lock.json" "$installed/node/package-lock.json"
fi
say "the Redis clients of the tests are here"
