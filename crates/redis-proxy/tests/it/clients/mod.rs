//! Do third-party clients work? Their workloads against a cluster of proxies and, in the long form, of Redis
//! itself, which shows that they need nothing that Redis does not provide.

mod native;
mod programs;
mod proxies;
mod rust;
mod tools;

pub use proxies::Proxies;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};
use std::time::Duration;

use anyhow::{Context, ensure};
use capstan_testkit::seed::soak;

/// A workload takes seconds; a loaded machine needs longer.
const DEADLINE: Duration = Duration::from_secs(180);

/// A server of the cluster protocol at these addresses.
trait Cluster {
    fn seeds(&self) -> Vec<SocketAddr>;
}

/// `host:port,host:port,...`
fn list(seeds: &[SocketAddr]) -> String {
    seeds.iter().map(ToString::to_string).collect::<Vec<_>>().join(",")
}

/// The clusters that a workload runs against.
async fn clusters() -> anyhow::Result<Vec<Box<dyn Cluster>>> {
    let mut clusters: Vec<Box<dyn Cluster>> = vec![Box::new(Proxies::start(3).await?)];
    if soak(false, true) {
        clusters.push(Box::new(native::Native::start(3).await?));
    }
    Ok(clusters)
}

/// Runs a program to its end; anything but success is an error with its output.
pub async fn run(
    program: &Path,
    arguments: &[&str],
    environment: &[(&str, &Path)],
) -> anyhow::Result<String> {
    let mut command = tokio::process::Command::new(program);
    command.args(arguments).envs(environment.iter().copied()).stdin(Stdio::null()).kill_on_drop(true);
    let output = tokio::time::timeout(DEADLINE, command.output());
    let output = output.await.with_context(|| format!("{} {arguments:?} does not end", program.display()))?;
    let output = output.with_context(|| format!("cannot run {}", program.display()))?;
    let said = said(&output);
    ensure!(output.status.success(), "{} {arguments:?}: {}\n{said}", program.display(), output.status);
    Ok(said)
}

fn said(output: &Output) -> String {
    format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr))
}

/// Where `tools/install.sh test` has put the clients.
pub fn installed(path: &str) -> anyhow::Result<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let target = std::env::var_os("CARGO_TARGET_DIR").map_or(root.join("target"), PathBuf::from);
    let path = target.join("clients").join(path);
    ensure!(path.exists(), "{} is missing; run tools/install.sh test, which needs a network", path.display());
    Ok(path)
}

/// A workload beside these tests.
pub fn workload(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients").join(path)
}
