//! A connection to the members that can be given up for a new one. A call that gets no answer at all may be sitting on
//! a connection whose peer vanished; whoever comes next should not have to find out again.

use std::sync::Arc;

use arc_swap::ArcSwap;
use etcd_client::{Client, KvClient, WatchClient};

use super::EtcdOptions;
use super::errors::Failure;
use crate::error::{MetaError, Result};

/// Largest answer that is taken from the server: a range of about a million small keys.
const MAX_ANSWER_BYTES: usize = 256 * 1024 * 1024;

/// The present client. It is not one socket: the client keeps one to each endpoint.
pub(super) struct Connection {
    client: ArcSwap<Client>,
}

impl Connection {
    pub(super) async fn open(options: &EtcdOptions) -> Result<Connection> {
        Ok(Connection { client: ArcSwap::from_pointee(dial(options, &options.endpoints).await?) })
    }

    pub(super) fn client(&self) -> Arc<Client> {
        self.client.load_full()
    }

    /// Puts a new client in the place of the present one. Calls under way on the old one go on.
    pub(super) async fn renew(&self, options: &EtcdOptions) -> Result<()> {
        self.client.store(Arc::new(dial(options, &options.endpoints).await?));
        Ok(())
    }

    /// Puts a new client in the place of one that does not answer, unless somebody already did. Calls under way on the
    /// old one go on.
    pub(super) async fn abandon(&self, dead: &Arc<Client>, options: &EtcdOptions) {
        if Arc::ptr_eq(&self.client.load(), dead)
            && let Ok(fresh) = dial(options, &options.endpoints).await
        {
            self.client.compare_and_swap(dead, Arc::new(fresh));
        }
    }
}

/// A client of its own for these endpoints. Sockets are opened when they are needed, except that a user logs in now.
pub(super) async fn dial(options: &EtcdOptions, endpoints: &[String]) -> Result<Client> {
    let connecting = Client::connect(endpoints, Some(options.connect_options()));
    match tokio::time::timeout(options.request_timeout, connecting).await {
        Ok(connected) => connected.map_err(|error| Failure::of(error).of_read()),
        Err(_) => Err(MetaError::Unavailable(format!("no login within {:?}", options.request_timeout))),
    }
}

pub(super) fn kv(client: &Client) -> KvClient {
    client.kv_client().max_decoding_message_size(MAX_ANSWER_BYTES)
}

pub(super) fn watch(client: &Client) -> WatchClient {
    client.watch_client().max_decoding_message_size(MAX_ANSWER_BYTES)
}
