//! Service 2: a message broker that keeps what it acknowledges.
//!
//! Topics in namespaces, producers, subscriptions with cursors. A topic is a replicated log: a message is acknowledged
//! when it is committed there. The broker that leads a topic's log serves the topic; the log moves, the topic follows.
//! The wire and the metadata are those of the document `004`, so that clients of the public broker work unchanged.
//!
//! This crate knows topics, their logs and their clients. It may not know other services, and it does not decide which
//! holder leads a log: that is the steward's.
//!
//! Read first: [`spec::TopicRecord`] (what a topic is), [`Broker`] (how topics are served), `data::dispatch::Dispatch`
//! (which message goes to which consumer).

pub mod keys;
pub mod spec;
pub mod status;

pub mod error;

pub mod facts;

pub mod decide;

pub mod commit;
pub mod controller;

pub mod agent;

mod data;

pub mod tier;

pub mod api;
pub mod check;
pub mod metrics;

pub mod wire;

pub use agent::{Broker, BrokerOptions, BrokerTls};
pub use controller::SERVICE;
pub use error::TopicsError;
pub use spec::TopicName;
