//! Redis clusters: create, list, show, scale, delete.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use capstan_meta::Store;
use capstan_redis::api::{self, ClusterPage, NodeLine, Phase};
use capstan_redis::coordinator::Wire;
use capstan_redis::decide::{Change, ScalePlan, Shift};
use capstan_redis::keys::Coordinators;
use capstan_redis::spec::{Acks, ClusterSpec, Commands, Mode, Persistence, Serving, User};
use capstan_redis::{Address, ClusterName};
use serde::Serialize;
use serde_json::json;

use super::bytes::{bytes, shown_bytes};
use super::map::slot_map;
use crate::commands::action::OperatorAction;
use crate::commands::wait::{Estimate, Line, Progress, WaitArg, follow};
use crate::config::Config;
use crate::connect;
use crate::context::Context;
use crate::daemon;
use crate::exit::Exit;
use crate::output::{Format, confirm, say};

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  capstan redis create shop --nodes 3\n  \
    capstan redis create cache --nodes 6 --replicas 1 --max-memory 2gb --mode single")]
pub(crate) struct CreateArgs {
    /// The cluster's name; clients of a proxy with several clusters select it with AUTH
    name: ClusterName,
    /// Nodes with slots
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Replicas of each of them, on other hosts
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas: u32,
    /// Memory for the data of each node, such as 512mb or 2gb; 0 for no limit
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    max_memory: u64,
    /// How keys of other proxies are served: `cluster` redirects clients, `single` forwards the command
    #[arg(long, default_value = "cluster", value_parser = mode)]
    mode: Mode,
    /// Split MGET, MSET, DEL, EXISTS, UNLINK and TOUCH over slots, where Redis Cluster refuses them
    #[arg(long)]
    split: bool,
    /// The default for clients that select no cluster, where a proxy serves several; one cluster per pool
    #[arg(long)]
    default: bool,
    /// What survives the end of a node's process: none, aof (all but a second), rdb (the last snapshot)
    #[arg(long, default_value = "none", value_parser = persistence)]
    persistence: Persistence,
    /// Availability over data: a shard that lost its data continues empty, and keys are evicted when memory is full
    #[arg(long)]
    cache: bool,
    /// Which node must have a write before it is acknowledged: primary, or replica (then a failover loses nothing)
    #[arg(long, default_value = "primary", value_parser = acks)]
    acks: Acks,
    /// Only this user may connect, with this password; may be repeated
    #[arg(long = "user", value_name = "NAME:PASSWORD", value_parser = user)]
    users: Vec<User>,
}

impl CreateArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("created", format!("redis cluster {}", self.name))
            .because(&format!("{} nodes", self.nodes))
    }
}

fn mode(text: &str) -> Result<Mode, String> {
    match text {
        "cluster" => Ok(Mode::Cluster),
        "single" => Ok(Mode::Single),
        other => Err(format!("`{other}` is neither cluster nor single")),
    }
}

fn persistence(text: &str) -> Result<Persistence, String> {
    match text {
        "none" => Ok(Persistence::None),
        "aof" => Ok(Persistence::Aof),
        "rdb" => Ok(Persistence::Rdb),
        other => Err(format!("`{other}` is not none, aof or rdb")),
    }
}

fn acks(text: &str) -> Result<Acks, String> {
    match text {
        "primary" => Ok(Acks::Primary),
        "replica" => Ok(Acks::Replica),
        other => Err(format!("`{other}` is neither primary nor replica")),
    }
}

/// The password is hashed here: no record and no log has it.
fn user(text: &str) -> Result<User, String> {
    let (name, password) = text.split_once(':').ok_or("write NAME:PASSWORD")?;
    if name.is_empty() || password.is_empty() {
        return Err("neither the name nor the password may be empty".to_owned());
    }
    User::new(name, password, Commands::All).map_err(|invalid| invalid.to_string())
}

/// The result of a change, as JSON.
#[derive(Serialize)]
struct Done<'a> {
    cluster: &'a ClusterName,
    change: &'static str,
}

pub(super) async fn create(args: CreateArgs, context: &mut Context) -> Result<Exit> {
    let CreateArgs {
        name,
        nodes,
        replicas,
        max_memory,
        mode,
        split,
        default,
        persistence,
        cache,
        acks,
        users,
    } = args;
    let serving = Serving { mode, split, users, default, persistence, cache, acks, ..Serving::default() };
    let spec = ClusterSpec { nodes, replicas, max_memory, serving };
    let store = context.store().await?;
    api::create(&store, &name, &spec).await?;
    let next = format!("created cluster {name}; `capstan redis connect {name}` shows how to connect");
    done(context, &store, &name, "created", &next).await
}

