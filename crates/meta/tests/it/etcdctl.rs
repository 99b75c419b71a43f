//! Does the etcdctl that people have installed work on the embedded store? Every command, with what it prints.

#![allow(clippy::unwrap_used, clippy::expect_used, reason = "a test fails by panicking")]

use std::process::Stdio;

use capstan_meta::{Backend, Range};
use capstan_testkit::{TempDir, eventually};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};
use tokio::time::timeout;

use crate::wire_support::{DEADLINE, Served, served};

/// What a command said.
struct Said {
    code: Option<i32>,
    out: String,
    err: String,
}

/// etcdctl, pointed at a store.
struct Ctl(Served);

impl Ctl {
    async fn new() -> Ctl {
        Ctl(served().await)
    }

    fn command(&self, args: &[&str]) -> Command {
        let program = capstan_testkit::process::on_path("etcdctl".as_ref(), Some("etcd-client")).unwrap();
        let mut command = Command::new(program);
        command.args(args).env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", self.0.addr.to_string());
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true);
        command
    }

    async fn run(&self, args: &[&str], stdin: &str) -> Said {
        let mut child = self.command(args).spawn().unwrap();
        child.stdin.take().unwrap().write_all(stdin.as_bytes()).await.unwrap();
        let output = timeout(DEADLINE, child.wait_with_output()).await.expect("etcdctl hangs").unwrap();
        Said {
            code: output.status.code(),
            out: String::from_utf8(output.stdout).unwrap(),
            err: String::from_utf8(output.stderr).unwrap(),
        }
    }

    /// Must succeed; what it printed.
    async fn out(&self, args: &[&str]) -> String {
        let said = self.run(args, "").await;
        assert_eq!(said.code, Some(0), "etcdctl {args:?}: {}", said.err);
        said.out
    }

    /// Must succeed and print exactly this.
    #[track_caller]
    fn prints(&self, args: &[&str], expected: &str) -> impl Future<Output = ()> {
        let caller = std::panic::Location::caller();
        async move {
            let out = self.out(args).await;
            assert_eq!(out, expected, "{caller}: etcdctl {args:?}");
        }
    }

    /// Must fail with exactly this error.
    async fn fails(&self, args: &[&str], error: &str) {
        let said = self.run(args, "").await;
        assert_ne!(said.code, Some(0), "etcdctl {args:?} succeeded: {}", said.out);
        let last = said.err.lines().last().unwrap_or_default();
        assert_eq!(last, format!("Error: {error}"), "etcdctl {args:?}");
    }

    async fn txn(&self, script: &str) -> String {
        let said = self.run(&["txn"], script).await;
        assert_eq!(said.code, Some(0), "etcdctl txn: {}", said.err);
        said.out
    }

    /// A command that goes on until it is ended.
    fn start(&self, args: &[&str]) -> Running {
        let mut child = self.command(args).spawn().unwrap();
        let lines = BufReader::new(child.stdout.take().unwrap()).lines();
        Running { child, lines }
    }

    async fn watchers(&self, count: usize) {
        eventually("etcdctl watches", DEADLINE, async || match self.0.store.watchers() {
            n if n == count => Ok(()),
            n => Err(format!("{n} watchers")),
        })
        .await;
    }
}

struct Running {
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Running {
    async fn line(&mut self) -> String {
        let line = timeout(DEADLINE, self.lines.next_line()).await.expect("etcdctl says nothing").unwrap();
        line.expect("etcdctl has ended")
    }

    async fn says(&mut self, lines: &[&str]) {
        for expected in lines {
            assert_eq!(self.line().await, *expected);
        }
    }

    /// Ctrl-C, and the end.
    async fn interrupt(mut self) {
        let pid = nix::unistd::Pid::from_raw(self.child.id().unwrap().cast_signed());
        nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGINT).unwrap();
        timeout(DEADLINE, self.child.wait()).await.expect("etcdctl does not end").unwrap();
    }
}

const TOPIC: &str = "/topics/default/my_topic";
const OWNED: &str = "/cluster/brokers/1/default/my_topic";
const OBJECTS: &str = "/danube-data/storage/topics/default/my_topic/objects/";

