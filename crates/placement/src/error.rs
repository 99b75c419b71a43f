//! Errors of the planners' input.

/// Why there is no plan: what happened, to which object, and what to do next.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlacementError {
    /// A node or domain name that is not valid in a key or on a command line.
    #[error(
        "name {name:?} is not usable: {reason}; use 1 to 128 letters, digits, '.', '_', '-', ':', '/' or '@'"
    )]
    BadName {
        /// The given text.
        name: String,
        /// The violated rule.
        reason: &'static str,
    },
    /// Two nodes have the same name.
    #[error("node {name} is listed twice; give every node its own name")]
    DuplicateNode {
        /// The repeated name.
        name: String,
    },
    /// A weight of zero, or beyond any real ratio of machine sizes.
    #[error(
        "weight {weight} is outside 1..={max}; to empty a node mark it as retiring instead of weighing it 0"
    )]
    BadWeight {
        /// The given weight.
        weight: u64,
        /// The largest weight accepted.
        max: u32,
    },
    /// A number of copies of zero, or too large.
    #[error("{copies} copies per shard is outside 1..={max}; choose a number in that range")]
    BadCopies {
        /// The given number.
        copies: u64,
        /// The largest number accepted.
        max: u8,
    },
    /// No shards, or more than the planner accepts.
    #[error("{shards} shards is outside 1..={max}; choose a number in that range")]
    BadShardCount {
        /// The given number.
        shards: u64,
        /// The largest number accepted.
        max: u32,
    },
    /// A shard number beyond the last shard.
    #[error("shard {shard} does not exist: the last one is {last}; name a shard in 0..={last}")]
    NoSuchShard {
        /// The given number.
        shard: u64,
        /// The number of the last shard.
        last: u32,
    },
    /// More nodes than the planner accepts.
    #[error("{nodes} nodes are more than the {max} that one plan covers; split the cluster")]
    TooManyNodes {
        /// The given number.
        nodes: usize,
        /// The largest number accepted.
        max: usize,
    },
    /// There are fewer nodes than copies.
    #[error(
        "{copies} copies need {copies} nodes that stay, and there are {serving}; add nodes or ask for fewer copies"
    )]
    TooFewNodes {
        /// Copies per shard.
        copies: u8,
        /// Nodes that are neither retiring nor gone.
        serving: usize,
    },
    /// The present assignment names a node that is not in the node list.
    #[error(
        "shard {shard} is held by {node}, which is not in the node list; list it (as gone, if it is) or correct the assignment"
    )]
    UnknownNode {
        /// The shard whose entry is wrong.
        shard: u32,
        /// The unknown name.
        node: String,
    },
    /// One node is listed twice for one shard.
    #[error("shard {shard} names {node} twice among its holders; name every holder once")]
    DuplicateHolder {
        /// The shard whose entry is wrong.
        shard: u32,
        /// The repeated holder.
        node: String,
    },
    /// The primary of a shard has no copy of it.
    #[error("shard {shard} has primary {node}, which is not among its holders; name a holder as primary")]
    PrimaryHoldsNothing {
        /// The shard whose entry is wrong.
        shard: u32,
        /// The given primary.
        node: String,
    },
    /// The shards of an assignment are not numbered 0, 1, 2, and so on.
    #[error(
        "the assignment has shard {found} where shard {expected} belongs; list every shard once, in order"
    )]
    ShardOutOfOrder {
        /// The expected number.
        expected: u32,
        /// The number that was found.
        found: u32,
    },
    /// A slot range that is empty, reversed or beyond the last slot.
    #[error("slot range {first}-{last} is not within 0-16383 in ascending order; correct it")]
    BadSlotRange {
        /// First slot of the range.
        first: u32,
        /// Last slot of the range.
        last: u32,
    },
    /// One slot with two owners.
    #[error("slot {slot} is owned by both {one} and {other}; give it one owner")]
    SlotOwnedTwice {
        /// The slot in question.
        slot: u16,
        /// One owner.
        one: String,
        /// The other owner.
        other: String,
    },
    /// A slot owner that is not in the node list.
    #[error(
        "slots {first}-{last} are owned by {node}, which is not in the node list; list it or correct the ranges"
    )]
    UnknownSlotOwner {
        /// First slot of the range.
        first: u16,
        /// Last slot of the range.
        last: u16,
        /// The unknown name.
        node: String,
    },
    /// A node without capacity, or an invalid policy, for the load planner.
    #[error("{what} is {value}, outside {low}..={high}; choose a number in that range")]
    BadLoadSetting {
        /// The setting.
        what: &'static str,
        /// The given value.
        value: u64,
        /// Smallest accepted value.
        low: u64,
        /// Largest accepted value.
        high: u64,
    },
    /// A unit of load was reported twice, or on an unknown node.
    #[error("{unit} is reported {problem}; report each one once, on a listed node or on none")]
    BadLoadReport {
        /// The unit of load, as text.
        unit: String,
        /// What is wrong with it.
        problem: String,
    },
    /// The solver stopped before all rules held, which its theory excludes.
    #[error(
        "no layout satisfies all rules ({short} copies could not be placed); this is a defect of the planner, please report the input"
    )]
    Unsolved {
        /// Copies that were not placed.
        short: u64,
    },
}