pub(super) async fn delete(name: &ClusterName, yes: bool, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let page = api::show(&store, name).await?;
    let lost = format!(
        "This deletes cluster {name} and every key in it: {} primaries, {} nodes in all. This cannot be undone.",
        page.line.primaries,
        page.nodes.len()
    );
    confirm(&lost, name.as_str(), yes)?;
    api::delete(&store, name).await?;
    let text = format!("deleted cluster {name}; its nodes are emptied and return to the pool");
    done(context, &store, name, "deleted", &text).await
}

pub(super) async fn rebalance(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let change = api::rebalance(&store, name).await?;
    let (word, text) = match change {
        Change::Made => {
            ("asked", format!("cluster {name}: rebalancing slots; `capstan redis moves` shows the progress"))
        }
        Change::Already => ("already", format!("cluster {name}: already rebalancing slots")),
    };
    done(context, &store, name, word, &text).await
}

/// Prints what a change did, and warns if no coordinator will perform it.
pub(super) async fn done(
    context: &mut Context,
    store: &Store,
    name: &ClusterName,
    change: &'static str,
    text: &str,
) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json(&Done { cluster: name, change })?,
        Format::Table => context.out.line(text)?,
    }
    attended(store).await
}

/// Whether a coordinator is up to perform what was recorded.
pub(super) async fn attended(store: &Store) -> Result<Exit> {
    if !store.list(&Coordinators {}).await?.entries.is_empty() {
        return Ok(Exit::Done);
    }
    say(
        "recorded, and nothing carries it out: no Redis coordinator is running. Start `capstan controller` with \
         redis.secret set; `capstan status` shows when one is there.",
    );
    Ok(Exit::Waiting)
}

pub(super) async fn list(context: &mut Context) -> Result<Exit> {
    let lines = api::list(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&json!({ "clusters": lines }))?,
        Format::Table => {
            let rows = lines.iter().map(|line| {
                let nodes = format!("{}/{}", line.primaries, line.wanted);
                [
                    line.name.to_string(),
                    phase(line.phase).to_owned(),
                    nodes,
                    line.replicas.to_string(),
                    line.slots.to_string(),
                    line.moves.to_string(),
                    line.epoch.to_string(),
                ]
            });
            let header = ["CLUSTER", "STATE", "NODES", "REPLICAS", "SLOTS", "MOVES", "EPOCH"];
            context.out.table(header, rows.collect())?;
        }
    }
    Ok(Exit::Done)
}

/// The phase of a cluster, in a word.
fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Active => "active",
        Phase::Creating => "creating",
        Phase::Moving => "moving",
        Phase::Deleting => "deleting",
    }
}

pub(super) async fn show(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let page = match way_to_proxies(context)? {
        Some(proxies) => api::show_live(&store, name, &proxies).await?,
        None => api::show(&store, name).await?,
    };
    match context.out.format {
        Format::Json => context.out.json(&page)?,
        Format::Table => print(&page, context)?,
    }
    Ok(Exit::Done)
}

/// A client for node facts of proxies, if this machine has the secret.
fn way_to_proxies(context: &Context) -> Result<Option<Arc<Wire>>> {
    let layers = context.layers()?;
    let mut config = Config::of(&layers)?;
    connect::discover(&layers, &mut config.meta);
    let data = config.meta.dir.clone();
    let has_secret = data.join(daemon::SECRET_FILE).is_file();
    daemon::proxies(&config.redis, has_secret.then_some(data.as_path()))
}

fn print(page: &ClusterPage, context: &mut Context) -> Result<()> {
    let line = &page.line;
    let mode = match page.mode {
        Mode::Cluster => "cluster",
        Mode::Single => "single",
    };
    let (name, doing, memory) = (&line.name, phase(line.phase), shown_bytes(page.max_memory));
    let (has, wanted, slots, epoch) = (line.primaries, line.wanted, line.slots, line.epoch);
    context.out.line(format!(
        "cluster {name} is {doing}: {has} of {wanted} nodes, {slots} slots, epoch {epoch}, {mode} mode, {memory}"
    ))?;
    let survives = match page.persistence {
        Persistence::None => "nothing",
        Persistence::Aof => "all but a second",
        Persistence::Rdb => "the last snapshot",
    };
    let kind =
        if page.cache { "cache: data may be dropped to stay available" } else { "data: never dropped" };
    context.out.line(format!("{kind}; {survives} survives the end of a process"))?;
    if line.replicas > 0 {
        context.out.line(
            "writes are acknowledged before replicas have them: a failover may lose about the last second of them",
        )?;
    }
    for wait in &page.waiting {
        context.out.line(format!("DOWN: shard of {}: {}", wait.primary, wait.cause))?;
    }
    for pending in &page.pending {
        context.out.line(format!("under way: {pending}"))?;
    }
    context.out.line("")?;
    let rows = page.nodes.iter().enumerate().map(|(at, node)| member_row(at, node));
    context
        .out
        .table(["", "NODE", "PROXY", "ROLE", "SYNC", "HEALTH", "KEYS", "SLOTS", "RANGES"], rows.collect())?;
    context.out.line("")?;
    context.out.line(slot_map(page))
}

