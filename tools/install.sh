#!/usr/bin/env bash
# Installs what is missing, from the distribution's packages, and nothing else.
#
#   tools/install.sh build    what a build needs
#   tools/install.sh up       ... and what `capstan up` starts
#   tools/install.sh test     ... and what the tests start
#   tools/install.sh bench    ... and what the benchmarks compare with
#
# A machine that has everything is not touched, and no package index is fetched. No installed server is started or
# left enabled: Capstan and its tests start their own, on their own ports.
set -euo pipefail

# Asked by Debian's maintainer scripts before they start a service. The variable is for this script's own test.
policy_rc_d=${CAPSTAN_POLICY_RC_D:-/usr/sbin/policy-rc.d}
# What installs the clients of the tests; the variable is for this script's own test.
clients_sh=${CAPSTAN_CLIENTS_SH:-$(dirname "$0")/clients.sh}
missing=()

say() { echo "install: $*"; }
die() { echo "install: $*" >&2; exit 1; }

usage() {
    sed -n '4,7s/^#   //p' "$0" >&2
    exit 2
}

# need PROGRAM PACKAGE: the package is missing if the program is.
need() {
    command -v "$1" >/dev/null || want "$1" "$2"
}

# need_file FILE PACKAGE: the package is missing if the file is.
need_file() {
    [[ -e $1 ]] || want "$1" "$2"
}

want() {
    say "$1 is missing: package $2"
    case " ${missing[*]-} " in *" $2 "*) ;; *) missing+=("$2") ;; esac
}

needs_of_build() {
    command -v cargo >/dev/null || die "cargo is missing: install Rust $(rust_version) or newer with rustup, then run this again"
    need cc gcc
    need make make
    need protoc protobuf-compiler
    # The etcd client is generated from protocol files that import these.
    need_file /usr/include/google/protobuf/descriptor.proto libprotobuf-dev
    need_file /usr/include/stdio.h libc6-dev
}

needs_of_up() {
    needs_of_build
    need redis-server redis-server
}

needs_of_test() {
    needs_of_up
    need git git
    need etcd etcd-server
    need etcdctl etcd-client
    need redis-cli redis-tools
    need python3 python3
    # Without it there are no environments of their own for Python programs.
    python3 -c 'import ensurepip' 2>/dev/null || want "Python's ensurepip" python3-venv
    need prometheus prometheus
    need node nodejs
    need npm npm
    # Not the script in the PATH, which insists on a user of its own.
    need_file /usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server
}

# Beyond packages: what the tests take from elsewhere, and keep below the target directory.
prepare() {
    case $1 in
        test | bench) "$clients_sh" ;;
        build | up) ;;
    esac
}

needs_of_bench() {
    needs_of_test
    need nutcracker nutcracker
    need nats-server nats-server
    # A server in the PATH is only there through Debian's wrappers; the benchmark starts its own.
    ls /usr/lib/postgresql/*/bin/pgbench >/dev/null 2>&1 || want pgbench postgresql
    need_file /usr/lib/rabbitmq/bin/rabbitmq-server rabbitmq-server
}

rust_version() {
    sed -n 's/^rust-version = "\(.*\)"/\1/p' "$(dirname "$0")/../Cargo.toml"
}

as_root() {
    if [[ $(id -u) == 0 ]]; then "$@"; else sudo "$@"; fi
}

install_missing() {
    command -v apt-get >/dev/null ||
        die "no apt-get here; install by your own means what Debian calls: ${missing[*]}"
    [[ $(id -u) == 0 ]] || command -v sudo >/dev/null ||
        die "neither root nor sudo; ask an administrator for: apt-get install ${missing[*]}"
    forbid_service_starts
    say "apt-get update"
    as_root apt-get update -qq
    say "apt-get install ${missing[*]}"
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "${missing[@]}"
    disable_new_services
}

# While this script runs, packages do not start their services: a redis-server on 6379 is not ours to give. A policy
# that the machine already has stays as it is.
forbid_service_starts() {
    [[ -e $policy_rc_d ]] && return
    trap 'as_root rm -f "$policy_rc_d"' EXIT
    printf '#!/bin/sh\nexit 101\n' | as_root tee "$policy_rc_d" >/dev/null
    as_root chmod 755 "$policy_rc_d"
}

# Packages enable their services for the next boot; those that were not here before are disabled again.
disable_new_services() {
    command -v systemctl >/dev/null || return 0
    local package
    for package in "${missing[@]}"; do
        case $package in
            redis-server) as_root systemctl disable -q redis-server || say "redis-server stays enabled at boot" ;;
            prometheus | rabbitmq-server | nats-server) as_root systemctl disable -q "$package" || say "$package stays enabled at boot" ;;
            etcd-server) as_root systemctl disable -q etcd || say "etcd stays enabled at boot" ;;
        esac
    done
}

[[ $# == 1 ]] || usage
purpose=$1
case $purpose in
    build | up | test | bench) "needs_of_$purpose" ;;
    *) usage ;;
esac
if [[ ${#missing[@]} == 0 ]]; then
    prepare "$purpose"
    say "everything for '$purpose' is here"
    exit 0
fi
install_missing
missing=()
"needs_of_$purpose"
[[ ${#missing[@]} == 0 ]] || die "still missing after the installation: ${missing[*]}"
prepare "$purpose"
say "everything for '$purpose' is here now"
