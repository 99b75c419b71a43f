//! What does a holder report while it runs? Its address, and the free space of its disk.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use capstan_log::{HolderId, Host};
use capstan_meta::session::Session;

use crate::keys::AliveKey;
use crate::status::HolderStatus;

/// How often a holder reports.
const EVERY: Duration = Duration::from_secs(2);

/// The time without an answer after which a holder counts as unreachable: longer than a copy may lag.
const SILENCE: Duration = Duration::from_secs(5);

/// The task that reports.
pub(super) struct Reporter {
    pub(super) me: HolderId,
    pub(super) address: SocketAddr,
    pub(super) dir: PathBuf,
    pub(super) session: Session,
    pub(super) host: Host,
}

impl Reporter {
    pub(super) async fn run(self) {
        let key = AliveKey { holder: self.me.clone() };
        let mut reported = None;
        loop {
            let status = self.look().await;
            if reported.as_ref() != Some(&status) {
                self.session.declare(&key, &status);
                reported = Some(status);
            }
            tokio::time::sleep(EVERY).await;
        }
    }

    async fn look(&self) -> HolderStatus {
        let dir = self.dir.clone();
        let space = tokio::task::spawn_blocking(move || nix::sys::statvfs::statvfs(&dir)).await;
        let (free, total) = match space {
            Ok(Ok(space)) => (
                space.blocks_available().saturating_mul(space.fragment_size()),
                space.blocks().saturating_mul(space.fragment_size()),
            ),
            Ok(Err(error)) => {
                tracing::warn!(holder = %self.me, %error, "cannot determine free space, reporting zero");
                (0, 0)
            }
            Err(_) => (0, 0),
        };
        let unreachable = self.host.silent(SILENCE);
        HolderStatus { unreachable, ..HolderStatus::new(self.address, free, total) }
    }
}
