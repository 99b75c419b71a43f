//! Service 2, **not here yet**: a message broker with topics, subscriptions, schemas and tiered storage.
//!
//! It will hold the gRPC front, dispatch and cursors on top of the replicated log, the schema registry and the load
//! manager that moves topics between brokers. It may not know the other services. Until then this crate is empty on
//! purpose: nothing depends on it, and the command line has no word for it.
