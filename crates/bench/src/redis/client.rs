//! The load: one run of redis-benchmark per call.

use anyhow::{Context as _, Result, bail};
use tokio::process::Command;

/// Size of a value in bytes.
const VALUE: &str = "64";
/// The number of different keys.
const KEYS: &str = "100000";

/// One run of the load.
#[derive(Clone, Copy, Debug)]
pub(super) struct Run {
    pub(super) command: &'static str,
    pub(super) clients: usize,
    pub(super) pipeline: usize,
    pub(super) requests: usize,
}

/// The requests per second on this port.
pub(super) async fn drive(port: u16, run: Run) -> Result<f64> {
    let Run { command, clients, pipeline, requests } = run;
    let output = Command::new("redis-benchmark")
        .args(["-h", "127.0.0.1", "-p", &port.to_string(), "-c", &clients.to_string()])
        .args(["-n", &requests.to_string(), "-P", &pipeline.to_string()])
        .args(["-d", VALUE, "-r", KEYS, "-t", command, "--csv"])
        .output()
        .await
        .context("there is no redis-benchmark in the PATH (Debian: apt install redis-tools)")?;
    let text = String::from_utf8_lossy(&output.stdout);
    match text.lines().find_map(rate) {
        Some(rate) if output.status.success() => Ok(rate),
        Some(_) | None => {
            bail!("redis-benchmark failed: {}{}", text.trim(), String::from_utf8_lossy(&output.stderr).trim())
        }
    }
}

/// The second field of a test's line; the heading has no number there.
fn rate(line: &str) -> Option<f64> {
    line.split(',').nth(1)?.trim_matches('"').parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_is_the_second_field() {
        assert_eq!(super::rate("\"SET\",\"79600.25\",\"0.4\""), Some(79600.25));
        assert_eq!(super::rate("\"test\",\"rps\",\"avg_latency_ms\""), None);
    }
}
