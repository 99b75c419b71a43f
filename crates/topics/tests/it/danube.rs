//! The public client, in its newest version and in the one of the document's time, unchanged: `tools/danube-check`. How it
//! gets over the death of a broker is tested with processes, in the binary's tests.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use capstan_testkit::eventually;
use capstan_topics::wire::danube_admin::TopicRequest;
use tokio::io::{AsyncBufReadExt as _, AsyncReadExt as _, BufReader, Lines};
use tokio::process::{Child, ChildStdout, Command};

use crate::cluster::{Cluster, RELIABLE, SOON};

/// How long all checks of one version may take.
const DEADLINE: Duration = Duration::from_secs(180);

/// Where `tools/install.sh test` has put the program.
fn program() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let path = target.join("clients/danube/danube-check");
    assert!(path.exists(), "{} is missing; run tools/install.sh test, which needs a network", path.display());
    path
}

fn start(arguments: &[&str]) -> Child {
    let mut command = Command::new(program());
    command.args(arguments).stdin(Stdio::null()).kill_on_drop(true);
    command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
}

/// Waits for the end of a program, which must succeed, and returns what it has printed.
async fn finish(mut child: Child) -> String {
    let mut said = Vec::new();
    let (stdout, stderr) = (child.stdout.take(), child.stderr.take());
    let ended = tokio::time::timeout(DEADLINE, async {
        // The streams of a program that does not end show how far it came.
        if let Some(mut stdout) = stdout {
            while stdout.read_buf(&mut said).await.unwrap() > 0 {}
        }
        if let Some(mut stderr) = stderr {
            stderr.read_to_end(&mut said).await.unwrap();
        }
        child.wait().await.unwrap()
    })
    .await;
    let said = String::from_utf8_lossy(&said).into_owned();
    let status = ended.unwrap_or_else(|_| panic!("the checks do not end:\n{said}"));
    assert!(status.success(), "{said}");
    said
}

async fn everything(version: &str, brokers: &[&str]) {
    let cluster = Cluster::start(brokers).await;
    let urls: Vec<String> = cluster.nodes.values().map(|node| node.broker.url().to_owned()).collect();
    let mut arguments = vec!["all", version];
    arguments.extend(urls.iter().map(String::as_str));
    let said = finish(start(&arguments)).await;
    assert!(said.contains("all passed\n"), "{said}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_client_can_do_everything_with_one_broker() {
    everything("newest", &["a"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_newest_client_can_do_everything_with_three_brokers() {
    everything("newest", &["a", "b", "c"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_the_document_can_do_everything_with_one_broker() {
    everything("document", &["a"]).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_client_of_the_document_can_do_everything_with_three_brokers() {
    everything("document", &["a", "b", "c"]).await;
}

const TOPIC: &str = "/default/flow";

/// Messages that flow from a client to itself, by a broker that is not the topic's own.
struct Flow {
    cluster: Cluster,
    child: Child,
    lines: Lines<BufReader<ChildStdout>>,
}

impl Flow {
    async fn start(version: &str) -> Flow {
        let cluster = Cluster::start(&["a", "b", "c"]).await;
        cluster.client().await.producer(TOPIC, "first", RELIABLE).await;
        let owner = cluster.owner(TOPIC).await;
        let other = cluster.nodes.iter().find(|(name, _)| **name != owner).unwrap().1;
        let mut child = start(&["flow", version, other.broker.url(), TOPIC, "200"]);
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        while let Some(line) = tokio::time::timeout(SOON, lines.next_line()).await.unwrap().unwrap() {
            if line == "under way" {
                break;
            }
        }
        Flow { cluster, child, lines }
    }

    async fn finish(mut self) {
        let mut said = String::new();
        while let Some(line) = tokio::time::timeout(DEADLINE, self.lines.next_line()).await.unwrap().unwrap()
        {
            said.push_str(&line);
        }
        finish(self.child).await;
        assert!(said.ends_with("all passed"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn clients_follow_a_topic_that_is_unloaded() {
    for version in ["newest", "document"] {
        let flow = Flow::start(version).await;
        let admin = flow.cluster.client().await;
        eventually("the topic is unloaded", SOON, async || {
            let request = TopicRequest { name: TOPIC.to_owned() };
            admin.admin().unload_topic(request).await.map(drop).map_err(|status| status.to_string())
        })
        .await;
        flow.finish().await;
    }
}
