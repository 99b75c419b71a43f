//! The data path: publish, read, deliver, acknowledge. It never waits for the metadata store.
//!
//! A [`Partition`](partition::Partition) is a topic that this broker leads in one epoch of its log. What consumers get is
//! decided by [`Dispatch`](dispatch::Dispatch), which is pure; a [`Subscription`](subscription::Subscription) is the
//! shell around it.

pub(crate) mod dispatch;
pub(crate) mod envelope;
pub(crate) mod keyring;
pub(crate) mod ledger;
pub(crate) mod message;
pub(crate) mod partition;
pub(crate) mod producers;
pub(crate) mod publish;
pub(crate) mod pump;
pub(crate) mod read;
pub(crate) mod recent;
pub(crate) mod retain;
pub(crate) mod seats;
pub(crate) mod subscription;
pub(crate) mod throttle;

#[cfg(test)]
mod simulation;

use std::future::Future;

/// Runs a future that must not end with the request that began it: it ends by itself.
#[expect(clippy::disallowed_methods, reason = "bounded by what it does: one drain of a queue, one pump")]
pub(crate) fn detach(future: impl Future<Output = ()> + Send + 'static) {
    tokio::spawn(future);
}

/// Milliseconds since 1970.
pub(crate) fn now_ms() -> u64 {
    u64::try_from(capstan_meta::clock::since_epoch().as_millis()).unwrap_or(u64::MAX)
}