fn member_row(at: usize, node: &NodeLine) -> [String; 9] {
    let (health, keys) = match &node.live {
        Some(live) => (live.health.clone(), live.keys.to_string()),
        None => ("-".to_owned(), "-".to_owned()),
    };
    let role = node.replica_of.as_ref().map_or_else(|| "primary".to_owned(), |of| format!("replica of {of}"));
    [
        super::map::letter(at).to_string(),
        node.node.to_string(),
        node.proxy.to_string(),
        role,
        if node.in_sync { "in-sync" } else { "behind" }.to_owned(),
        health,
        keys,
        node.slot_count.to_string(),
        node.slots.join(", "),
    ]
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScaleArgs {
    /// The cluster
    name: ClusterName,
    /// The new number of nodes with slots
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Only show what would move
    #[arg(long)]
    dry_run: bool,
    #[command(flatten)]
    wait: WaitArg,
}

impl ScaleArgs {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let change = OperatorAction::new("asked to scale", format!("redis cluster {}", self.name));
        (!self.dry_run).then(|| change.because(&format!("{} nodes", self.nodes)))
    }
}

fn moves_left(moves: usize) -> String {
    if moves == 1 { "1 move".to_owned() } else { format!("{moves} moves") }
}

/// Follows a cluster until it has its desired nodes and no slot moves.
pub(super) async fn settled(store: &Store, name: &ClusterName, wait: Duration) -> Result<Exit> {
    let (what, mut bar) = (format!("cluster {name}"), Estimate::begin());
    follow(&what, wait, "capstan redis moves", async || {
        let page = api::show(store, name).await?;
        let left = api::moves(store).await?.into_iter().filter(|line| line.cluster == *name);
        let left = left.map(|line| u64::from(line.last - line.first) + 1).sum();
        let line = &page.line;
        let has_all = line.primaries == line.wanted && line.moves == 0;
        Ok(match line.phase {
            Phase::Active if has_all => Progress::Over(Exit::Done),
            Phase::Moving => Progress::Going(bar.at(left).because(moves_left(line.moves))),
            Phase::Active | Phase::Creating | Phase::Deleting => {
                Progress::Going(Line::of(format!("{} of {} nodes", line.primaries, line.wanted)))
            }
        })
    })
    .await
}

pub(super) async fn scale(args: ScaleArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    if args.dry_run {
        return show_plan(&api::scale_plan(&store, &args.name, args.nodes).await?, context);
    }
    let change = api::scale(&store, &args.name, args.nodes).await?;
    let (name, nodes) = (&args.name, args.nodes);
    let (word, text) = match change {
        Change::Made => (
            "asked",
            format!("cluster {name}: scaling to {nodes} nodes; `capstan redis moves` shows the progress"),
        ),
        Change::Already => ("already", format!("cluster {name}: already scaling to {nodes} nodes")),
    };
    let recorded = done(context, &store, name, word, &text).await?;
    match args.wait.wait {
        Some(wait) => {
            context.record_action().await;
            settled(&store, name, wait).await
        }
        None => Ok(recorded),
    }
}

fn show_plan(plan: &ScalePlan, context: &mut Context) -> Result<Exit> {
    if context.out.format == Format::Json {
        context.out.json(plan)?;
        return Ok(Exit::Done);
    }
    let list = |nodes: &[Address]| nodes.iter().map(ToString::to_string).collect::<Vec<_>>().join(" ");
    context.out.line(format!("from {} to {} nodes", plan.from, plan.to))?;
    for (what, nodes) in [("join", &plan.joining), ("leave", &plan.retiring)] {
        if !nodes.is_empty() {
            context.out.line(format!("{what}: {}", list(nodes)))?;
        }
    }
    let row = |shift: &Shift| {
        [
            format!("{}-{}", shift.slots.first(), shift.slots.last()),
            shift.slots.len().to_string(),
            shift.from.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string),
            shift.to.to_string(),
        ]
    };
    context.out.table(["SLOTS", "COUNT", "FROM", "TO"], plan.shifts.iter().map(row).collect())?;
    Ok(Exit::Done)
}

pub(super) async fn connect(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    let connection = api::connect(&context.store().await?, name).await?;
    if context.out.format == Format::Json {
        context.out.json(&connection)?;
        return Ok(Exit::Done);
    }
    let seeds: Vec<String> = connection.seeds.iter().map(ToString::to_string).collect();
    let users = if connection.users.is_empty() { "any".to_owned() } else { connection.users.join(" ") };
    let rows = vec![
        ["begin at".to_owned(), seeds.join(" ")],
        ["database".to_owned(), connection.database.to_string()],
        ["users".to_owned(), users],
        ["example".to_owned(), connection.example.clone()],
    ];
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}
