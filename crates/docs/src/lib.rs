//! Service 3, **not here yet**: a replicated document store.
//!
//! It will hold the HTTP front, queries, storage by tokens with three copies on top of the replicated log, and the
//! balancer that takes nodes in and out in batches. It may not know the other services. Until then this crate is empty
//! on purpose: nothing depends on it, and the command line has no word for it.
