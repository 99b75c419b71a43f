//! Documents that go in and out: JSON lines of a file, of a collection, of its changes.

use std::io::{BufRead as _, BufReader, IsTerminal as _};
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use capstan_docs::api::Client;
use serde_json::{Value, json};

use super::lines;
use crate::commands::bar::Bar;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// Documents that one request of an import carries.
const IMPORT_BATCH: usize = 500;
/// Bytes of documents that one request of an import carries.
const IMPORT_BYTES: usize = 4 * 1024 * 1024;
/// Documents that one request of an export asks for.
const EXPORT_PAGE: usize = 1_000;

pub(super) async fn import(
    client: &Client,
    database: &str,
    collection: &str,
    file: &PathBuf,
    context: &mut Context,
) -> Result<Exit> {
    client.send("POST", "/db", &[], Some(&json!({ "name": database }))).await?;
    let body = json!({ "collection": collection, "options": {} });
    client.send("POST", &format!("/db/{database}"), &[], Some(&body)).await?;
    let input: Box<dyn std::io::Read> = if file.as_os_str() == "-" {
        Box::new(std::io::stdin())
    } else {
        Box::new(std::fs::File::open(file).with_context(|| format!("cannot read {}", file.display()))?)
    };
    let path = format!("/db/{database}/{collection}");
    let all = std::fs::metadata(file).map_or(0, |about| about.len());
    let (mut bar, mut read) = (Bar::new("bytes"), 0);
    let (mut batch, mut bytes, mut imported) = (Vec::new(), 0, 0);
    for (number, line) in BufReader::new(input).lines().enumerate() {
        let line = line.with_context(|| format!("cannot read {}", file.display()))?;
        if line.trim().is_empty() {
            continue;
        }
        let document: Value =
            serde_json::from_str(&line).with_context(|| format!("line {} is not valid JSON", number + 1))?;
        bytes += line.len();
        read += line.len() as u64 + 1;
        batch.push(document);
        if batch.len() >= IMPORT_BATCH || bytes >= IMPORT_BYTES {
            imported += send_batch(client, &path, &mut batch).await?;
            bytes = 0;
            bar.show(read, all);
        }
    }
    imported += send_batch(client, &path, &mut batch).await?;
    bar.show(all, all);
    bar.end();
    match context.out.format {
        Format::Json => context.out.json(&json!({ "imported": imported }))?,
        Format::Table => context.out.line(format!("{imported} documents imported"))?,
    }
    Ok(Exit::Done)
}

async fn send_batch(client: &Client, path: &str, batch: &mut Vec<Value>) -> Result<usize> {
    if batch.is_empty() {
        return Ok(0);
    }
    let body = json!({ "doc": std::mem::take(batch) });
    let done = client.send("POST", path, &[], Some(&body)).await?;
    Ok(done.get("result").and_then(Value::as_array).map_or(0, Vec::len))
}

pub(super) async fn export(
    client: &Client,
    database: &str,
    collection: &str,
    context: &mut Context,
) -> Result<Exit> {
    let mut cursor: Option<String> = None;
    let counted = client.send("GET", &format!("/db/{database}/{collection}/count"), &[], None).await?;
    let all = counted.get("count").and_then(Value::as_u64).unwrap_or(0);
    // Documents on a terminal are their own progress.
    let mut bar = (!std::io::stdout().is_terminal()).then(|| Bar::new("documents"));
    let mut exported = 0;
    loop {
        let mut asked = vec![("options[limit]", EXPORT_PAGE.to_string())];
        asked.extend(cursor.take().map(|cursor| ("options[cursor]", cursor)));
        let found = client.send("GET", &format!("/db/{database}/{collection}"), &asked, None).await?;
        exported += lines(&found, context)? as u64;
        if let Some(bar) = &mut bar {
            bar.show(exported, all);
        }
        match found.get("cursor") {
            Some(next) => cursor = Some(next.to_string()),
            None => break,
        }
    }
    if let Some(bar) = bar {
        bar.end();
    }
    Ok(Exit::Done)
}

pub(super) async fn changes(
    client: &Client,
    path: &str,
    from: Option<String>,
    count: Option<usize>,
    context: &mut Context,
) -> Result<Exit> {
    let mut left = count.unwrap_or(usize::MAX);
    let out = &mut context.out;
    let mut failed = None;
    let position = client
        .events(path, from.as_deref(), |event| {
            match event.kind.as_str() {
                "begin" => return Ok(left > 0),
                "error" => failed = Some(event.data),
                _ => out.line(event.data)?,
            }
            left -= 1;
            Ok::<_, anyhow::Error>(left > 0 && failed.is_none())
        })
        .await?;
    say(format!("go on with: --from {position}"));
    match failed {
        Some(why) => bail!("the stream has ended: {why}"),
        None => Ok(Exit::Done),
    }
}
