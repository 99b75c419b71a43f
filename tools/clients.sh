#!/usr/bin/env bash
# Installs the clients that the tests run, at the versions pinned beside the tests, below the target directory: Redis
# clients from PyPI and npm, Confluent's serialisers and a server of S3 from PyPI, and the program that drives
# danube-client, compiled here.
# Needs no root and changes nothing else. What is there at the right versions is left alone.
set -euo pipefail

root=$(cd "$(dirname "$0")/.." && pwd)
pinned=$root/crates/redis-proxy/tests/clients
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

serialisers=$root/crates/schemas/tests/clients/python/requirements.txt
if ! cmp -s "$serialisers" "$installed/serialisers/requirements.txt"; then
    say "Confluent's serialisers from PyPI"
    rm -rf "$installed/serialisers"
    mkdir -p "$installed/serialisers"
    python3 -m venv "$installed/serialisers/venv" || die "cannot make a Python environment (Debian: python3-venv)"
    "$installed/serialisers/venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes \
        --only-binary :all: --requirement "$serialisers" ||
        die "cannot install the serialisers: is PyPI reachable from here? The tests of the schema registry need them"
    cp "$serialisers" "$installed/serialisers/requirements.txt"
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

s3=$root/crates/topics/tests/clients/s3/requirements.txt
if ! cmp -s "$s3" "$installed/s3/requirements.txt"; then
    say "a server of S3 (moto) from PyPI"
    rm -rf "$installed/s3"
    mkdir -p "$installed/s3"
    python3 -m venv "$installed/s3/venv" || die "cannot make a Python environment (Debian: python3-venv)"
    "$installed/s3/venv/bin/python" -m pip install --quiet --disable-pip-version-check --no-deps --require-hashes \
        --requirement "$s3" ||
        die "cannot install moto: is PyPI reachable from here? The tests of tiers need it"
    cp "$s3" "$installed/s3/requirements.txt"
fi

# In the target directory of the workspace, with the workspace's versions: what both need is compiled once. Cargo itself
# decides what is current.
target=${CARGO_TARGET_DIR:-$root/target}
cargo build --quiet --locked --manifest-path "$root/tools/danube-check/Cargo.toml" --target-dir "$target" ||
    die "cannot build tools/danube-check: is the crate registry reachable from here? The tests of topics need it"
mkdir -p "$installed/danube"
cp "$target/debug/danube-check" "$installed/danube/danube-check.new"
mv "$installed/danube/danube-check.new" "$installed/danube/danube-check"
say "the clients of the tests are here"
