//! How long does a plan take, how much does it move, and how balanced is the result, compared with the usual hash
//! methods?

use std::time::Instant;

use anyhow::{Context as _, Result};
use capstan_placement::compare::{Movement, movement, rendezvous, ring};
use capstan_placement::{Assignment, Cluster, Copies, Node, NodeName, NodeState, ShardCount, plan};

use super::Row;

/// How the figures are measured, in one paragraph.
pub(crate) const METHOD: &str = "Three copies of each shard. Times are the median of the runs of one call that plans \
     a join (names to steps, with its proof), beside the time that rendezvous hashing takes for the layout alone, and \
     beside the limit that the project sets itself. Moves are copies made when a node joins or leaves; spread is the \
     difference between the fullest and the emptiest node afterwards. The ring has 128 points per node.";

/// Points per node on the ring of the comparison.
const POINTS: u32 = 128;
/// Number of runs; the median counts.
const RUNS: usize = 5;

/// Every row of this area.
pub(crate) fn rows() -> Result<Vec<Row>> {
    let mut rows = Vec::new();
    for (shards, limit_ms) in [(4_096, 50.0), (65_536, 3_000.0)] {
        rows.extend(time(shards, 1_000, limit_ms)?);
    }
    for (shards, nodes) in [(256, 32), (4_096, 100)] {
        rows.extend(moves(shards, nodes)?);
    }
    Ok(rows)
}

struct Work {
    shards: ShardCount,
    copies: Copies,
    /// The last one is the joining node.
    nodes: Vec<Node>,
}

impl Work {
    fn new(shards: u64, nodes: usize) -> Result<Self> {
        let node = |number: usize| Ok(Node::new(NodeName::new(format!("node-{number:04}"))?));
        Ok(Self {
            shards: ShardCount::new(shards)?,
            copies: Copies::new(3)?,
            nodes: (0..nodes).map(node).collect::<Result<_>>()?,
        })
    }

    fn names(&self, nodes: &[Node]) -> Vec<NodeName> {
        nodes.iter().map(|node| node.name.clone()).collect()
    }

    fn cluster(&self, nodes: &[Node]) -> Result<Cluster> {
        Ok(Cluster::new(self.copies, nodes.iter().cloned())?)
    }

    fn dealt(&self, nodes: &[Node]) -> Result<Assignment> {
        Ok(plan(&self.cluster(nodes)?, &Assignment::empty(self.shards))?.assignment)
    }
}

fn time(shards: u64, nodes: usize, limit_ms: f64) -> Result<Vec<Row>> {
    let work = Work::new(shards, nodes)?;
    let before = work.dealt(&work.nodes[..nodes - 1])?;
    let cluster = work.cluster(&work.nodes)?;
    let names = work.names(&work.nodes);
    let ours = median_ms(|| plan(&cluster, &before).map(drop).map_err(Into::into))?;
    let hashed = median_ms(|| {
        rendezvous(&names, work.shards, work.copies);
        Ok(())
    })?;
    let what = format!("plan a join, {shards} shards on {nodes} nodes");
    Ok(vec![row(&what, ours, "limit", limit_ms, "ms"), row(&what, ours, "rendezvous", hashed, "ms")])
}

fn median_ms(mut call: impl FnMut() -> Result<()>) -> Result<f64> {
    let mut times = Vec::with_capacity(RUNS);
    for _ in 0..RUNS {
        let start = Instant::now();
        call()?;
        times.push(start.elapsed());
    }
    times.sort();
    let median = times.get(RUNS / 2).context("no run was timed")?;
    Ok(median.as_secs_f64() * 1_000.0)
}

fn moves(shards: u64, nodes: usize) -> Result<Vec<Row>> {
    let work = Work::new(shards, nodes)?;
    let (all, old) = (work.names(&work.nodes), work.names(&work.nodes[..nodes - 1]));
    let few = work.dealt(&work.nodes[..nodes - 1])?;
    let many = work.dealt(&work.nodes)?;
    let leaving = work.cluster(&work.nodes)?.marking(&all[nodes - 1], NodeState::Gone)?;
    let joined = plan(&work.cluster(&work.nodes)?, &few)?.assignment;
    let left = plan(&leaving, &many)?.assignment;
    let by_rendezvous = |names: &[NodeName]| rendezvous(names, work.shards, work.copies);
    let by_ring = |names: &[NodeName]| ring(names, POINTS, work.shards, work.copies);
    let mut rows = Vec::new();
    let size = format!("{shards} shards");
    let there_and_back = [
        (format!("join, {} to {nodes} nodes, {size}", nodes - 1), movement(&few, &joined, &all), &old, &all),
        (format!("leave, {nodes} to {} nodes, {size}", nodes - 1), movement(&many, &left, &old), &all, &old),
    ];
    for (what, ours, before, after) in there_and_back {
        let hashed = movement(&by_rendezvous(before), &by_rendezvous(after), after);
        rows.extend(compared(&what, ours, "rendezvous", hashed));
        let ringed = movement(&by_ring(before), &by_ring(after), after);
        rows.extend(compared(&what, ours, "ring-128", ringed));
    }
    Ok(rows)
}

fn compared(what: &str, ours: Movement, peer: &str, theirs: Movement) -> [Row; 3] {
    let spread = |m: Movement| f64::from(m.most_copies - m.fewest_copies);
    [
        row(&format!("copies moved: {what}"), ours.adds as f64, peer, theirs.adds as f64, "copies"),
        row(&format!("spread of copies: {what}"), spread(ours), peer, spread(theirs), "copies"),
        row(
            &format!("most primaries on a node: {what}"),
            f64::from(ours.most_primaries),
            peer,
            f64::from(theirs.most_primaries),
            "shards",
        ),
    ]
}

fn row(row: &str, ours: f64, peer: &str, theirs: f64, unit: &str) -> Row {
    Row { row: row.into(), ours, peer: peer.into(), theirs, unit: unit.into() }
}
