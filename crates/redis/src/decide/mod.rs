//! What happens next? Pure functions from the [`Tree`](crate::facts::Tree) (and the proxies' reports) to the next
//! transaction, one file per kind of decision.
//!
//! Read first: [`edit::Edit`] (how a cluster is changed), [`Draft`] (a change with its guards), [`recorded`] (work that
//! is not completed), [`dead_nodes`] (what follows from a failure).

mod accept;
pub(crate) mod content;
mod create;
mod draft;
pub mod edit;
mod entries;
pub(crate) mod handover;
pub(crate) mod heal;
mod hosts;
pub(crate) mod in_sync;
mod moves;
mod place;
pub(crate) mod quarantine;
mod recorded;
mod remove;
mod replace;
mod scale;
mod tasks;
mod users;
mod verdict;

pub(crate) use accept::is_waiting;
pub use accept::plan_accept_loss;
pub(crate) use content::settings_of;
pub use content::{Content, Order, awaited_replicas};
pub use create::{Creation, plan_nodes};
pub(crate) use create::{check_request, choose, is_ours, plan_create, plan_create_node, too_few};
pub(crate) use draft::created_before;
pub use draft::{Draft, NODES_PER_TXN};
pub(crate) use entries::{cut_owned, join, uncovered};
pub use heal::{Facts, Sight, dead_nodes, dead_proxies};
pub use hosts::{Change, plan_end_quarantine};
pub(crate) use hosts::{plan_add, plan_raise_epoch, plan_remove};
pub use in_sync::in_sync_changes;
pub use moves::{MOVES_PER_TXN, Wish, plan_begin, plan_cancel, plan_commit, plan_retarget, plan_start};
pub use place::{Missing, Pool, missing};
pub use recorded::{Steps, recorded};
pub use remove::{plan_delete, plan_delete_node, plan_release};
pub(crate) use replace::plan_replace_as;
pub use replace::{
    OldPrimary, plan_drop_replica, plan_force, plan_give_up, plan_promote, plan_replace, replacement,
    replacement_at_home,
};
pub use scale::{ScalePlan, Shift, Spreading, plan_rebalance, plan_scale, plan_spread, plan_spreading};
pub(crate) use scale::{on_draining, plan_resize, plan_shifts};
pub use tasks::plan_bump;
pub use users::UserChange;
pub(crate) use users::{
    DEFAULT_USER, admits_anyone, changed, check_name, configured, plan_users, with_rules, without,
};
