//! Clusters: made, listed, shown, resized, deleted.

use anyhow::Result;
use capstan_redis::api::{self, ClusterPage, NodeLine, Phase};
use capstan_redis::broker::{Change, ScalePlan, Shift};
use capstan_redis::nmctl::PasswordHash;
use capstan_redis::spec::{ClusterSpec, Commands, Mode, Persistence, Serving, User};
use capstan_redis::{Address, ClusterName};
use serde::Serialize;

use super::bytes::{bytes, shown_bytes};
use super::map::slot_map;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Args)]
#[command(after_help = "Examples:\n  capstan redis create shop --nodes 3\n  \
    capstan redis create cache --nodes 6 --replicas 1 --max-memory 2gb --mode single")]
pub(crate) struct CreateArgs {
    /// The cluster's name; clients of a proxy with several clusters say it with AUTH
    name: ClusterName,
    /// Nodes with slots
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Replicas of each of them, on other hosts
    #[arg(long, value_name = "N", default_value_t = 0)]
    replicas: u32,
    /// Memory for the data of each node, such as 512mb or 2gb; 0 leaves it to the machine
    #[arg(long, value_name = "BYTES", default_value = "0", value_parser = bytes)]
    max_memory: u64,
    /// What clients get for keys of other proxies: `cluster` sends them there, `single` answers for all
    #[arg(long, default_value = "cluster", value_parser = mode)]
    mode: Mode,
    /// Split MGET, MSET, DEL, EXISTS, UNLINK and TOUCH over slots, where Redis Cluster refuses them
    #[arg(long)]
    split: bool,
    /// Clients that name no cluster use this one, where a proxy serves several; one cluster of a pool can be it
    #[arg(long)]
    default: bool,
    /// What survives the end of a node's process: none, aof (all but a second), rdb (the last snapshot)
    #[arg(long, default_value = "none", value_parser = persistence)]
    persistence: Persistence,
    /// Only this user may connect, with this password; may be repeated
    #[arg(long = "user", value_name = "NAME:PASSWORD", value_parser = user)]
    users: Vec<User>,
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

/// The password is hashed here: it is in no record and no log.
fn user(text: &str) -> Result<User, String> {
    let (name, password) = text.split_once(':').ok_or("write NAME:PASSWORD")?;
    if name.is_empty() || password.is_empty() {
        return Err("neither the name nor the password may be empty".to_owned());
    }
    let hash = PasswordHash::of(password.as_bytes()).to_string();
    Ok(User { name: name.to_owned(), password_sha256: vec![hash], commands: Commands::All })
}

/// What a change did, for programs.
#[derive(Serialize)]
struct Done<'a> {
    cluster: &'a ClusterName,
    change: &'static str,
}

pub(super) async fn create(args: CreateArgs, context: &mut Context) -> Result<Exit> {
    let CreateArgs { name, nodes, replicas, max_memory, mode, split, default, persistence, users } = args;
    let serving = Serving { mode, split, users, default, persistence, ..Serving::default() };
    let spec = ClusterSpec { nodes, replicas, max_memory, serving };
    api::create(&context.store().await?, &name, &spec).await?;
    let next = format!("cluster {name} is there; `capstan redis connect {name}` says how to reach it");
    done(context, &name, "created", &next)
}

pub(super) async fn delete(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    api::delete(&context.store().await?, name).await?;
    done(
        context,
        name,
        "deleted",
        &format!("cluster {name} is deleted; its nodes are emptied and become free"),
    )
}

pub(super) async fn rebalance(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    let change = api::rebalance(&context.store().await?, name).await?;
    let (word, text) = match change {
        Change::Made => (
            "asked",
            format!("cluster {name}: its slots are being spread; `capstan redis moves` shows how far"),
        ),
        Change::Already => ("already", format!("cluster {name}: its slots are being spread already")),
    };
    done(context, name, word, &text)
}

pub(super) fn done(
    context: &mut Context,
    name: &ClusterName,
    change: &'static str,
    text: &str,
) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json(&Done { cluster: name, change })?,
        Format::Table => context.out.line(text)?,
    }
    Ok(Exit::Done)
}

pub(super) async fn list(context: &mut Context) -> Result<Exit> {
    let lines = api::list(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&lines)?,
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

/// What a cluster is doing, in a word.
fn phase(phase: Phase) -> &'static str {
    match phase {
        Phase::Active => "active",
        Phase::Creating => "creating",
        Phase::Moving => "moving",
        Phase::Deleting => "deleting",
    }
}

pub(super) async fn show(name: &ClusterName, context: &mut Context) -> Result<Exit> {
    let page = api::show(&context.store().await?, name).await?;
    match context.out.format {
        Format::Json => context.out.json(&page)?,
        Format::Table => print(&page, context)?,
    }
    Ok(Exit::Done)
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
    for pending in &page.pending {
        context.out.line(format!("under way: {pending}"))?;
    }
    context.out.line("")?;
    let rows = page.nodes.iter().enumerate().map(|(at, node)| member_row(at, node));
    context.out.table(["", "NODE", "PROXY", "ROLE", "SLOTS", "RANGES"], rows.collect())?;
    context.out.line("")?;
    context.out.line(slot_map(page))
}

fn member_row(at: usize, node: &NodeLine) -> [String; 6] {
    let role = node.replica_of.as_ref().map_or_else(|| "primary".to_owned(), |of| format!("replica of {of}"));
    [
        super::map::letter(at).to_string(),
        node.node.to_string(),
        node.proxy.to_string(),
        role,
        node.slot_count.to_string(),
        node.slots.join(", "),
    ]
}

#[derive(Debug, clap::Args)]
pub(crate) struct ScaleArgs {
    /// The cluster
    name: ClusterName,
    /// Nodes with slots that it is to have
    #[arg(long, value_name = "N")]
    nodes: u32,
    /// Only show what would move
    #[arg(long)]
    dry_run: bool,
}

pub(super) async fn scale(args: ScaleArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    if args.dry_run {
        return show_plan(&api::scale_plan(&store, &args.name, args.nodes).await?, context);
    }
    let change = api::scale(&store, &args.name, args.nodes).await?;
    let (name, nodes) = (&args.name, args.nodes);
    let (word, text) = match change {
        Change::Made => {
            ("asked", format!("cluster {name} goes to {nodes} nodes; `capstan redis moves` shows how far"))
        }
        Change::Already => ("already", format!("cluster {name} is to have {nodes} nodes already")),
    };
    done(context, name, word, &text)
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
            shift.from.as_ref().map_or_else(|| "nobody".to_owned(), ToString::to_string),
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
    let users = if connection.users.is_empty() { "everybody".to_owned() } else { connection.users.join(" ") };
    let rows = vec![
        ["begin at".to_owned(), seeds.join(" ")],
        ["database".to_owned(), connection.database.to_string()],
        ["users".to_owned(), users],
        ["example".to_owned(), connection.example.clone()],
    ];
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}
