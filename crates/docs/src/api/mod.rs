//! What clients, the command line and operators call.
//!
//! - `serve.rs`: connections of clients. `http.rs`: the routes. `answer.rs`: what an answer looks like. `access.rs`: who may do what.
//! - `catalogue.rs`: databases, collections and indexes. `documents.rs`: what is done with documents.
//! - `unique.rs`: values that only one document may have. `attachments.rs`: files of a document.
//! - `backup.rs`: saves everything to a directory and puts it back. `archive.rs`: backups that nodes keep.
//! - `admin.rs`: access keys and users. `nodes.rs`: nodes and moves. `plan.rs`: moves in advance. `client.rs`: the way of the command line to a node.

mod access;
mod admin;
mod answer;
pub(crate) mod archive;
mod attachments;
mod backup;
mod catalogue;
mod client;
mod demo;
mod documents;
mod http;
pub(crate) mod nodes;
mod plan;
pub(crate) mod serve;
mod unique;

pub use admin::{KeyMade, KeyScope, Keys};
pub use backup::{Manifest, back_up, restore};
pub use catalogue::Catalogue;
pub use client::{Client, Event};
pub use demo::create_demo;
pub(crate) use documents::Documents;
pub use nodes::{MoveLine, NodeLine, Nodes};
pub use plan::MovePlan;
pub use serve::{ConnectionLimits, serve};
