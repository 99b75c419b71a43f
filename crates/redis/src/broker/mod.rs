//! The operations on clusters and hosts, in guarded transactions.
//!
//! An operation is a pure planner (what to write, from the [`Tree`] that was read) and a thin shell
//! ([`settle`]) that reads, commits and reads again. Planners of recorded work (tasks, moves) are shared with
//! the coordinators, which complete interrupted operations.
//!
//! Read first: [`Tree`] (the state read), [`edit::Edit`] (how a cluster is changed), [`settle`] (how a change
//! is committed).

mod accept;
mod create;
mod draft;
pub mod edit;
mod entries;
mod error;
mod hosts;
mod moves;
mod place;
mod remove;
mod replace;
mod scale;
mod settle;
mod tasks;
mod tree;
mod users;

pub use accept::{accept_loss, plan_accept_loss, recover};
pub(crate) use create::plan_create_node;
pub use create::{Creation, create_cluster, create_node, plan_nodes};
pub(crate) use draft::created_before;
pub use draft::{Draft, NODES_PER_TXN};
pub(crate) use entries::{cut_owned, join, uncovered};
pub use error::BrokerError;
pub use hosts::{Change, add_host, end_quarantine, plan_end_quarantine, raise_host_epoch, remove_host};
pub use moves::{
    MOVES_PER_TXN, Wish, begin_move, cancel_move, commit_move, plan_begin, plan_cancel, plan_commit,
    plan_retarget, plan_start, retarget_move,
};
pub use place::{Missing, Pool, missing};
pub use remove::{delete_cluster, delete_node, plan_delete, plan_delete_node, plan_release};
pub use replace::{
    OldPrimary, plan_drop_replica, plan_force, plan_give_up, plan_promote, plan_replace, promote,
    replace_node, replacement, replacement_at_home,
};
pub use scale::{
    ScalePlan, Shift, Spreading, plan_rebalance, plan_scale, plan_spread, plan_spreading, rebalance, scale,
};
pub(crate) use scale::{on_draining, plan_shifts};
pub use settle::{Committed, Next, commit, settle};
pub use tasks::{bump_hosts, plan_bump};
pub(crate) use tree::is_bad;
pub use tree::{ClusterTree, HostTree, PROXY_ADDRESS, Seen, Tree};
pub(crate) use users::{DEFAULT_USER, admits_anyone};
pub use users::{UserChange, change_user, delete_user};
