//! `capstan meta put` and `capstan meta del`: manual writes with guards.

use std::io::Read as _;

use anyhow::{Context as _, Result};
use capstan_meta::{Compare, Delete, Detail, KeyRange, OpResult, Put, Range, Revision, Txn};
use serde_json::json;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Args)]
pub(crate) struct PutArgs {
    /// The key
    key: String,
    /// Its value; `-` reads it from stdin
    value: String,
    /// Only if the key does not exist
    #[arg(long, conflicts_with = "if_revision")]
    if_absent: bool,
    /// Only if the key was last changed at this revision
    #[arg(long, value_name = "REVISION")]
    if_revision: Option<i64>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct DelArgs {
    /// The key, or the prefix
    key: String,
    /// Every key that begins with KEY; prints their number unless --yes is given
    #[arg(long)]
    prefix: bool,
    /// Delete a whole prefix without asking
    #[arg(long, requires = "prefix")]
    yes: bool,
}

pub(crate) async fn put(args: PutArgs, context: &mut Context) -> Result<Exit> {
    let value = if args.value == "-" { stdin()? } else { args.value.into_bytes() };
    let guard = match args.if_revision {
        Some(revision) => Some(Compare::mod_revision(args.key.clone(), Revision(revision))),
        None => args.if_absent.then(|| Compare::absent(args.key.clone())),
    };
    let txn = Txn::new()
        .when_all(guard)
        .then(Put::new(args.key.clone(), value))
        .otherwise(Range::one(args.key.clone()));
    let result = context.store().await?.commit(txn).await?;
    if !result.succeeded {
        let there = match result.responses.first() {
            Some(OpResult::Range(found)) => found.kvs.first().map(|kv| kv.mod_revision),
            Some(OpResult::Put(_) | OpResult::Delete(_) | OpResult::Txn(_)) | None => None,
        };
        let there = there.map_or("does not exist".to_owned(), |revision| {
            format!("was last changed at revision {revision}")
        });
        say(format!("capstan: nothing was written: {} {there}", args.key));
        return Ok(Exit::Failed);
    }
    match context.out.format {
        Format::Table => context.out.line(format!("revision {}", result.revision))?,
        Format::Json => context.out.json(&json!({ "key": args.key, "revision": result.revision }))?,
    }
    Ok(Exit::Done)
}

fn stdin() -> Result<Vec<u8>> {
    let mut value = Vec::new();
    std::io::stdin().lock().read_to_end(&mut value).context("cannot read the value from stdin")?;
    Ok(value)
}

pub(crate) async fn del(args: DelArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let keys = if args.prefix { KeyRange::prefix(args.key.clone()) } else { KeyRange::one(args.key.clone()) };
    if args.prefix && !args.yes {
        let found = store.range(Range::of(keys).detail(Detail::CountOnly)).await?;
        say(format!(
            "capstan: nothing was deleted: {} keys begin with {}; add --yes to delete them",
            found.count, args.key
        ));
        return Ok(Exit::Failed);
    }
    let result = store.delete(Delete { keys, prev_kv: false }).await?;
    match context.out.format {
        Format::Table => {
            context.out.line(format!("deleted {}, revision {}", result.deleted, result.revision))?
        }
        Format::Json => {
            context.out.json(&json!({ "deleted": result.deleted, "revision": result.revision }))?
        }
    }
    Ok(if result.deleted == 0 && !args.prefix { Exit::Failed } else { Exit::Done })
}
