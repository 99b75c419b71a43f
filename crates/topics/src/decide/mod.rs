//! Pure decisions: facts in, next steps out.

mod assign;
mod balance;

pub use assign::{Step, assign};
pub use balance::{Balance, Move, rebalance};
