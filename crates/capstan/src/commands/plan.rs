//! `capstan plan`: what would move if nodes joined or left. Reads only its arguments and changes nothing.

use std::collections::BTreeMap;
use std::io::Write;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use capstan_placement::slots::{SlotMap, SlotPlan, plan_slots};
use capstan_placement::{
    Assignment, Cluster, Copies, Domain, Grid, Node, NodeName, NodeState, Plan, Shard, ShardCount, Weight,
    explain, plan,
};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::json;

use crate::output::Format;

/// Show what would move if nodes came or went.
#[derive(Debug, clap::Args)]
pub(crate) struct PlanArgs {
    #[command(subcommand)]
    command: PlanCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PlanCommand {
    /// Copies of tokens: a grid of nodes and tokens, with the fewest moves
    Tokens(TokensArgs),
    /// Slots of a Redis cluster: few contiguous ranges, with the fewest moves
    Slots(SlotsArgs),
}

#[derive(Debug, clap::Args)]
struct Members {
    /// Present nodes, separated by commas
    #[arg(long, value_name = "NAMES", value_delimiter = ',', required = true)]
    nodes: Vec<String>,
    /// Nodes that join
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    add: Vec<String>,
    /// Nodes that retire: they serve until their copies are elsewhere
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    remove: Vec<String>,
    /// Nodes that are lost, with everything on them
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    lose: Vec<String>,
    /// Relative sizes, such as a=2,b=3 (default 1)
    #[arg(long, value_name = "NODE=N", value_delimiter = ',')]
    weights: Vec<String>,
}

#[derive(Debug, clap::Args)]
struct TokensArgs {
    /// Number of tokens
    #[arg(long, value_name = "N", default_value_t = 16)]
    tokens: u64,
    /// Copies of each token
    #[arg(long, value_name = "N", default_value_t = 3)]
    copies: u64,
    #[command(flatten)]
    members: Members,
    /// Failure domains, such as a=rack1,b=rack2; a node without one is its own domain
    #[arg(long, value_name = "NODE=NAME", value_delimiter = ',')]
    domains: Vec<String>,
    /// Start from the `assignment` of an earlier `-o json`; by default from a balanced layout on --nodes
    #[arg(long, value_name = "FILE")]
    present: Option<PathBuf>,
    /// Explain what happens to this token
    #[arg(long, value_name = "TOKEN")]
    why: Option<u64>,
}

#[derive(Debug, clap::Args)]
struct SlotsArgs {
    #[command(flatten)]
    members: Members,
    /// Start from the `slots` of an earlier `-o json`; by default from a balanced layout on --nodes
    #[arg(long, value_name = "FILE")]
    present: Option<PathBuf>,
}

/// Plans, and writes the plan to `out`.
pub(crate) fn run(args: PlanArgs, format: Format, out: &mut dyn Write) -> Result<()> {
    match args.command {
        PlanCommand::Tokens(args) => tokens(&args, format, out),
        PlanCommand::Slots(args) => slots(&args, format, out),
    }
}

impl Members {
    /// The cluster before the change.
    fn now(&self, copies: Copies, domains: &[String]) -> Result<Cluster> {
        Ok(Cluster::new(copies, self.each(self.nodes.iter(), domains)?)?)
    }

    /// The cluster with joining nodes, and with leaving ones marked.
    fn then(&self, copies: Copies, domains: &[String]) -> Result<Cluster> {
        let mut nodes = self.each(self.nodes.iter().chain(&self.add), domains)?;
        for (names, state) in [(&self.remove, NodeState::Retiring), (&self.lose, NodeState::Gone)] {
            for name in names {
                match nodes.iter_mut().find(|node| node.name.as_str() == name) {
                    Some(node) => node.state = state,
                    None => {
                        bail!("{name} cannot leave: it is not among the nodes; name one that --nodes lists")
                    }
                }
            }
        }
        Ok(Cluster::new(copies, nodes)?)
    }

    fn each<'a>(&'a self, names: impl Iterator<Item = &'a String>, domains: &[String]) -> Result<Vec<Node>> {
        let known: Vec<&String> = self.nodes.iter().chain(&self.add).collect();
        let weights = pairs("--weights", &self.weights, &known)?;
        let domains = pairs("--domains", domains, &known)?;
        let mut nodes = Vec::new();
        for name in names {
            let mut node = Node::new(NodeName::new(name)?);
            if let Some(weight) = weights.get(name.as_str()) {
                let number =
                    weight.parse().with_context(|| format!("weight {weight:?} of {name} is not a number"))?;
                node = node.weighing(Weight::new(number).with_context(|| format!("node {name}"))?);
            }
            if let Some(domain) = domains.get(name.as_str()) {
                node = node.within(Domain::new(domain)?);
            }
            nodes.push(node);
        }
        Ok(nodes)
    }

    fn change(&self) -> bool {
        !(self.add.is_empty() && self.remove.is_empty() && self.lose.is_empty())
    }
}

