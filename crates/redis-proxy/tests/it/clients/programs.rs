//! Clients in other languages: redis-py and valkey-py, ioredis and node-redis, at the versions pinned beside the tests.

use std::path::Path;

use capstan_testkit::process::on_path;

use super::{clusters, installed, list, run, workload};

async fn python(script: &str, library: &str, protocol: &str) -> anyhow::Result<()> {
    let interpreter = installed("python/venv/bin/python")?;
    let script = workload(&format!("python/{script}"));
    for cluster in clusters().await? {
        let (script, seeds) = (script.display().to_string(), list(&cluster.seeds()));
        // -B: nothing is written beside the sources.
        run(&interpreter, &["-B", &script, library, protocol, &seeds], &[]).await?;
    }
    Ok(())
}

async fn node(script: &str, protocol: &[&str]) -> anyhow::Result<()> {
    let node = on_path(Path::new("node"), Some("nodejs"))?;
    let modules = installed("node/node_modules")?;
    let script = workload(&format!("node/{script}"));
    for cluster in clusters().await? {
        let (script, seeds) = (script.display().to_string(), list(&cluster.seeds()));
        let arguments = [&[script.as_str(), &seeds], protocol].concat();
        run(&node, &arguments, &[("NODE_PATH", &modules)]).await?;
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_resp2() -> anyhow::Result<()> {
    python("workload.py", "redis", "2").await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_resp3() -> anyhow::Result<()> {
    python("workload.py", "redis", "3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_async_resp2() -> anyhow::Result<()> {
    python("workload_async.py", "redis", "2").await
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_py_async_resp3() -> anyhow::Result<()> {
    python("workload_async.py", "redis", "3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_py_resp2() -> anyhow::Result<()> {
    python("workload.py", "valkey", "2").await
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_py_resp3() -> anyhow::Result<()> {
    python("workload.py", "valkey", "3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn valkey_py_async_resp3() -> anyhow::Result<()> {
    python("workload_async.py", "valkey", "3").await
}

#[tokio::test(flavor = "multi_thread")]
async fn ioredis() -> anyhow::Result<()> {
    node("ioredis.cjs", &[]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_redis_resp2() -> anyhow::Result<()> {
    node("node-redis.cjs", &["2"]).await
}

#[tokio::test(flavor = "multi_thread")]
async fn node_redis_resp3() -> anyhow::Result<()> {
    node("node-redis.cjs", &["3"]).await
}
