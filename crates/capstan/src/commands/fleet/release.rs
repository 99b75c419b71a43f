//! `capstan fleet release`: from package files to a signed release that hosts trust. None of it needs a cluster.

use std::fs::File;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use capstan_fleet::artifact::files::{read_bounded, write_atomic, write_atomic_with_mode};
use capstan_fleet::release::make::{self, Description, Maturity};
use capstan_fleet::release::{
    Directory, MAX_TRUST_BYTES, Manifest, SecretKey, Source as _, SourceError, SourceSpec, Trust, TrustedKey,
    Version,
};
use capstan_fleet::run::check_source;
use clap::{Args, Subcommand};
use jiff::Timestamp;
use serde::Serialize;
use serde_json::json;

use crate::context::Context;
use crate::daemon;
use crate::exit::Exit;
use crate::output::{Format, say};

/// A secret key is one line.
const MAX_KEY_BYTES: u64 = 4096;

#[derive(Debug, Subcommand)]
pub(crate) enum ReleaseCommand {
    /// Generate a key that signs releases
    Keygen(KeygenArgs),
    /// Build a release from a description, package files and images
    Build(BuildArgs),
    /// Sign a built release
    Sign(SignArgs),
    /// Check signatures and every artifact of a release, as a host would
    Verify(VerifyArgs),
    /// Put a signed release into a directory that any web server can serve
    Publish(PublishArgs),
    /// List the releases of a source
    List(ListArgs),
    /// Make a small real release for a trial
    Sample(SampleArgs),
}

#[derive(Debug, Args)]
pub(crate) struct KeygenArgs {
    /// File for the secret key; it must not exist
    #[arg(value_name = "FILE")]
    key: PathBuf,
    /// Add the public key to this trust file, which is created if missing
    #[arg(long, value_name = "FILE")]
    trust: Option<PathBuf>,
    /// The owner of the key, for the trust file
    #[arg(long, value_name = "NAME", default_value = "", hide_default_value = true)]
    owner: String,
}

