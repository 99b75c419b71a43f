//! The certificate of this host: renewed at half of its life, here or by a process that has the key of the authority.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use capstan_access::Secret;
use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Description, HostNames, KeyRequest, describe};
use capstan_access::enroll::{Signer, Welcome, signers_list};
use capstan_access::keys::SignerKey;
use capstan_access::spec::SignerRecord;
use capstan_access::tls::check_pair;
use capstan_control::keys::HostId;
use capstan_meta::etcd::TlsRenewal;
use capstan_meta::record::Extra;
use capstan_meta::session::Session;
use capstan_meta::{Store, clock};
use serde_json::json;

use super::process::{LOOP, Process, in_words};
use crate::config::{Config, HostRole, HostTls, Meta};
use crate::{connect, https};

/// Pauses between two looks at the certificate: long enough to cost nothing, short enough for one that lives for seconds.
const PAUSE: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(60));

/// How often the files for TLS to the store are looked at.
const LOOK_AT_FILES: Duration = Duration::from_secs(2);

/// What this process signs with, if it has the key of the authority.
pub(crate) fn signer(config: &Config, redis_secret: Option<String>) -> Result<Option<Arc<Signer>>> {
    let Some(own) = &config.tls else { return Ok(None) };
    let Some(key) = own.ca_key.clone() else { return Ok(None) };
    let welcome = welcome(config, own, redis_secret)?;
    let signer = Signer { certificate: own.ca.clone(), key, life: own.life, welcome };
    // A key that cannot be used is found at the start, not by the first host that asks.
    signer.authority().context("cannot use the authority in tls.dir")?;
    Ok(Some(Arc::new(signer)))
}

/// What all hosts of the cluster share.
fn welcome(config: &Config, own: &HostTls, redis_secret: Option<String>) -> Result<Welcome> {
    let meta = &config.meta;
    let mut settings = vec![("meta.mode", "etcd".to_owned()), ("meta.endpoints", meta.endpoints.join(","))];
    if !meta.prefix.is_empty() {
        settings.push(("meta.prefix", meta.prefix.clone()));
    }
    if let Some(login) = &meta.login {
        settings.push(("meta.user", login.user.clone()));
        settings.push(("meta.password", login.password.clone()));
    }
    let settings = settings.into_iter().map(|(name, value)| (name.to_owned(), Secret::new(value)));
    let role = HostRole::Redis.name().to_owned();
    let of_redis = redis_secret.map(|secret| (role, "redis.secret".to_owned(), Secret::new(secret)));
    let other = meta.tls.ca.as_ref().filter(|ca| **ca != own.ca);
    let meta_authority = other.map(|ca| files::read(ca)).transpose()?;
    Ok(Welcome { settings: settings.collect(), of_role: of_redis.into_iter().collect(), meta_authority })
}

/// Renews the certificate of this host for as long as the process runs and, if it has the key of the authority, offers
/// to sign those of others.
pub(crate) fn start_certificates(
    process: &Process,
    store: &Store,
    session: &Session,
    config: &Config,
    http: SocketAddr,
) -> Result<()> {
    let Some(own) = config.tls.clone() else { return Ok(()) };
    if own.ca_key.is_some() {
        offer(session, &config.host.id, &own, http)?;
    }
    let store = store.clone();
    process.supervisor.start(LOOP, "certificate", move |stop| {
        let (own, store) = (own.clone(), store.clone());
        async move {
            loop {
                let pause = look(&own, &store).await;
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(pause) => {}
                }
            }
        }
    });
    Ok(())
}

/// Replaces the certificates of the connections to the metadata store when their files change.
pub(crate) fn follow_store_tls(process: &Process, renewal: TlsRenewal, meta: &Meta) {
    let meta = meta.clone();
    process.supervisor.start(LOOP, "store certificate", move |stop| {
        let (renewal, meta) = (renewal.clone(), meta.clone());
        async move {
            let mut used = store_files(&meta).map_err(in_words)?;
            loop {
                tokio::select! {
                    () = stop.cancelled() => return Ok(()),
                    () = tokio::time::sleep(LOOK_AT_FILES) => {}
                }
                match renew_store_tls(&renewal, &meta, &used).await {
                    Ok(now) => used = now,
                    Err(error) => {
                        let error = format!("{error:#}");
                        tracing::warn!(
                            error,
                            "cannot use the changed certificates for the store, keeping the former ones"
                        );
                    }
                }
            }
        }
    });
}

/// Returns what is used from now on.
async fn renew_store_tls(renewal: &TlsRenewal, meta: &Meta, used: &[Vec<u8>]) -> Result<Vec<Vec<u8>>> {
    let now = store_files(meta)?;
    if now != used
        && let Some(tls) = connect::tls(meta)?
    {
        if let Some((cert, key)) = &meta.tls.identity {
            check_pair(&format!("{}{}", files::read(cert)?, files::read(key)?))?;
        }
        renewal.renew(tls).await?;
        tracing::info!("certificates for the store reloaded");
    }
    Ok(now)
}

/// The content of the files for TLS to the store.
fn store_files(meta: &Meta) -> Result<Vec<Vec<u8>>> {
    let identity = meta.tls.identity.iter().flat_map(|(cert, key)| [cert, key]);
    meta.tls.ca.iter().chain(identity).map(|file| connect::read(file)).collect()
}

