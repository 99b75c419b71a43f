//! `capstan meta get`: one key prints its value and nothing else, a prefix prints a table.

use anyhow::Result;
use capstan_meta::{Detail, KeyRange, Range, RangeResult, Revision};

use super::shown::{cut, document, text, value};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// The maximum width of a value in a table.
const VALUE_WIDTH: usize = 60;

#[derive(Debug, clap::Args)]
pub(crate) struct GetArgs {
    /// The key, or the prefix
    key: String,
    /// Every key that begins with KEY
    #[arg(long)]
    prefix: bool,
    /// As it was at this revision
    #[arg(long, value_name = "REVISION", default_value_t = 0, hide_default_value = true)]
    at: i64,
    /// At most this many keys; 0 for all
    #[arg(long, value_name = "COUNT", default_value_t = 0, hide_default_value = true)]
    limit: usize,
    /// Only the names of the keys
    #[arg(long)]
    keys_only: bool,
}

pub(crate) async fn get(args: GetArgs, context: &mut Context) -> Result<Exit> {
    let keys = if args.prefix { KeyRange::prefix(args.key.clone()) } else { KeyRange::one(args.key.clone()) };
    let detail = if args.keys_only { Detail::KeysOnly } else { Detail::Whole };
    let range = Range::of(keys).at(Revision(args.at)).limit(args.limit).detail(detail);
    let found = context.store().await?.range(range).await?;
    print(&args, &found, context)?;
    if found.kvs.is_empty() && !args.prefix {
        say(format!("capstan: there is no key {}", args.key));
        return Ok(Exit::Failed);
    }
    if found.more {
        say(format!("{} of {} keys", found.kvs.len(), found.count));
    }
    Ok(Exit::Done)
}

fn print(args: &GetArgs, found: &RangeResult, context: &mut Context) -> Result<()> {
    let out = &mut context.out;
    match out.format {
        Format::Json => out.json_list("keys", &found.kvs.iter().map(|kv| document(kv)).collect::<Vec<_>>()),
        Format::Table if args.keys_only => found.kvs.iter().try_for_each(|kv| out.line(text(&kv.key))),
        Format::Table if !args.prefix => found.kvs.iter().try_for_each(|kv| {
            out.bytes(&value(kv))?;
            out.bytes(b"\n")
        }),
        Format::Table => {
            let row = |kv: &std::sync::Arc<capstan_meta::KeyValue>| {
                let value = cut(&text(&value(kv)), VALUE_WIDTH);
                [text(&kv.key), kv.mod_revision.to_string(), kv.version.to_string(), value]
            };
            out.table(["KEY", "REVISION", "VERSION", "VALUE"], found.kvs.iter().map(row).collect())
        }
    }
}
