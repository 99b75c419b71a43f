//! Confluent's own serialisers over HTTP, below a prefix as the daemon serves it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use axum::Router;
use capstan_meta::OwnedTask;
use capstan_schemas::confluent;

use crate::registry::store;

const DEADLINE: Duration = Duration::from_secs(120);

/// Where `tools/install.sh test` has put Python with the serialisers.
fn python() -> PathBuf {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let path = target.join("clients/serialisers/venv/bin/python");
    assert!(path.exists(), "{} is missing; run tools/install.sh test, which needs a network", path.display());
    path
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_serialisers_of_confluent_work_unchanged() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let url = format!("http://{}/schema-registry", listener.local_addr().unwrap());
    let router = Router::new().nest_service("/schema-registry", confluent::router(store()));
    let _server = OwnedTask::spawn(async move { axum::serve(listener, router).await.unwrap() });
    let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients/python/serialisers.py");
    let mut command = tokio::process::Command::new(python());
    command.arg(script).arg(&url).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output()).await.expect("the script ends").unwrap();
    let said =
        format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success() && said.contains("all passed"), "{said}");
}
