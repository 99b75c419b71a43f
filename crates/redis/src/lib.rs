//! Service 1, **not here yet**: sharded Redis behind server-side proxies.
//!
//! It will hold the RESP proxy, slots and their migration, the supervisor of redis-server processes and the
//! coordinators that keep them in agreement by epochs. It will know hosts and placement; it may not know the other
//! services. Until then this crate is empty on purpose: nothing depends on it, and the command line has no word for it.
