//! Everything on the metadata store: operations, interruptions, races, and the coordinators.

mod answers;
mod coordinators;
mod deeds;
mod health;
mod kills;
mod operations;
mod pairings;
mod races;
mod repairs;
mod secrets;
mod simulation;
pub mod tap;
mod users;
pub mod world;
