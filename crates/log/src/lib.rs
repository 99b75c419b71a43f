//! The replicated log, **not here yet**: durable on every in-sync holder before it is acknowledged, fenced by epochs.
//!
//! Topics and document tokens will be logs of this kind; the in-sync set and the epoch of each will be kept in the
//! metadata store. It may not know what is written into it. Until then this crate is empty on purpose: nothing depends
//! on it.
