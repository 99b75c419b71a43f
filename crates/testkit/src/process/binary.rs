//! Finds programs: in `PATH`, or built by cargo.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use anyhow::{Context, bail, ensure};

/// Finds a program in `PATH`. A missing one is an error that names the package: no test is skipped.
pub fn on_path(program: &Path, debian_package: Option<&str>) -> anyhow::Result<PathBuf> {
    let path = std::env::var_os("PATH").context("PATH is not set")?;
    if let Some(found) = std::env::split_paths(&path).map(|dir| dir.join(program)).find(|p| p.is_file()) {
        return Ok(found);
    }
    let name = program.display();
    match debian_package {
        Some(package) => {
            bail!("{name} is not in PATH; install Debian's package {package}, or run: tools/install.sh test")
        }
        None => bail!("{name} is not in PATH"),
    }
}

/// The `capstan` binary to test: `CAPSTAN_BIN` if set, as by `make test`; otherwise built here, once per process, in
/// the profile of the running test. An old binary in the target directory is never used as it is: cargo decides whether
/// it is fresh.
///
/// Tests of the package `capstan` itself should use `env!("CARGO_BIN_EXE_capstan")`.
pub fn capstan_binary() -> anyhow::Result<PathBuf> {
    static BUILT: OnceLock<Result<PathBuf, String>> = OnceLock::new();
    let built = BUILT.get_or_init(|| locate().map_err(|e| format!("{e:#}")));
    built.clone().map_err(anyhow::Error::msg)
}

fn locate() -> anyhow::Result<PathBuf> {
    if let Some(given) = std::env::var_os("CAPSTAN_BIN").map(PathBuf::from) {
        ensure!(given.is_file(), "CAPSTAN_BIN names {}, which is not a file", given.display());
        return Ok(given);
    }
    // .../target/<profile>/deps/<test executable>
    let executable = std::env::current_exe()?;
    let profile =
        executable.ancestors().nth(2).context("the test executable is not in a target directory")?;
    build(profile)?;
    let binary = profile.join("capstan");
    ensure!(binary.is_file(), "cargo built capstan, but not as {}", binary.display());
    Ok(binary)
}

fn build(profile: &Path) -> anyhow::Result<()> {
    let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
    let mut command = Command::new(cargo);
    command.args(["build", "--quiet", "--package", "capstan", "--target-dir"]);
    command.arg(profile.parent().context("no target directory")?);
    match profile.file_name().and_then(|name| name.to_str()) {
        Some("debug") | None => {}
        Some(name) => {
            command.args(["--profile", name]);
        }
    }
    command.current_dir(env!("CARGO_MANIFEST_DIR"));
    let output = command.output().with_context(|| format!("cannot run {command:?}"))?;
    ensure!(output.status.success(), "{command:?} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    Ok(())
}