#[derive(Debug, Args)]
pub(crate) struct BuildArgs {
    /// The description (TOML); paths in it are relative to it
    #[arg(value_name = "FILE")]
    description: PathBuf,
    /// Directory to build in; empty or missing
    #[arg(long, value_name = "DIR")]
    out: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct SignArgs {
    /// A built release
    dir: PathBuf,
    /// The secret key
    #[arg(long, value_name = "FILE")]
    key: PathBuf,
}

#[derive(Debug, Args)]
pub(crate) struct VerifyArgs {
    /// A built release; with --release a source: a directory, an address, github:owner/name#tag-prefix
    source: String,
    /// The trust file of the hosts
    #[arg(long, value_name = "FILE")]
    trust: PathBuf,
    /// Fetch this release from the source and check it
    #[arg(long, value_name = "VERSION")]
    release: Option<Version>,
    /// Fetch through this proxy
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct PublishArgs {
    /// A built and signed release
    dir: PathBuf,
    /// The directory of all releases
    repository: PathBuf,
    /// Only for fleets that accept prereleases
    #[arg(long)]
    prerelease: bool,
}

#[derive(Debug, Args)]
pub(crate) struct ListArgs {
    /// A directory, an address, or github:owner/name#tag-prefix
    source: SourceSpec,
    /// Fetch through this proxy
    #[arg(long, value_name = "URL")]
    proxy: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct SampleArgs {
    /// Directory for repository, trust file and key; by default the one that `capstan up` uses (meta.dir/sample)
    dir: Option<PathBuf>,
    /// The version; by default the one after the last sample
    #[arg(long = "release", value_name = "VERSION")]
    release: Option<Version>,
}

/// Carries out the command.
pub(crate) async fn run(command: ReleaseCommand, context: &mut Context) -> Result<Exit> {
    match command {
        ReleaseCommand::Keygen(args) => keygen(&args, context),
        ReleaseCommand::Build(args) => build(&args, context),
        ReleaseCommand::Sign(args) => sign(&args, context),
        ReleaseCommand::Verify(args) => verify(&args, context).await,
        ReleaseCommand::Publish(args) => publish(&args, context),
        ReleaseCommand::List(args) => list(&args, context).await,
        ReleaseCommand::Sample(args) => sample(&args, context).await,
    }
    .map(|()| Exit::Done)
}

fn keygen(args: &KeygenArgs, context: &mut Context) -> Result<()> {
    if args.key.exists() {
        bail!("{} already exists; keys are not replaced", args.key.display());
    }
    let key = SecretKey::generate()?;
    let write = write_atomic_with_mode(&args.key, key.to_text().as_bytes(), 0o600);
    write.with_context(|| format!("cannot write {}", args.key.display()))?;
    if let Some(trust) = &args.trust {
        trust_key(trust, &key, &args.owner)?;
    }
    let (id, public) = (key.public().id(), key.public());
    match context.out.format {
        Format::Json => context.out.json(&json!({
            "key": args.key, "id": id, "ed25519": public, "trust": args.trust,
        }))?,
        Format::Table => {
            context.out.line(format!("key     {id}"))?;
            context.out.line(format!("public  {public}"))?;
            context.out.line(format!("secret  {} (keep it off the hosts)", args.key.display()))?;
            if let Some(trust) = &args.trust {
                context.out.line(format!("trust   {} (copy it to every host)", trust.display()))?;
            }
        }
    }
    Ok(())
}

/// Adds a key; the required number of signatures stays.
fn trust_key(path: &Path, key: &SecretKey, owner: &str) -> Result<()> {
    let mut trust = match path.exists() {
        true => read_trust(path)?,
        false => Trust { keys: Vec::new(), threshold: 1, ..Trust::in_all_of(Vec::new()) },
    };
    trust.keys.push(TrustedKey { ed25519: key.public(), owner: owner.to_owned() });
    let mut bytes = serde_json::to_vec_pretty(&trust)?;
    bytes.push(b'\n');
    write_atomic(path, &bytes).with_context(|| format!("cannot write {}", path.display()))
}

fn build(args: &BuildArgs, context: &mut Context) -> Result<()> {
    let description = Description::read(&args.description)?;
    let base = args.description.parent().unwrap_or(Path::new("."));
    let manifest = make::build(&description, base, &args.out, now())?;
    show(&manifest, &args.out, context)?;
    say(format!("Sign it: capstan fleet release sign {} --key FILE", args.out.display()));
    Ok(())
}

fn sign(args: &SignArgs, context: &mut Context) -> Result<()> {
    let signature = make::sign(&args.dir, &read_key(&args.key)?)?;
    match context.out.format {
        Format::Json => context.out.json(&json!({ "dir": args.dir, "key": signature.key })),
        Format::Table => {
            context.out.line(format!("{} is signed by key {}", args.dir.display(), signature.key))
        }
    }
}

async fn verify(args: &VerifyArgs, context: &mut Context) -> Result<()> {
    let trust = read_trust(&args.trust)?;
    let manifest = match &args.release {
        None => make::verify(Path::new(&args.source), &trust)?,
        Some(version) => {
            let source = args.source.parse::<SourceSpec>()?.connect(args.proxy.as_deref())?;
            let cache = std::env::temp_dir().join(format!("capstan-verify-{}", std::process::id()));
            let checked = check_source(&*source, version, &trust, &cache).await;
            let _ = std::fs::remove_dir_all(&cache);
            checked?
        }
    };
    if manifest.expires <= now() {
        bail!("release {} is genuine and complete, but expired at {}", manifest.version, manifest.expires);
    }
    show(&manifest, Path::new(&args.source), context)?;
    say("Signatures and artifacts are valid.");
    Ok(())
}

fn publish(args: &PublishArgs, context: &mut Context) -> Result<()> {
    let maturity = if args.prerelease { Maturity::Prerelease } else { Maturity::Released };
    let published = make::publish(&args.dir, &args.repository, maturity, now())?;
    match context.out.format {
        Format::Json => context.out.json(&json!({
            "version": published.manifest.version, "dir": published.dir, "files": published.files,
        })),
        Format::Table => context.out.line(format!(
            "release {} is in {} ({} artifacts)",
            published.manifest.version,
            published.dir.display(),
            published.files.len()
        )),
    }
}

async fn list(args: &ListArgs, context: &mut Context) -> Result<()> {
    let listed = args.source.connect(args.proxy.as_deref())?.list().await?;
    if context.out.format == Format::Json {
        return context.out.json_list("releases", &listed);
    }
    let rows = listed.iter().map(|release| {
        let stage = if release.prerelease { "prerelease" } else { "released" };
        let at = release.published_at.map(|at| at.to_string()).unwrap_or_default();
        [release.version.to_string(), stage.to_owned(), at]
    });
    context.out.table(["VERSION", "STAGE", "PUBLISHED"], rows.collect())
}

async fn sample(args: &SampleArgs, context: &mut Context) -> Result<()> {
    let dir = match &args.dir {
        Some(dir) => dir.clone(),
        None => context.config()?.meta.dir.join(daemon::SAMPLE_DIR),
    };
    let version = match &args.release {
        Some(version) => version.clone(),
        None => next_sample(&dir).await?,
    };
    let sample = make::sample(&dir, &version, now())?;
    match context.out.format {
        Format::Json => context.out.json(&json!({
            "version": version, "repository": sample.repository, "trust": sample.trust, "key": sample.key,
        })),
        Format::Table => {
            context.out.line(format!("release     {version}"))?;
            context.out.line(format!("repository  {}", sample.repository.display()))?;
            context.out.line(format!("trust       {}", sample.trust.display()))?;
            context.out.line(format!("key         {}", sample.key.display()))
        }
    }
}

/// `1.0.0`, then one more for every existing release.
async fn next_sample(dir: &Path) -> Result<Version> {
    let count = match Directory::new(dir.join("repository")).list().await {
        Ok(listed) => listed.len(),
        Err(SourceError::NotFound { .. }) => 0,
        Err(e) => return Err(e.into()),
    };
    Ok(format!("1.0.{count}").parse()?)
}

/// The content of a release, as table or JSON.
#[derive(Serialize)]
struct Shown<'a> {
    dir: &'a Path,
    manifest: &'a Manifest,
}

fn show(manifest: &Manifest, dir: &Path, context: &mut Context) -> Result<()> {
    if context.out.format == Format::Json {
        return context.out.json(&Shown { dir, manifest });
    }
    context.out.line(format!("release {}, expires {}", manifest.version, manifest.expires))?;
    let packages = manifest.packages.iter().map(|package| {
        ["package".to_owned(), format!("{} {}", package.name, package.version), package.digest.to_string()]
    });
    let images = manifest
        .images
        .iter()
        .map(|image| ["image".to_owned(), format!("{}:{}", image.name, image.tag), image.digest.to_string()]);
    let steps = manifest.numbered_steps().map(|(number, step)| {
        [
            format!("step {number}"),
            step.name.to_string(),
            format!("{}, {} s", step.kind, step.timeout_seconds),
        ]
    });
    context.out.table(["WHAT", "NAME", "DETAIL"], packages.chain(images).chain(steps).collect())
}

/// Reads a key; rejects one that other users can read.
fn read_key(path: &Path) -> Result<SecretKey> {
    let unreadable = || format!("cannot read the key {}", path.display());
    let file = File::open(path).with_context(unreadable)?;
    if file.metadata().with_context(unreadable)?.permissions().mode() & 0o077 != 0 {
        bail!("the key {} can be read by others: chmod 600 {0}", path.display());
    }
    let bytes = read_bounded(file, MAX_KEY_BYTES).with_context(unreadable)?;
    SecretKey::from_text(&String::from_utf8_lossy(&bytes)).with_context(unreadable)
}

fn read_trust(path: &Path) -> Result<Trust> {
    let unreadable = || format!("cannot read {}", path.display());
    let file = File::open(path).with_context(unreadable)?;
    let bytes = read_bounded(file, MAX_TRUST_BYTES).with_context(unreadable)?;
    Trust::parse(&bytes).with_context(unreadable)
}

fn now() -> Timestamp {
    let since = capstan_meta::clock::since_epoch();
    Timestamp::from_second(since.as_secs().cast_signed()).unwrap_or(Timestamp::UNIX_EPOCH)
}
