//! How does an operator's command find the metadata store? By the settings, else by the file of a running `capstan up`,
//! else by the default.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context as _, Result};
use capstan_access::Secret;
use capstan_meta::backoff::Backoff;
use capstan_meta::etcd::{Etcd, EtcdIdentity, EtcdOptions, EtcdTls, EtcdUser, TlsRenewal};
use capstan_meta::{MetaError, Store};

use crate::config::{Layers, Meta, Origin};
use crate::daemon::{Endpoints, key_of_dir};

/// Pauses between attempts of a daemon to connect to the store.
const RETRY: (Duration, Duration) = (Duration::from_millis(200), Duration::from_secs(5));

/// Connects to the store that the settings name.
pub(crate) async fn connect(meta: &Meta) -> Result<Store> {
    Ok(Store::new(connect_etcd(meta).await?))
}

async fn connect_etcd(meta: &Meta) -> Result<Etcd> {
    let mut options = EtcdOptions::new(meta.endpoints.clone()).prefix(meta.prefix.clone());
    options.user = meta
        .login
        .as_ref()
        .map(|login| EtcdUser { name: login.user.clone(), password: login.password.clone() });
    options.tls = tls(meta)?;
    Etcd::connect(options).await.with_context(|| {
        format!(
            "cannot reach the metadata store at {}\nIs it running (capstan up)? Another one is chosen with --meta or \
             CAPSTAN_META.\nCause",
            meta.endpoints.join(",")
        )
    })
}

/// The same for a daemon: waits for a store that does not respond yet. Daemons start in any order.
/// With TLS there is also a way to have its certificates replaced.
pub(crate) async fn connect_patiently(meta: &Meta) -> Result<(Store, Option<TlsRenewal>)> {
    let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(std::process::id()));
    loop {
        match connect_etcd(meta).await {
            Ok(etcd) => {
                let renewal = meta.tls.ca.is_some().then(|| etcd.tls_renewal());
                return Ok((Store::new(etcd), renewal));
            }
            Err(error) if is_unavailable(&error) => {
                let endpoints = meta.endpoints.join(",");
                tracing::warn!(endpoints, cause = %error.root_cause(), "cannot reach metadata store, will retry");
            }
            Err(error) => return Err(error),
        }
        tokio::time::sleep(retry.next_wait()).await;
    }
}

fn is_unavailable(error: &anyhow::Error) -> bool {
    let known = error.chain().find_map(|cause| cause.downcast_ref::<MetaError>());
    known.is_some_and(|known| matches!(known, MetaError::Unavailable(_)))
}

/// The files for TLS to the store, as they are now.
pub(crate) fn tls(meta: &Meta) -> Result<Option<EtcdTls>> {
    let Some(ca) = &meta.tls.ca else { return Ok(None) };
    let identity = match &meta.tls.identity {
        Some((cert, key)) => Some(EtcdIdentity { cert: read(cert)?, key: read(key)? }),
        None => None,
    };
    Ok(Some(EtcdTls { ca: read(ca)?, identity, domain: None }))
}

/// Reads a file that the settings name.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    std::fs::read(path).with_context(|| format!("cannot read {}", path.display()))
}

/// Uses the endpoint of a `capstan up` in the data directory, if no endpoint is set.
pub(crate) fn discover(layers: &Layers, meta: &mut Meta) {
    if let Some(endpoints) = local(layers, meta) {
        meta.endpoints = vec![endpoints.meta];
    }
}

/// The access key of a `capstan up` in the data directory, if that is the one that commands use.
pub(crate) fn local_key(layers: &Layers, meta: &Meta) -> Result<Option<Secret>> {
    match local(layers, meta) {
        Some(_) => key_of_dir(&meta.dir),
        None => Ok(None),
    }
}

/// The `capstan up` in the data directory, if no endpoint is set.
fn local(layers: &Layers, meta: &Meta) -> Option<Endpoints> {
    let told =
        |path: &str| layers.settings.get(path).is_some_and(|setting| setting.origin != Origin::Default);
    if told("meta.endpoints") || told("meta.listen") {
        return None;
    }
    Endpoints::of_dir(&meta.dir)
}