#[tokio::test(flavor = "multi_thread")]
async fn the_commands_of_the_broker_document() {
    let ctl = Ctl::new().await;
    let mut watching = ctl.start(&["watch", "/", "--prefix"]);
    ctl.watchers(1).await;
    let objects = [0, 1].map(|n| format!("{OBJECTS}{n:020}"));
    for (key, value) in [
        (TOPIC, r#"{"partitions":1}"#),
        (OWNED, "null"),
        (&objects[0], "first"),
        (&objects[1], "second"),
        ("/schemas/product-catalog/metadata", r#"{"compatibility":"backward"}"#),
        ("/schemas/product-catalog/versions/1", "v1"),
        ("/schemas/product-catalog/versions/2", "v2"),
    ] {
        ctl.prints(&["put", key, value], "OK\n").await;
        watching.says(&["PUT", key, value]).await;
    }
    let all = format!(
        "{OWNED}\n\n{}\n\n{}\n\n/schemas/product-catalog/metadata\n\n/schemas/product-catalog/versions/1\n\n\
         /schemas/product-catalog/versions/2\n\n{TOPIC}\n\n",
        objects[0], objects[1]
    );
    ctl.prints(&["get", "/", "--prefix", "--keys-only"], &all).await;
    ctl.prints(&["get", TOPIC], &format!("{TOPIC}\n{{\"partitions\":1}}\n")).await;
    ctl.prints(&["get", "/cluster/brokers/", "--prefix"], &format!("{OWNED}\nnull\n")).await;
    let both = format!("{}\nfirst\n{}\nsecond\n", objects[0], objects[1]);
    ctl.prints(&["get", OBJECTS, "--prefix"], &both).await;
    ctl.prints(
        &["get", "/schemas/product-catalog/versions/", "--prefix"],
        "/schemas/product-catalog/versions/1\nv1\n/schemas/product-catalog/versions/2\nv2\n",
    )
    .await;
    ctl.prints(
        &["get", "/schemas/product-catalog/metadata"],
        "/schemas/product-catalog/metadata\n{\"compatibility\":\"backward\"}\n",
    )
    .await;
    ctl.prints(&["del", TOPIC], "1\n").await;
    watching.says(&["DELETE", TOPIC, ""]).await;
    watching.interrupt().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn put_and_get_with_all_their_flags() {
    let ctl = Ctl::new().await;
    ctl.prints(&["put", "k", "v1", "--prev-kv"], "OK\n").await;
    ctl.prints(&["put", "k", "v2", "--prev-kv"], "OK\nk\nv1\n").await;
    ctl.prints(&["put", "a", "9"], "OK\n").await;
    ctl.prints(&["put", "b", "8"], "OK\n").await;
    ctl.prints(&["get", "k"], "k\nv2\n").await;
    ctl.prints(&["get", "nothing"], "").await;
    ctl.prints(&["get", "k", "--rev=2"], "k\nv1\n").await;
    ctl.prints(&["get", "k", "--consistency=s"], "k\nv2\n").await;
    ctl.prints(&["get", "k", "--hex"], "\\x6b\n\\x76\\x32\n").await;
    ctl.prints(&["get", "k", "--print-value-only"], "v2\n").await;
    ctl.prints(&["get", "a", "c"], "a\n9\nb\n8\n").await;
    ctl.prints(&["get", "", "--prefix", "--limit=1"], "a\n9\n").await;
    ctl.prints(&["get", "b", "--from-key", "--keys-only"], "b\n\nk\n\n").await;
    ctl.prints(&["get", "", "--prefix", "--order=DESCEND", "--print-value-only"], "v2\n8\n9\n").await;
    for (by, values) in
        [("CREATE", "v2\n9\n8\n"), ("KEY", "9\n8\nv2\n"), ("MODIFY", "v2\n9\n8\n"), ("VALUE", "8\n9\nv2\n")]
    {
        let sorted = ["get", "", "--prefix", "--sort-by", by, "--order=ASCEND", "--print-value-only"];
        ctl.prints(&sorted, values).await;
    }
    let newest = ["get", "", "--prefix", "--sort-by=VERSION", "--order=DESCEND", "--limit=1"];
    ctl.prints(&newest, "k\nv2\n").await;
    ctl.fails(&["get", "k", "--rev=100"], "etcdserver: mvcc: required revision is a future revision").await;
    ctl.fails(&["put", "", "x"], "etcdserver: key is not provided").await;
    ctl.fails(&["put", "none", "--ignore-value"], "etcdserver: key not found").await;
    ctl.fails(&["put", "k", "v", "--lease=77"], "etcdserver: requested lease not found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn answers_in_other_formats() {
    let ctl = Ctl::new().await;
    ctl.prints(&["put", "k", "v1"], "OK\n").await;
    ctl.prints(&["put", "k", "v2"], "OK\n").await;
    let about = ctl.0.store.status().await.unwrap();
    let (cluster, member, term) = (about.cluster_id, about.member_id, about.term);
    let json = format!(
        r#"{{"header":{{"cluster_id":{cluster},"member_id":{member},"revision":3,"raft_term":{term}}},"kvs":[{{"key":"aw==","create_revision":2,"mod_revision":3,"version":2,"value":"djI="}}],"count":1}}"#
    );
    ctl.prints(&["get", "k", "-w", "json"], &format!("{json}\n")).await;
    let fields = format!(
        "\"ClusterID\" : {cluster}\n\"MemberID\" : {member}\n\"Revision\" : 3\n\"RaftTerm\" : {term}\n\
         \"Key\" : \"k\"\n\"CreateRevision\" : 2\n\"ModRevision\" : 3\n\"Version\" : 2\n\"Value\" : \"v2\"\n\
         \"Lease\" : 0\n\"More\" : false\n\"Count\" : 1\n"
    );
    ctl.prints(&["get", "k", "-w", "fields"], &fields).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn deletions() {
    let ctl = Ctl::new().await;
    for key in ["d/1", "d/2", "d/3", "e", "f"] {
        ctl.prints(&["put", key, "x"], "OK\n").await;
    }
    ctl.prints(&["del", "nothing"], "0\n").await;
    ctl.prints(&["del", "d/1", "d/3", "--prev-kv"], "2\nd/1\nx\nd/2\nx\n").await;
    ctl.prints(&["del", "d/", "--prefix", "--prev-kv"], "1\nd/3\nx\n").await;
    ctl.prints(&["del", "e", "--from-key"], "2\n").await;
    ctl.prints(&["get", "", "--prefix"], "").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions() {
    let ctl = Ctl::new().await;
    let missing = "value(\"x\") = \"1\"\n\nput x 2\n\nput x 1\nget x\n\n";
    assert_eq!(ctl.txn(missing).await, "FAILURE\n\nOK\n\nx\n1\n");
    assert_eq!(ctl.txn(missing).await, "SUCCESS\n\nOK\n");
    let gone =
        "mod(\"x\") > \"0\"\nversion(\"x\") = \"2\"\ncreate(\"x\") < \"9\"\n\nget x\ndel x --prev-kv\n\n\n";
    assert_eq!(ctl.txn(gone).await, "SUCCESS\n\nx\n2\n\n1\nx\n2\n");
    assert_eq!(ctl.txn(gone).await, "FAILURE\n");
    let said = ctl.run(&["txn"], "\nput y 1\nput y 2\n\n\n").await;
    let last = said.err.lines().last().unwrap_or_default();
    assert_eq!(last, "Error: etcdserver: duplicate key given in txn request");
    let said = ctl.run(&["txn", "--interactive"], "value(\"x\") = \"1\"\n\nget x\n\nput x 3\n\n").await;
    assert_eq!(
        said.out,
        "compares:\nsuccess requests (get, put, del):\nfailure requests (get, put, del):\nFAILURE\n\nOK\n"
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn leases() {
    let ctl = Ctl::new().await;
    let granted = ctl.out(&["lease", "grant", "100"]).await;
    let id = granted.split(' ').nth(1).unwrap();
    assert_eq!(granted, format!("lease {id} granted with TTL(100s)\n"));
    let short = ctl.out(&["lease", "grant", "50"]).await;
    let short_id = short.split(' ').nth(1).unwrap();
    ctl.prints(&["lease", "list"], &format!("found 2 leases\n{short_id}\n{id}\n")).await;
    let shortest = ctl.out(&["lease", "grant", "1"]).await;
    let shortest_id = shortest.split(' ').nth(1).unwrap();
    assert_eq!(shortest, format!("lease {shortest_id} granted with TTL(2s)\n"));
    ctl.prints(&["put", "leased", "1", "--lease", id], "OK\n").await;
    let ttl = ctl.out(&["lease", "timetolive", id, "--keys"]).await;
    let known = format!("lease {id} granted with TTL(100s), remaining(");
    assert!(ttl.starts_with(&known) && ttl.ends_with("s), attached keys([leased])\n"), "{ttl}");
    let renewed = format!("lease {id} keepalived with TTL(100)\n");
    ctl.prints(&["lease", "keep-alive", "--once", id], &renewed).await;
    ctl.prints(&["lease", "revoke", id], &format!("lease {id} revoked\n")).await;
    ctl.prints(&["get", "leased"], "").await;
    ctl.prints(&["lease", "timetolive", id], &format!("lease {id} already expired\n")).await;
    let missing = "failed to revoke lease (etcdserver: requested lease not found)";
    ctl.fails(&["lease", "revoke", id], missing).await;
    ctl.fails(&["lease", "keep-alive", "--once", id], "etcdserver: requested lease not found").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_lease_is_kept_alive_beyond_its_time() {
    let ctl = Ctl::new().await;
    let granted = ctl.out(&["lease", "grant", "6"]).await;
    let id = granted.split(' ').nth(1).unwrap();
    let mut keeping = ctl.start(&["lease", "keep-alive", id]);
    let renewed = format!("lease {id} keepalived with TTL(6)");
    // Renewed every third of its time: eight renewals are more than two of its lives.
    keeping.says(&[renewed.as_str(); 8]).await;
    ctl.prints(&["lease", "list"], &format!("found 1 leases\n{id}\n")).await;
    keeping.interrupt().await;
    eventually("the lease expires", DEADLINE, async || match ctl.0.store.leases().await.unwrap().len() {
        0 => Ok(()),
        n => Err(format!("{n} leases")),
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn locks() {
    let ctl = Ctl::new().await;
    ctl.prints(&["lock", "mylock", "echo", "held"], "held\n").await;
    let mut holder = ctl.start(&["lock", "mylock"]);
    let key = holder.line().await;
    assert!(key.starts_with("mylock/"), "{key}");
    let mut second = ctl.start(&["lock", "mylock", "echo", "mine"]);
    eventually("the second stands in line", DEADLINE, async || {
        match ctl.0.store.range(Range::prefix("mylock/")).await.unwrap().count {
            2 => Ok(()),
            n => Err(format!("{n} in line")),
        }
    })
    .await;
    holder.interrupt().await;
    second.says(&["mine"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn elections() {
    let ctl = Ctl::new().await;
    let mut first = ctl.start(&["elect", "chief", "alice"]);
    let key = first.line().await;
    first.says(&["alice"]).await;
    let mut listening = ctl.start(&["elect", "chief", "--listen"]);
    listening.says(&[&key, "alice"]).await;
    let mut second = ctl.start(&["elect", "chief", "bob"]);
    eventually("the second stands in line", DEADLINE, async || {
        match ctl.0.store.range(Range::prefix("chief/")).await.unwrap().count {
            2 => Ok(()),
            n => Err(format!("{n} in line")),
        }
    })
    .await;
    first.interrupt().await;
    let next = second.line().await;
    assert!(next.starts_with("chief/") && next != key, "{next}");
    second.says(&["bob"]).await;
    listening.says(&[&next, "bob"]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn watches_from_a_revision_with_what_was_before() {
    let ctl = Ctl::new().await;
    for value in ["1", "2"] {
        ctl.prints(&["put", "w", value], "OK\n").await;
    }
    ctl.prints(&["del", "w"], "1\n").await;
    let mut watching = ctl.start(&["watch", "w", "--rev=2", "--prev-kv"]);
    watching.says(&["PUT", "w", "1"]).await;
    watching.says(&["PUT", "w", "1", "w", "2"]).await;
    watching.says(&["DELETE", "w", "2", "w", ""]).await;
    ctl.prints(&["put", "w", "3"], "OK\n").await;
    watching.says(&["PUT", "w", "3"]).await;
    watching.interrupt().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn compaction() {
    let ctl = Ctl::new().await;
    for value in ["1", "2", "3"] {
        ctl.prints(&["put", "k", value], "OK\n").await;
    }
    let compacted = "etcdserver: mvcc: required revision has been compacted";
    ctl.prints(&["compaction", "3"], "compacted revision 3\n").await;
    ctl.prints(&["get", "k", "--rev=3"], "k\n2\n").await;
    ctl.fails(&["get", "k", "--rev=2"], compacted).await;
    ctl.fails(&["compaction", "3"], compacted).await;
    ctl.fails(&["compaction", "99"], "etcdserver: mvcc: required revision is a future revision").await;
    ctl.prints(&["compaction", "4", "--physical"], "compacted revision 4\n").await;
    let said = ctl.run(&["watch", "k", "--rev=2"], "").await;
    assert_eq!(
        (said.code, said.err.trim_end()),
        (
            Some(5),
            "watch was canceled (etcdserver: mvcc: required revision has been compacted)\n\
             Error: watch is canceled by the server"
        )
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn what_operators_look_at() {
    let ctl = Ctl::new().await;
    ctl.prints(&["put", "k", "v"], "OK\n").await;
    let addr = ctl.0.addr;
    let about = ctl.0.store.status().await.unwrap();
    let (member, term) = (about.member_id, about.term);
    let status = ctl.out(&["endpoint", "status"]).await;
    let parts: Vec<_> = status.trim_end_matches('\n').split(", ").collect();
    let expected = [addr.to_string(), format!("{member:x}"), about.version];
    assert_eq!(parts[..3], expected);
    assert_eq!(parts[4..], ["true", "false", &term.to_string(), "2", "2", ""]);
    let health = ctl.run(&["endpoint", "health"], "").await;
    assert!(health.err.starts_with(&format!("{addr} is healthy: ")), "{} {}", health.out, health.err);
    let hash = ctl.out(&["endpoint", "hashkv"]).await;
    ctl.prints(&["endpoint", "hashkv"], &hash).await;
    ctl.prints(&["put", "k", "w"], "OK\n").await;
    assert_ne!(ctl.out(&["endpoint", "hashkv"]).await, hash);
    ctl.prints(
        &["member", "list"],
        &format!("{member:x}, started, default, http://{addr}, http://{addr}, false\n"),
    )
    .await;
    ctl.prints(&["alarm", "list"], "").await;
    ctl.prints(&["alarm", "disarm"], "").await;
    ctl.prints(&["defrag"], &format!("Finished defragmenting etcd member[{addr}]\n")).await;
    ctl.prints(&["user", "list"], "").await;
    ctl.prints(&["role", "list"], "").await;
    ctl.fails(&["move-leader", "1234"], "etcdserver: bad leader transferee").await;
    ctl.fails(&["member", "remove", "1234"], "etcdserver: member not found").await;
    ctl.fails(&["auth", "enable"], "etcdserver: root user does not exist").await;
    let alone = "rpc error: code = FailedPrecondition desc = etcdserver: the embedded store has one member and takes no other";
    ctl.fails(&["member", "add", "x", "--peer-urls=http://127.0.0.1:1"], alone).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_snapshot_is_saved_whole() {
    let ctl = Ctl::new().await;
    for n in 0..200 {
        let put = capstan_meta::Put::new(format!("k{n}"), vec![b'v'; 1000]);
        ctl.0.store.put(put).await.unwrap();
    }
    let dir = TempDir::new("wire-snapshot").unwrap();
    let path = dir.path().join("saved");
    ctl.prints(
        &["snapshot", "save", path.to_str().unwrap()],
        &format!("Snapshot saved at {}\n", path.display()),
    )
    .await;
    let saved = std::fs::read(&path).unwrap();
    assert_eq!(saved.len() % 512, 32);
    let restored = dir.path().join("restored");
    let revision = capstan_meta::embedded::restore(&saved[..], &restored).unwrap();
    assert!(revision.0 >= 201 + capstan_meta::embedded::RESTORE_RAISE);
    let store = capstan_meta::embedded::Embedded::open(&restored, Default::default()).await.unwrap();
    assert_eq!(store.range(Range::prefix("k")).await.unwrap().count, 200);
}

/// etcdctl 3.4 sends an endpoint's scheme along in some commands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn endpoints_may_have_a_scheme() {
    let ctl = Ctl::new().await;
    let endpoint = format!("http://{}", ctl.0.addr);
    for (line, expected) in [
        ("put a 1", Ok(())),
        ("endpoint status", Ok(())),
        ("endpoint hashkv", Ok(())),
        ("endpoint health", Ok(())),
        ("endpoint status --cluster", Ok(())),
        ("defrag", Ok(())),
        ("member list", Ok(())),
        ("get a", Ok(())),
        ("move-leader 1", Err("Error: etcdserver: bad leader transferee")),
    ] {
        let mut command = ctl.command(&line.split(' ').collect::<Vec<_>>());
        let output = command.env("ETCDCTL_ENDPOINTS", &endpoint).output();
        let output = timeout(DEADLINE, output).await.expect("etcdctl hangs").unwrap();
        let complaint = String::from_utf8(output.stderr).unwrap();
        match expected {
            Ok(()) => assert!(output.status.success(), "etcdctl {line}: {complaint}"),
            Err(expected) => assert_eq!(complaint.lines().last(), Some(expected), "etcdctl {line}"),
        }
    }
}
