//! Redis's own tools: redis-cli and redis-benchmark.

use std::path::Path;

use anyhow::ensure;
use capstan_testkit::process::on_path;

use super::{clusters, run};

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_follows_redirections() -> anyhow::Result<()> {
    let cli = on_path(Path::new("redis-cli"), Some("redis-tools"))?;
    for cluster in clusters().await? {
        for (index, seed) in cluster.seeds().into_iter().enumerate() {
            let port = seed.port().to_string();
            let at = ["-c", "-p", port.as_str()];
            for number in 0..5 {
                let (key, value) = (format!("cli:{index}:{number}"), format!("value {number}"));
                let said = run(&cli, &[&at[..], &["SET", &key, &value]].concat(), &[]).await?;
                assert_eq!(said.trim(), "OK");
                let said = run(&cli, &[&at[..], &["GET", &key]].concat(), &[]).await?;
                assert_eq!(said.trim(), value);
            }
            // RESP3, and what an operator looks at first.
            let said = run(&cli, &["-3", "-p", &port, "CLUSTER", "INFO"], &[]).await?;
            ensure!(said.contains("cluster_state:ok"), "{said}");
            let said = run(&cli, &["-p", &port, "INFO", "server"], &[]).await?;
            ensure!(said.contains("redis_mode:cluster"), "{said}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_cli_finds_the_cluster_in_order() -> anyhow::Result<()> {
    let cli = on_path(Path::new("redis-cli"), Some("redis-tools"))?;
    for cluster in clusters().await? {
        for seed in cluster.seeds() {
            let said = run(&cli, &["--cluster", "check", &seed.to_string()], &[]).await?;
            ensure!(said.contains("[OK] All nodes agree about slots configuration."), "{said}");
            ensure!(said.contains("[OK] All 16384 slots covered."), "{said}");
            ensure!(!said.contains("[ERR]") && !said.contains("[WARNING]"), "{said}");
            let said = run(&cli, &["--cluster", "info", &seed.to_string()], &[]).await?;
            ensure!(said.contains(&format!("in {} masters", cluster.seeds().len())), "{said}");
        }
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn redis_benchmark_runs_on_the_cluster() -> anyhow::Result<()> {
    let benchmark = on_path(Path::new("redis-benchmark"), Some("redis-tools"))?;
    for cluster in clusters().await? {
        let port = cluster.seeds()[0].port().to_string();
        for pipeline in ["1", "16"] {
            let arguments =
                ["--cluster", "-p", &port, "-n", "5000", "-c", "20", "-r", "1000", "-P", pipeline];
            let tests = ["-q", "-t", "set,get,incr,lpush,rpop,sadd,hset,zadd,spop"];
            let said = run(&benchmark, &[&arguments[..], &tests].concat(), &[]).await?;
            ensure!(said.contains("ZADD") && !said.to_lowercase().contains("error"), "{said}");
        }
    }
    Ok(())
}