/// Registers this process among those that sign.
fn offer(session: &Session, id: &str, own: &HostTls, http: SocketAddr) -> Result<()> {
    let mut address = http;
    if http.ip().is_unspecified() {
        let named = present(own)?.addresses.into_iter().find(|address| !address.is_loopback());
        address.set_ip(named.context("host.pem names no address at which other hosts reach http.listen")?);
    }
    let authority = describe(files::read(&own.ca)?.as_bytes())?;
    let authority = authority.first().context("ca.pem is empty")?.fingerprint.clone();
    // Several processes of one machine may have the same id.
    let signer: HostId = format!("{id}.{}", std::process::id()).parse()?;
    session.declare(&SignerKey { signer }, &SignerRecord { address, authority, extra: Extra::default() });
    Ok(())
}

/// Renews the certificate if it is due. Returns when to look again.
async fn look(own: &HostTls, store: &Store) -> Duration {
    let renewed = match present(own) {
        Ok(present) if clock::since_epoch().as_secs() < renew_at(own, &present) => Ok(present),
        Ok(present) => renew_from(own, &present, store).await,
        Err(error) => Err(error),
    };
    let now = clock::since_epoch().as_secs();
    match renewed {
        Ok(present) => {
            Duration::from_secs(renew_at(own, &present).saturating_sub(now)).clamp(PAUSE.0, PAUSE.1)
        }
        Err(error) => {
            tracing::warn!(error = format!("{error:#}"), "cannot renew the certificate of this host yet");
            // Several attempts before its end.
            let left = present(own).map_or(0, |present| present.not_after.saturating_sub(now));
            Duration::from_secs(left / 8).clamp(PAUSE.0, PAUSE.1)
        }
    }
}

/// When the certificate is to be renewed, in seconds since 1970.
fn renew_at(own: &HostTls, present: &Description) -> u64 {
    let half = present.renew_at();
    own.renew_every.map_or(half, |every| half.min(present.made_at().saturating_add(every.as_secs())))
}

/// Renews the certificate of this host if it is due and can be renewed here. A process that serves the store, or that
/// connects to it, does so before: with an expired certificate it would reach nothing.
pub(crate) fn renew_overdue(config: &Config) -> Result<()> {
    let Some(own) = config.tls.as_ref().filter(|own| own.ca_key.is_some()) else { return Ok(()) };
    let present = present(own)?;
    if present.is_due(clock::since_epoch().as_secs()) {
        renew_here(own, &present)?;
    }
    Ok(())
}

/// The certificate that this host has now.
fn present(own: &HostTls) -> Result<Description> {
    let chain = describe(files::read(&own.host)?.as_bytes())?;
    chain.into_iter().next().with_context(|| format!("{} is empty", own.host.display()))
}

/// Has the certificate of this host replaced by a new one, whether it is due or not. The store is asked for the processes
/// that sign, unless this host has the key of the authority itself.
pub(crate) async fn renew(own: &HostTls, store: Option<&Store>) -> Result<Description> {
    let present = present(own)?;
    match (&own.ca_key, store) {
        (Some(_), _) => renew_here(own, &present),
        (None, Some(store)) => renew_from(own, &present, store).await,
        (None, None) => bail!("this host does not have the key of the authority, and no store to find one"),
    }
}

async fn renew_from(own: &HostTls, present: &Description, store: &Store) -> Result<Description> {
    if own.ca_key.is_some() {
        return renew_here(own, present);
    }
    let signers = signers_list(store).await?;
    let KeyRequest { key, request } = KeyRequest::generate()?;
    let chain = sign_elsewhere(own, &signers, &request).await?;
    install(own, present, &chain, &key)
}

/// With the key of the authority, for the names that the present certificate has.
fn renew_here(own: &HostTls, present: &Description) -> Result<Description> {
    let authority_key = own.ca_key.as_ref().context("this host does not have the key of the authority")?;
    let KeyRequest { key, request } = KeyRequest::generate()?;
    let addresses = present.addresses.iter().filter(|address| !address.is_loopback()).copied().collect();
    let names = HostNames { host: present.subject.parse()?, addresses };
    let chain = files::read_authority(&own.ca, authority_key)?.sign(&request, &names, own.life)?;
    install(own, present, &chain, &key)
}

/// Asks one process after the other, with the present certificate.
async fn sign_elsewhere(own: &HostTls, signers: &[SocketAddr], request: &str) -> Result<String> {
    let live = own.live()?;
    let mut last = anyhow::anyhow!("no process signs certificates");
    for signer in signers {
        let body = json!({ "request": request });
        match https::post(live.client()?, *signer, "/api/v1/certs/renew", &body).await {
            Ok(answer) => {
                let chain = answer["chain"].as_str().context("the answer has no certificate")?;
                return Ok(chain.to_owned());
            }
            Err(error) => last = error,
        }
    }
    Err(last.context("no process that has the key of the authority signed the certificate"))
}

/// Puts a new certificate in the place of the present one, if it is one of this host.
fn install(own: &HostTls, present: &Description, chain: &str, key: &Secret) -> Result<Description> {
    let new = describe(chain.as_bytes())?.into_iter().next().context("the answer has no certificate")?;
    ensure!(new.subject == present.subject, "the new certificate is made out to {}", new.subject);
    let both = format!("{chain}{}", key.reveal());
    check_pair(&both).context("the new certificate does not belong to its key")?;
    files::replace(&own.host, &both, Readers::Owner)?;
    tracing::info!(
        host = new.subject,
        ends = capstan_control::time::rfc3339(new.not_after),
        "certificate renewed"
    );
    Ok(new)
}
