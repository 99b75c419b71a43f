//! The replicated logs of a process: the steward, which decides about all of them, and the holders, which keep them.
//!
//! A role that keeps its data in logs (a topics broker, a docs node) calls [`start_holder`] once for its host and uses
//! the [`Holder`] that it gets. Nothing else is needed: holders find each other by the metadata, the steward assigns,
//! repairs and moves the logs, and it answers the drains of the services in [`SERVICES`].

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use capstan_access::tls::{ClientCerts, LiveTls, TlsFiles};
use capstan_control::keys::{HostId, ServiceName};
use capstan_control::tasks::{Kind, OnFailure, Stage};
use capstan_log::disk;
use capstan_log::net::Tls;
use capstan_meta::backoff::Backoff;
use capstan_meta::session::Session;
use capstan_meta::{Remedy, Store};
use capstan_steward::spec::Policy;
use capstan_steward::{Holder, HolderOptions, Joining, Owner, Steward, StewardError, controller, holder};
use tokio::time::Instant;

use super::listen::bind;
use super::local::LocalHost;
use super::process::{LOOP, Process};
use crate::config::{self, Config, HolderTls, HostTls};

/// Services that have only logs on a host: the steward answers their drains.
pub(crate) const SERVICES: [&str; 2] = ["topics", "docs"];

/// Keeps copies of logs: stops after what uses them has stopped taking work, and before its host leaves.
const HOLDER: Kind = Kind { name: "holder", on_failure: OnFailure::ShutDown, stage: Stage::Working };
/// Files of local hosts: there are many directories on one disk, and little in each.
const SMALL: disk::Options = disk::Options {
    segment_bytes: 16 * 1024 * 1024,
    journal_file_bytes: 8 * 1024 * 1024,
    checkpoint_bytes: 16 * 1024 * 1024,
};
/// How long a holder waits for a metadata store that does not respond yet.
const START_WITHIN: Duration = Duration::from_secs(30);
/// Pauses between attempts to start a holder.
const RETRY: (Duration, Duration) = (Duration::from_millis(100), Duration::from_secs(2));

/// Campaigns among the stewards and, when elected, decides which holders keep and lead which logs.
pub(crate) fn start_steward(process: &Process, store: &Store, session: &Session, id: &str) -> Result<()> {
    let services = SERVICES.iter().map(|name| name.parse()).collect::<Result<Vec<ServiceName>, _>>()?;
    let steward = Steward::new(Policy::default()).answering_for(services);
    let (store, session, id) = (store.clone(), session.clone(), id.to_owned());
    process.supervisor.start(LOOP, "steward", move |stop| {
        let (steward, store, session, id) = (steward.clone(), store.clone(), session.clone(), id.clone());
        async move { Ok(controller::run(steward, &store, &session, &id, |_| {}, &stop).await?) }
    });
    Ok(())
}

/// Whether the holders of `capstan up` may be started: the certificate of the process does not name its local hosts.
pub(crate) fn check_local_holders(settings: &config::Holders) -> Result<()> {
    let guarded = settings.tls.is_some() || settings.listen.ip().is_loopback() || settings.allow_insecure;
    ensure!(
        guarded,
        "holders.listen {} can be reached from other machines, and the holders of `capstan up` have certificates only with \
         holders.tls_cert",
        settings.listen
    );
    Ok(())
}

/// The options of one service's holder on one host.
#[derive(Clone, Debug)]
pub(crate) struct HolderPlace {
    pub(crate) host: HostId,
    pub(crate) service: ServiceName,
    pub(crate) dir: PathBuf,
    pub(crate) listen: SocketAddr,
    pub(crate) advertise: Option<SocketAddr>,
    pub(crate) tls: Option<HolderTls>,
    pub(crate) disk: disk::Options,
    pub(crate) joining: Joining,
}

impl HolderPlace {
    /// The holder of a service on the host that this process stands for.
    pub(crate) fn of_host(config: &Config, service: &str) -> Result<HolderPlace> {
        let settings = &config.holders;
        let place = HolderPlace::new(settings, config.host.id.parse()?, settings.dir.clone(), service, 0)?;
        let of_host =
            |own: &HostTls| HolderTls { cert: own.host.clone(), key: own.host.clone(), ca: own.ca.clone() };
        let tls = place.tls.clone().or_else(|| config.tls.as_ref().map(of_host));
        Ok(HolderPlace { tls, ..place })
    }

    /// The holder of a service on a local host of `capstan up`. The host is drained for the service from now on.
    pub(crate) fn of_local(config: &Config, host: &mut LocalHost, service: &str) -> Result<HolderPlace> {
        let at = u16::try_from(host.number.saturating_sub(1))?;
        let service_name: ServiceName = service.parse()?;
        if !host.services.contains(&service_name) {
            host.services.push(service_name);
        }
        let place = HolderPlace::new(&config.holders, host.id.clone(), host.dir.join("logs"), service, at)?;
        Ok(HolderPlace { disk: SMALL, ..place })
    }

