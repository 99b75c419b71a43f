//! Everything on the metadata store: operations, what is left when they are killed, races, and the coordinators.

mod answers;
mod coordinators;
mod deeds;
mod kills;
mod operations;
mod pairings;
mod races;
mod repairs;
mod simulation;
pub mod tap;
pub mod world;
