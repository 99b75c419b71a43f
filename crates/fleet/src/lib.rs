//! Service 4, **not here yet**: rolling updates of a fleet of hosts.
//!
//! It will hold releases, the elected updater that drains and updates one host after the other, and the worker that
//! carries the steps out. What it asks of the other services it asks through drains, without knowing them. Until then
//! this crate is empty on purpose: nothing depends on it, and the command line has no word for it.
