//! The binary as its users meet it: real processes, real files, real clients.

mod bench;
mod binary;
mod config;
mod docs;
mod exits;
mod golden;
mod help;
mod meta;
mod up;
