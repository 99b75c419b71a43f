//! Maintenance of the store: its status, its history, snapshots.

use std::fs::File;
use std::io::{BufReader, BufWriter, Write as _};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use capstan_meta::{Revision, Store, embedded};
use serde_json::json;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Args)]
pub(crate) struct CompactArgs {
    /// The oldest revision that can still be read afterwards
    #[arg(required_unless_present = "keep")]
    revision: Option<i64>,
    /// Keep this many revisions of history instead
    #[arg(long, value_name = "COUNT", conflicts_with = "revision")]
    keep: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct SnapshotArgs {
    /// The file to write; it appears only when it is complete
    file: PathBuf,
}

#[derive(Debug, clap::Args)]
pub(crate) struct RestoreArgs {
    /// A file written by `capstan meta snapshot` from an embedded store
    file: PathBuf,
    /// The data directory to create
    #[arg(long, value_name = "DIR")]
    dir: PathBuf,
}

pub(crate) async fn compact(args: CompactArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let revision = match (args.revision, args.keep) {
        (Some(revision), _) => revision,
        (None, keep) => store.status().await?.revision.0 - keep.unwrap_or_default(),
    };
    store.compact(Revision(revision)).await.with_context(|| format!("cannot compact revision {revision}"))?;
    match context.out.format {
        Format::Table => context.out.line(format!("compacted revision {revision}"))?,
        Format::Json => context.out.json(&json!({ "compacted": revision }))?,
    }
    Ok(Exit::Done)
}

pub(crate) async fn snapshot(args: SnapshotArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let partial = args.file.with_added_extension("part");
    let bytes = match save(&store, &partial).await {
        Ok(bytes) => bytes,
        Err(error) => {
            // A partial snapshot is useless; failing to remove it changes nothing.
            let _ = std::fs::remove_file(&partial);
            return Err(error.context(format!("cannot write a snapshot to {}", args.file.display())));
        }
    };
    std::fs::rename(&partial, &args.file).with_context(|| format!("cannot write {}", args.file.display()))?;
    match context.out.format {
        Format::Table => context.out.line(format!("wrote {bytes} bytes to {}", args.file.display()))?,
        Format::Json => context.out.json(&json!({ "file": args.file, "bytes": bytes }))?,
    }
    Ok(Exit::Done)
}

async fn save(store: &Store, file: &Path) -> Result<usize> {
    let mut chunks = store.snapshot().await?;
    let mut writer = BufWriter::new(File::create(file)?);
    let mut bytes = 0;
    while let Some(chunk) = chunks.recv().await {
        let chunk = chunk?;
        bytes += chunk.len();
        writer.write_all(&chunk)?;
    }
    writer.into_inner().map_err(|error| error.into_error())?.sync_all()?;
    Ok(bytes)
}

/// Works on files only: no server may have the directory open.
pub(crate) async fn restore(args: RestoreArgs, context: &mut Context) -> Result<Exit> {
    let file = File::open(&args.file).with_context(|| format!("cannot open {}", args.file.display()))?;
    let dir = args.dir.clone();
    let restored = tokio::task::spawn_blocking(move || embedded::restore(BufReader::new(file), &dir)).await?;
    let revision = restored.with_context(|| format!("cannot restore {}", args.file.display()))?;
    match context.out.format {
        Format::Table => {
            let dir = args.dir.display();
            context.out.line(format!(
                "restored revision {revision} into {dir}; start it with: capstan up --dir {dir}"
            ))?;
        }
        Format::Json => context.out.json(&json!({ "dir": args.dir, "revision": revision }))?,
    }
    Ok(Exit::Done)
}

pub(crate) async fn status(context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let status = store.status().await?;
    let leases = store.leases().await?.len();
    match context.out.format {
        Format::Json => context.out.json(&json!({
            "revision": status.revision,
            "compacted": status.compacted,
            "version": status.version,
            "db_size": status.db_size,
            "db_size_in_use": status.db_size_in_use,
            "leases": leases,
            "cluster_id": format!("{:x}", status.cluster_id),
            "member_id": format!("{:x}", status.member_id),
            "term": status.term,
        }))?,
        Format::Table => context.out.table(
            ["FIELD", "VALUE"],
            vec![
                ["revision".to_owned(), status.revision.to_string()],
                ["compacted".to_owned(), compacted(status.compacted)],
                ["size".to_owned(), size(status.db_size)],
                ["size in use".to_owned(), size(status.db_size_in_use)],
                ["leases".to_owned(), leases.to_string()],
                ["speaks etcd".to_owned(), status.version],
                ["cluster".to_owned(), format!("{:x}", status.cluster_id)],
            ],
        )?,
    }
    Ok(Exit::Done)
}

fn compacted(revision: Revision) -> String {
    if revision.0 < 0 { "never".to_owned() } else { format!("up to revision {revision}") }
}

/// A human-readable size.
fn size(bytes: u64) -> String {
    match bytes {
        0..1024 => format!("{bytes} B"),
        1024..1_048_576 => format!("{:.1} KiB", bytes as f64 / 1024.0),
        _ => format!("{:.1} MiB", bytes as f64 / 1_048_576.0),
    }
}
