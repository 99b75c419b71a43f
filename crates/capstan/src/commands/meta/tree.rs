//! `capstan meta tree`: the metadata as a tree, one branch per path segment. Secrets are hidden.

use std::collections::BTreeMap;
use std::sync::Arc;

use anyhow::Result;
use capstan_meta::{KeyValue, Range};

use super::shown::{cut, document, text, value};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// The width of a line, so that a tree fits a terminal.
const WIDTH: usize = 110;
#[derive(Debug, clap::Args)]
pub(crate) struct TreeArgs {
    /// Only keys with this prefix
    #[arg(default_value = "/")]
    prefix: String,
    /// Do not cut long values
    #[arg(long)]
    full: bool,
}

/// A segment of the path, the key that ends in it, and its children.
#[derive(Default)]
struct Branch {
    kv: Option<Arc<KeyValue>>,
    below: BTreeMap<String, Branch>,
}

pub(crate) async fn run(args: TreeArgs, context: &mut Context) -> Result<Exit> {
    let found = context.store().await?.range(Range::prefix(args.prefix.clone())).await?;
    match context.out.format {
        Format::Json => {
            context.out.json_list("keys", &found.kvs.iter().map(|kv| document(kv)).collect::<Vec<_>>())?
        }
        Format::Table => {
            let mut root = Branch::default();
            for kv in &found.kvs {
                root.insert(&text(&kv.key), kv);
            }
            let width = if args.full { usize::MAX } else { WIDTH };
            root.lines("", width, &mut |line| context.out.line(line))?;
            say(format!("{} keys at revision {}", found.count, found.revision));
        }
    }
    Ok(Exit::Done)
}

impl Branch {
    fn insert(&mut self, key: &str, kv: &Arc<KeyValue>) {
        let mut branch = self;
        for segment in key.strip_prefix('/').unwrap_or(key).split('/') {
            branch = branch.below.entry(segment.to_owned()).or_default();
        }
        branch.kv = Some(Arc::clone(kv));
    }

    fn lines(&self, indent: &str, width: usize, line: &mut impl FnMut(String) -> Result<()>) -> Result<()> {
        let last = self.below.len().saturating_sub(1);
        for (at, (segment, branch)) in self.below.iter().enumerate() {
            let (corner, below) = if at == last { ("└─ ", "   ") } else { ("├─ ", "│  ") };
            let name = format!("{indent}{corner}{segment}");
            line(branch.labelled(&name, width))?;
            branch.lines(&format!("{indent}{below}"), width, line)?;
        }
        Ok(())
    }

    fn labelled(&self, name: &str, width: usize) -> String {
        let Some(kv) = &self.kv else { return name.to_owned() };
        let value = text(&value(kv));
        let leased = if kv.lease.0 == 0 { "" } else { " (leased)" };
        let room = width.saturating_sub(name.chars().count() + leased.len() + 3);
        format!("{name}{leased} = {}", cut(&value, room.max(20)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_become_branches() {
        let mut root = Branch::default();
        for key in ["/a", "/a/b", "/c/d", "odd"] {
            let kv = KeyValue { key: key.into(), value: "v".into(), ..KeyValue::default() };
            root.insert(key, &Arc::new(kv));
        }
        let mut lines = Vec::new();
        root.lines("", 80, &mut |line| {
            lines.push(line);
            Ok(())
        })
        .unwrap();
        assert_eq!(lines, ["├─ a = v", "│  └─ b = v", "├─ c", "│  └─ d = v", "└─ odd = v"]);
    }
}