    /// Ports count over the local hosts and, within a host, over the services, so that they are the same at every start.
    fn new(
        settings: &config::Holders,
        host: HostId,
        dir: PathBuf,
        service: &str,
        at: u16,
    ) -> Result<HolderPlace> {
        let each = u16::try_from(SERVICES.len())?;
        let of_host = SERVICES.iter().position(|known| *known == service);
        let of_host = u16::try_from(of_host.with_context(|| format!("{service} keeps no logs"))?)?;
        let count = |mut address: SocketAddr| {
            if address.port() != 0 {
                let port =
                    at.checked_mul(each).and_then(|before| address.port().checked_add(before + of_host));
                address
                    .set_port(port.context("the port of holders.listen or holders.advertise is too high")?);
            }
            anyhow::Ok(address)
        };
        let (listen, advertise) = (count(settings.listen)?, settings.advertise.map(count).transpose()?);
        let (service, dir) = (service.parse()?, dir.join(service));
        let (tls, disk) = (settings.tls.clone(), disk::Options::default());
        Ok(HolderPlace { host, service, dir, listen, advertise, tls, disk, joining: Joining::default() })
    }

    fn options(&self) -> Result<HolderOptions> {
        let id = holder::id_of(&self.host, &self.service)?;
        let mut options =
            HolderOptions::new(id, self.host.clone(), self.service.clone(), std::path::absolute(&self.dir)?);
        (options.disk, options.advertise, options.joining) = (self.disk, self.advertise, self.joining);
        if let Some(files) = &self.tls {
            let tls =
                mutual(files).context("cannot use the certificate, the key or the authority of holders");
            options.log.tls = Some(tls?);
        }
        Ok(options)
    }
}

/// TLS with the files as they are at every handshake.
fn mutual(files: &HolderTls) -> Result<Tls> {
    let live = LiveTls::open(TlsFiles {
        cert: files.cert.clone(),
        key: files.key.clone(),
        authority: Some(files.ca.clone()),
    })?;
    Ok(Tls::new(live.server(ClientCerts::Required)?, live.client()?))
}

/// Starts the holder of a service on a host: binds, opens its directory, registers it under the session of the host and
/// keeps logs until the process stops. The owner learns which logs are opened and closed.
pub(crate) async fn start_holder(
    process: &Process,
    store: &Store,
    session: &Session,
    place: &HolderPlace,
    owner: Arc<dyn Owner>,
) -> Result<Holder> {
    let options = place.options()?;
    let id = options.log.me.clone();
    std::fs::create_dir_all(&options.dir)
        .with_context(|| format!("cannot make {}", options.dir.display()))?;
    let holder = start_soon(store, session, place, &options, &owner)
        .await
        .with_context(|| format!("cannot start holder {id} in {}", options.dir.display()))?;
    tracing::info!(holder = %id, dir = %options.dir.display(), "holder started");
    let running = holder.clone();
    process.start_once(HOLDER, &format!("holder {id}"), async move |stop| {
        stop.cancelled().await;
        running.stop().await.with_context(|| format!("holder {id} did not stop in order"))
    });
    Ok(holder)
}

/// Retries while the metadata store may still be starting.
async fn start_soon(
    store: &Store,
    session: &Session,
    place: &HolderPlace,
    options: &HolderOptions,
    owner: &Arc<dyn Owner>,
) -> Result<Holder> {
    let mut retry = Backoff::new(RETRY.0, RETRY.1, u64::from(std::process::id()));
    let until = Instant::now() + START_WITHIN;
    loop {
        let listener = bind(place.listen, "holders.listen").await?;
        match Holder::start(options.clone(), listener, store, session, owner.clone()).await {
            Ok(holder) => return Ok(holder),
            Err(error) if is_late(&error) && Instant::now() < until => {
                tracing::warn!(holder = %options.log.me, %error, "cannot start holder yet, will retry");
                tokio::time::sleep(retry.next_wait()).await;
            }
            Err(error) => return Err(error.into()),
        }
    }
}

fn is_late(error: &StewardError) -> bool {
    matches!(error.remedy(), Remedy::Retry | Remedy::Refresh)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn holders(listen: &str) -> config::Holders {
        config::Holders {
            listen: listen.parse().unwrap(),
            advertise: None,
            dir: "logs".into(),
            tls: None,
            allow_insecure: false,
        }
    }

    #[test]
    fn ports_count_over_services_and_hosts_and_stay_free_if_asked() {
        let port = |listen, service, at| {
            let place = HolderPlace::new(&holders(listen), "h".parse().unwrap(), "d".into(), service, at);
            place.map(|place| (place.listen.port(), place.dir))
        };
        assert_eq!(port("127.0.0.1:7731", "topics", 0).unwrap(), (7731, "d/topics".into()));
        assert_eq!(port("127.0.0.1:7731", "docs", 2).unwrap(), (7736, "d/docs".into()));
        assert_eq!(port("127.0.0.1:0", "docs", 2).unwrap().0, 0);
        assert!(port("127.0.0.1:65535", "docs", 0).is_err());
        assert!(port("127.0.0.1:7731", "redis", 0).is_err());
    }
}
