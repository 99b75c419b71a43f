//! Everything on the metadata store: operations, what is left when they are killed, races, and the coordinators.

mod operations;
mod world;
