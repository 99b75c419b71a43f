//! `capstan docs`: databases, collections, documents, keys and nodes of the document store.

mod transfer;

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result, bail};
use capstan_docs::api::{Client, KeyScope, Keys, MovePlan, Nodes, back_up, restore};
use capstan_docs::keys::{AccessId, DatabaseName};
use capstan_meta::clock;
use serde_json::{Value, json};

use crate::commands::action::OperatorAction;
use crate::commands::bar::{Bar, bar_of};
use crate::config::HostTls;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};
use transfer::{changes, export, import};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum DocsCommand {
    /// List the databases
    Databases,
    /// List the collections of a database
    Collections {
        /// The database
        database: String,
    },
    /// Print documents as JSON lines
    Find {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// Which ones, such as '{"moons": {"$gt": 1}}'
        #[arg(default_value = "{}", hide_default_value = true)]
        query: String,
        /// In which order, such as '{"name": 1}'
        #[arg(long, value_name = "JSON")]
        sort: Option<String>,
        /// How many at most
        #[arg(long, default_value_t = 100)]
        limit: usize,
    },
    /// Insert a document
    Insert {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// The document; without one it is read from stdin
        document: Option<String>,
    },
    /// Insert the documents of a file with one JSON object a line; makes the collection if it is missing
    Import {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// The file; - is stdin
        file: PathBuf,
    },
    /// Print every document of a collection as JSON lines
    Export {
        /// The database
        database: String,
        /// The collection
        collection: String,
    },
    /// List, make and delete access keys
    #[command(subcommand)]
    Keys(KeysCommand),
    /// List, make and drop indexes
    #[command(subcommand)]
    Indexes(IndexesCommand),
    /// List the nodes with their states and tokens
    Nodes,
    /// Add a node to the cluster
    Add {
        /// The node: the host that it runs on
        node: String,
    },
    /// Move every token of a node elsewhere, permanently
    Retire {
        /// The node: the host that it runs on
        node: String,
    },
    /// Forget a node that has stopped and holds nothing
    Delete {
        /// The node: the host that it ran on
        node: String,
    },
    /// Show the tokens that move, with their progress
    Moves {
        /// Show what would move from here on, as grids of nodes and tokens; changes nothing
        #[arg(long)]
        dry_run: bool,
    },
    /// Print changes of a collection as JSON lines, as they happen
    Changes {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// Begin behind this position, as an earlier run printed it to stderr
        #[arg(long, value_name = "POSITION")]
        from: Option<String>,
        /// End after so many changes
        #[arg(long)]
        count: Option<usize>,
    },
    /// Save every database to a new directory
    Backup {
        /// The directory; it must not exist
        dir: PathBuf,
    },
    /// Put the databases of a backup back; its collections must not exist
    Restore {
        /// The directory of the backup
        dir: PathBuf,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeysCommand {
    /// List the access keys
    List,
    /// Make an access key; from the first one on, every request needs a key
    Create {
        /// The database that it opens; without one, all of them and the administration
        #[arg(long)]
        database: Option<String>,
        /// What it is for
        #[arg(long, default_value = "", hide_default_value = true)]
        app: String,
    },
    /// Delete an access key
    Delete {
        /// The part of the access id behind the slash
        id: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum IndexesCommand {
    /// List the indexes of a collection
    List {
        /// The database
        database: String,
        /// The collection
        collection: String,
    },
    /// Make an index
    Create {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// The field; a dotted path for an inner one
        field: String,
        /// No two documents may have the same value
        #[arg(long)]
        unique: bool,
        /// Delete documents so many seconds after the time in the field
        #[arg(long, value_name = "SECONDS")]
        expires_after_seconds: Option<u64>,
    },
    /// Drop an index
    Drop {
        /// The database
        database: String,
        /// The collection
        collection: String,
        /// The field
        field: String,
    },
}

impl DocsCommand {
    /// The operator action that it is, for the record of events. Documents are data and have no events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let of = |action: &str, node: &str| Some(OperatorAction::new(action, format!("docs node {node}")));
        match self {
            DocsCommand::Add { node } => of("added", node),
            DocsCommand::Retire { node } => of("asked to retire", node),
            DocsCommand::Delete { node } => of("deleted", node),
            DocsCommand::Restore { dir } => {
                Some(OperatorAction::new("restored", format!("docs backup {}", dir.display())))
            }
            DocsCommand::Keys(KeysCommand::Create { app, .. }) => {
                Some(OperatorAction::new("issued", format!("docs key for {app}")))
            }
            DocsCommand::Keys(KeysCommand::Delete { id }) => {
                Some(OperatorAction::new("deleted", format!("docs key {id}")))
            }
            DocsCommand::Indexes(IndexesCommand::Create { database, collection, field, .. }) => {
                Some(OperatorAction::new("created", format!("docs index {database}/{collection}/{field}")))
            }
            DocsCommand::Indexes(IndexesCommand::Drop { database, collection, field }) => {
                Some(OperatorAction::new("dropped", format!("docs index {database}/{collection}/{field}")))
            }
            DocsCommand::Keys(KeysCommand::List) | DocsCommand::Indexes(IndexesCommand::List { .. }) => None,
            DocsCommand::Databases | DocsCommand::Collections { .. } | DocsCommand::Find { .. } => None,
            DocsCommand::Insert { .. } | DocsCommand::Import { .. } | DocsCommand::Export { .. } => None,
            DocsCommand::Nodes | DocsCommand::Moves { .. } | DocsCommand::Changes { .. } => None,
            DocsCommand::Backup { .. } => None,
        }
    }
}

pub(crate) async fn run(command: DocsCommand, context: &mut Context) -> Result<Exit> {
    match command {
        DocsCommand::Keys(command) => keys(command, context).await,
        DocsCommand::Nodes => nodes(context).await,
        DocsCommand::Moves { dry_run: true } => planned(context).await,
        DocsCommand::Moves { dry_run: false } => moves(context).await,
        DocsCommand::Add { node } => {
            Nodes::open(context.store().await?).await?.add(&node.parse()?).await?;
            say(format!("node {node} takes part; its tokens are chosen by the steward"));
            Ok(Exit::Done)
        }
        DocsCommand::Retire { node } => {
            Nodes::open(context.store().await?).await?.retire(&node.parse()?).await?;
            say(format!("node {node} retires; `capstan docs nodes` shows when it is empty"));
            Ok(Exit::Done)
        }
        DocsCommand::Delete { node } => {
            Nodes::open(context.store().await?).await?.delete(&node.parse()?).await?;
            say(format!("node {node} was deleted"));
            Ok(Exit::Done)
        }
        other => documents(other, context).await,
    }
}

async fn documents(command: DocsCommand, context: &mut Context) -> Result<Exit> {
    let tls = context.config()?.tls.as_ref().map(HostTls::live).transpose()?;
    let client = Client::connect(&context.store().await?, tls.as_ref()).await?;
    match command {
        DocsCommand::Databases => names(&client.send("GET", "/db", &[], None).await?, "DATABASE", context),
        DocsCommand::Collections { database } => {
            let found = client.send("GET", &format!("/db/{database}"), &[], None).await?;
            names(&found, "COLLECTION", context)
        }
        DocsCommand::Find { database, collection, query, sort, limit } => {
            let mut asked = vec![("query", query), ("options[limit]", limit.to_string())];
            asked.extend(sort.map(|sort| ("options[sort]", sort)));
            let found = client.send("GET", &format!("/db/{database}/{collection}"), &asked, None).await?;
            lines(&found, context)?;
            if found.get("_more").is_some() {
                say(format!("capstan: there are more than {limit}; see --limit"));
            }
            Ok(Exit::Done)
        }
        DocsCommand::Insert { database, collection, document } => {
            let text = match document {
                Some(text) => text,
                None => {
                    let mut text = String::new();
                    std::io::stdin().read_to_string(&mut text).context("cannot read stdin")?;
                    text
                }
            };
            let document: Value = serde_json::from_str(&text).context("the document is not valid JSON")?;
            let body = json!({ "doc": document });
            let done = client.send("POST", &format!("/db/{database}/{collection}"), &[], Some(&body)).await?;
            let id = done.pointer("/result/0/value/_id").cloned().unwrap_or_default();
            match context.out.format {
                Format::Json => context.out.json(&json!({ "_id": id }))?,
                Format::Table => context.out.line(id.as_str().unwrap_or_default())?,
            }
            Ok(Exit::Done)
        }
        DocsCommand::Import { database, collection, file } => {
            import(&client, &database, &collection, &file, context).await
        }
        DocsCommand::Export { database, collection } => {
            export(&client, &database, &collection, context).await
        }
        DocsCommand::Indexes(command) => indexes(&client, command, context).await,
        DocsCommand::Changes { database, collection, from, count } => {
            changes(&client, &format!("/db/{database}/{collection}/changes"), from, count, context).await
        }
        DocsCommand::Backup { dir } => {
            let (store, mut bar) = (context.store().await?, Bar::new("tokens"));
            let saved = back_up(&client, &store, &dir, |done, all| bar.show(done as u64, all as u64)).await?;
            let (collections, tokens, bytes) = saved.size();
            bar.end();
            match context.out.format {
                Format::Json => context.out.json(
                    &json!({ "collections": collections, "tokens": tokens, "bytes": bytes, "dir": dir.display().to_string() }),
                )?,
                Format::Table => context.out.line(format!(
                    "{collections} collections saved to {}: {tokens} tokens, {bytes} bytes",
                    dir.display()
                ))?,
            }
            Ok(Exit::Done)
        }
        DocsCommand::Restore { dir } => {
            let mut bar = Bar::new("tokens");
            let restored = restore(&client, &dir, |done, all| bar.show(done as u64, all as u64)).await?;
            bar.end();
            match context.out.format {
                Format::Json => context.out.json(&json!({ "restored": restored }))?,
                Format::Table => context.out.line(format!("{restored} documents restored"))?,
            }
            Ok(Exit::Done)
        }
        DocsCommand::Keys(_)
        | DocsCommand::Nodes
        | DocsCommand::Moves { .. }
        | DocsCommand::Add { .. }
        | DocsCommand::Delete { .. }
        | DocsCommand::Retire { .. } => Ok(Exit::Usage),
    }
}

fn names(found: &Value, header: &str, context: &mut Context) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json_list(&format!("{}s", header.to_lowercase()), found)?,
        Format::Table => {
            let names = found.as_array().map(Vec::as_slice).unwrap_or_default();
            let rows = names.iter().map(|name| [name.as_str().unwrap_or_default().to_owned()]);
            context.out.table([header], rows.collect())?;
        }
    }
    Ok(Exit::Done)
}

fn lines(found: &Value, context: &mut Context) -> Result<usize> {
    let documents = found.get("data").and_then(Value::as_array).map(Vec::as_slice).unwrap_or_default();
    for document in documents {
        context.out.line(serde_json::to_string(document)?)?;
    }
    Ok(documents.len())
}

async fn indexes(client: &Client, command: IndexesCommand, context: &mut Context) -> Result<Exit> {
    match command {
        IndexesCommand::List { database, collection } => {
            let found = client.send("GET", &format!("/db/{database}/{collection}/index"), &[], None).await?;
            match context.out.format {
                Format::Json => context.out.json(&found)?,
                Format::Table => {
                    let all = found.as_object().cloned().unwrap_or_default();
                    let rows = all.iter().map(|(field, options)| [field.clone(), options.to_string()]);
                    context.out.table(["FIELD", "OPTIONS"], rows.collect())?;
                }
            }
        }
        IndexesCommand::Create { database, collection, field, unique, expires_after_seconds } => {
            let mut options = if unique { json!({ "unique": true }) } else { json!({}) };
            if let Some(seconds) = expires_after_seconds {
                options["expiresAfterSeconds"] = json!(seconds);
            }
            let path = format!("/db/{database}/{collection}/index/{field}");
            client.send("POST", &path, &[], Some(&json!({ "options": options }))).await?;
            say(format!("index on {field} is being built"));
        }
        IndexesCommand::Drop { database, collection, field } => {
            let path = format!("/db/{database}/{collection}/index/{field}");
            client.send("DELETE", &path, &[], None).await?;
            say(format!("index on {field} was dropped"));
        }
    }
    Ok(Exit::Done)
}

async fn keys(command: KeysCommand, context: &mut Context) -> Result<Exit> {
    let keys = Keys::new(context.store().await?);
    match command {
        KeysCommand::List => {
            let listed = keys.list().await?;
            match context.out.format {
                Format::Json => {
                    let rows = listed.iter().map(|(id, key)| {
                        json!({ "id": id.as_str(), "database": key.database, "app": key.app,
                                "created_at": key.created_at, "expires_at": key.expires_at })
                    });
                    context.out.json_list("keys", &rows.collect::<Vec<_>>())?;
                }
                Format::Table => {
                    let rows = listed.iter().map(|(id, key)| {
                        let database = key.database.clone().unwrap_or_else(|| "(all)".to_owned());
                        [id.to_string(), database, key.app.clone()]
                    });
                    context.out.table(["ID", "DATABASE", "APP"], rows.collect())?;
                }
            }
        }
        KeysCommand::Create { database, app } => {
            let scope = match database {
                Some(name) => KeyScope::Database(DatabaseName::new(name)?),
                None => KeyScope::All,
            };
            let made = keys.make(&scope, &app, None).await?;
            match context.out.format {
                Format::Json => context.out.json(&made)?,
                Format::Table => {
                    context.out.line(format!("accessid   {}", made.access_id))?;
                    context.out.line(format!("accesskey  {}", made.access_key))?;
                    say("The key is not shown again.");
                }
            }
        }
        KeysCommand::Delete { id } => {
            let id = id.rsplit('/').next().unwrap_or_default().to_owned();
            keys.delete(&AccessId::new(id)?).await?;
        }
    }
    Ok(Exit::Done)
}

async fn nodes(context: &mut Context) -> Result<Exit> {
    let list = Nodes::open(context.store().await?).await?.list();
    match context.out.format {
        Format::Json => context.out.json_list("nodes", &list)?,
        Format::Table => {
            let rows = list.iter().map(|node| {
                [
                    node.node.clone(),
                    node.state.name().to_owned(),
                    node.http.clone().unwrap_or_else(|| "down".to_owned()),
                    node.masters.to_string(),
                    node.copies.to_string(),
                ]
            });
            context.out.table(["NODE", "STATE", "HTTP", "MASTERS", "COPIES"], rows.collect())?;
        }
    }
    if list.is_empty() {
        bail!("no node has ever run; `capstan up` starts three");
    }
    Ok(Exit::Done)
}

async fn planned(context: &mut Context) -> Result<Exit> {
    let plan = MovePlan::read(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&plan.to_json())?,
        Format::Table => {
            for line in plan.to_string().lines() {
                context.out.line(line.trim_end())?;
            }
        }
    }
    Ok(Exit::Done)
}

async fn moves(context: &mut Context) -> Result<Exit> {
    let list = Nodes::open(context.store().await?).await?.moves();
    match context.out.format {
        Format::Json => context.out.json_list("moves", &list)?,
        Format::Table => {
            let now = clock::since_epoch().as_secs();
            let rows = list.iter().map(|moving| {
                let job = moving.job.as_ref().map(|job| format!("{:?}", job.progress.state));
                [
                    moving.token.clone(),
                    job.unwrap_or_else(|| moving.state.to_owned()),
                    moving.leaving.clone().unwrap_or_default(),
                    moving.learner.clone().unwrap_or_default(),
                    moving.percent().map(bar_of).unwrap_or_default(),
                    moving.remaining(now).map(|seconds| format!("{seconds} s")).unwrap_or_default(),
                ]
            });
            context.out.table(["TOKEN", "STATE", "FROM", "TO", "PROGRESS", "LEFT"], rows.collect())?;
        }
    }
    Ok(Exit::Done)
}
