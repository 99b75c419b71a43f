//! Every public operation of `danube-client` against brokers.
//!
//!   danube-check all newest http://127.0.0.1:6650 [URL ...]
//!   danube-check all document http://127.0.0.1:6650 [URL ...]
//!   danube-check flow newest|document URL TOPIC COUNT
//!
//! `all` needs one broker and does more with several: clients start at each of them and follow redirects. `flow` sends and
//! receives so many messages while somebody else kills or unloads brokers.

mod common;
mod document;
mod newest;
mod registry;

use std::time::Duration;

use anyhow::{Context as _, Result, bail};

/// How long a message may take.
pub const SOON: Duration = Duration::from_secs(60);
/// How long one waits for a message that must not come.
pub const NOTHING: Duration = Duration::from_millis(300);

#[tokio::main]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments.as_slice() {
        ["all", "newest", urls @ ..] if !urls.is_empty() => newest::all(urls).await?,
        ["all", "document", urls @ ..] if !urls.is_empty() => document::all(urls).await?,
        ["flow", "newest", url, topic, count] => newest::flow(url, topic, count.parse()?).await?,
        ["flow", "document", url, topic, count] => document::flow(url, topic, count.parse()?).await?,
        _ => {
            bail!("usage: danube-check all newest|document URL ..., or flow newest|document URL TOPIC COUNT")
        }
    }
    println!("all passed");
    Ok(())
}

/// Names of their own, so that the check can run again on the same brokers.
pub fn run_name() -> Result<String> {
    let now = std::time::SystemTime::UNIX_EPOCH.elapsed()?;
    Ok(format!("{}-{}", now.as_millis(), std::process::id()))
}

pub async fn step(name: &str, check: impl Future<Output = Result<()>>) -> Result<()> {
    let begun = std::time::Instant::now();
    check.await.with_context(|| format!("{name} failed"))?;
    println!("passed: {name} ({} ms)", begun.elapsed().as_millis());
    Ok(())
}

pub fn numbers(range: std::ops::Range<usize>) -> Vec<String> {
    range.map(|number| number.to_string()).collect()
}