/// `a=1` and `b=2` as a map; every key must be a node.
fn pairs<'a>(option: &str, given: &'a [String], known: &[&String]) -> Result<BTreeMap<&'a str, &'a str>> {
    let mut map = BTreeMap::new();
    for text in given {
        let Some((node, value)) = text.split_once('=') else {
            bail!("{option} has {text:?}, which is not NODE=VALUE; write for example {option} a=2,b=3");
        };
        if !known.iter().any(|name| *name == node) {
            bail!("{option} names {node}, which is not a node; name one of --nodes or --add");
        }
        if map.insert(node, value).is_some() {
            bail!("{option} names {node} twice; give it one value");
        }
    }
    Ok(map)
}

/// Reads a value from a file that contains it alone, or under `field` in an earlier output.
fn read<T: DeserializeOwned>(path: &Path, field: &str) -> Result<T> {
    let shown = path.display();
    let text = std::fs::read_to_string(path).with_context(|| format!("cannot read {shown}"))?;
    let mut value: serde_json::Value = serde_json::from_str(&text)
        .with_context(|| format!("{shown} is not JSON; give the output of -o json"))?;
    if let Some(inner) = value.get_mut(field) {
        value = inner.take();
    }
    serde_json::from_value(value).with_context(|| format!("{shown} has no usable {field}"))
}

fn tokens(args: &TokensArgs, format: Format, out: &mut dyn Write) -> Result<()> {
    let copies = Copies::new(args.copies)?;
    let count = ShardCount::new(args.tokens)?;
    let asked = args.why.map(|number| Shard::new(number, count)).transpose()?;
    let before = match &args.present {
        Some(file) => {
            let present: Assignment = read(file, "assignment")?;
            if present.count() != count.get() {
                bail!(
                    "{} has {} tokens, not {count}; say --tokens {}",
                    file.display(),
                    present.count(),
                    present.count(),
                    count = count.get()
                );
            }
            present
        }
        None if args.members.change() => {
            plan(&args.members.now(copies, &args.domains)?, &Assignment::empty(count))?.assignment
        }
        None => Assignment::empty(count),
    };
    let cluster = args.members.then(copies, &args.domains)?;
    let plan = plan(&cluster, &before)?;
    let why = asked.map(|shard| explain(&cluster, &before, &plan, shard)).transpose()?;
    match format {
        Format::Table => write_tokens(&before, &plan, why.as_deref(), out),
        Format::Json => write_json(&tokens_json(&plan, why), out),
    }
}

fn write_tokens(before: &Assignment, plan: &Plan, why: Option<&str>, out: &mut dyn Write) -> Result<()> {
    for line in Grid::new(before, plan).to_string().lines() {
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out, "\n{plan}")?;
    if let Some(why) = why {
        write!(out, "\n{why}")?;
    }
    Ok(())
}

fn tokens_json(plan: &Plan, why: Option<String>) -> serde_json::Value {
    let mut value = json!({
        "tasks": plan.tasks(),
        "lower_bound": plan.bound.tasks,
        "adds": plan.adds,
        "removals": plan.removals,
        "role_changes": plan.role_changes,
        "nodes": plan.nodes,
        "assignment": plan.assignment,
    });
    if let Some(why) = why {
        value["why"] = why.into();
    }
    value
}

fn slots(args: &SlotsArgs, format: Format, out: &mut dyn Write) -> Result<()> {
    let one = Copies::new(1)?;
    let before = match &args.present {
        Some(file) => read(file, "slots")?,
        None if args.members.change() => plan_slots(&args.members.now(one, &[])?, &SlotMap::default())?.slots,
        None => SlotMap::default(),
    };
    let plan = plan_slots(&args.members.then(one, &[])?, &before)?;
    match format {
        Format::Table => write_slots(&plan, out),
        Format::Json => write_json(
            &json!({
                "slots_moved": plan.slots_moved(),
                "lower_bound": plan.lower_bound,
                "moves": plan.moves,
                "nodes": plan.nodes,
                "slots": plan.slots,
            }),
            out,
        ),
    }
}

fn write_slots(plan: &SlotPlan, out: &mut dyn Write) -> Result<()> {
    let width = plan.nodes.iter().map(|row| row.node.as_str().len()).max().unwrap_or(0).max(4);
    writeln!(out, "{:<width$}  {:>6}  {:>6}  ranges", "node", "before", "slots")?;
    for row in &plan.nodes {
        let own = plan.slots.ranges().iter().filter(|(_, owner)| *owner == row.node);
        let ranges: Vec<String> = own.map(|(range, _)| range.to_string()).collect();
        let line =
            format!("{:<width$}  {:>6}  {:>6}  {}", row.node, row.slots_before, row.slots, ranges.join(" "));
        writeln!(out, "{}", line.trim_end())?;
    }
    writeln!(out)?;
    for step in &plan.moves {
        let from = step.from.as_ref().map_or("none", NodeName::as_str);
        writeln!(out, "{from} -> {}: {}", step.to, step.slots)?;
    }
    let (moved, ranges) = (plan.slots_moved(), plan.slots.ranges().len());
    writeln!(out, "slots moved {moved}, lower bound {}; {ranges} ranges", plan.lower_bound)?;
    Ok(())
}

fn write_json(value: &impl Serialize, out: &mut dyn Write) -> Result<()> {
    writeln!(out, "{}", serde_json::to_string_pretty(value)?)?;
    Ok(())
}
