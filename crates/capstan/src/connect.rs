//! How an operator's command finds the metadata store: what was told, else what `capstan up` left behind, else the default.

use std::path::Path;

use anyhow::{Context as _, Result};
use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdIdentity, EtcdOptions, EtcdTls, EtcdUser};

use crate::config::{Layers, Meta, Origin};
use crate::daemon::Endpoints;

/// Connects to the store that the settings name.
pub(crate) async fn connect(meta: &Meta) -> Result<Store> {
    let mut options = EtcdOptions::new(meta.endpoints.clone()).prefix(meta.prefix.clone());
    options.user = meta
        .login
        .as_ref()
        .map(|login| EtcdUser { name: login.user.clone(), password: login.password.clone() });
    options.tls = tls(meta)?;
    let store = Etcd::connect(options).await.with_context(|| {
        format!(
            "cannot reach the metadata store at {}\nIs it running (capstan up)? Another one is chosen with --meta or \
             CAPSTAN_META.\nCause",
            meta.endpoints.join(",")
        )
    })?;
    Ok(Store::new(store))
}

fn tls(meta: &Meta) -> Result<Option<EtcdTls>> {
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

/// Takes the endpoint of a `capstan up` in the data directory, if nobody said anything about endpoints.
pub(crate) fn discover(layers: &Layers, meta: &mut Meta) {
    let told =
        |path: &str| layers.settings.get(path).is_some_and(|setting| setting.origin != Origin::Default);
    if told("meta.endpoints") || told("meta.listen") {
        return;
    }
    if let Some(endpoints) = Endpoints::of_dir(&meta.dir) {
        meta.endpoints = vec![endpoints.meta];
    }
}
