//! NATS JetStream for comparison: the same payloads, as many publishers, each waiting for its acknowledgment.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Result;
use tokio::sync::Mutex;

use super::{APPENDERS, Size, append_rate, entry};
use crate::load::{load, median};
use crate::nats::{Connection, Nats, Version};
use crate::{Row, progress};

const SUBJECT: &str = "bench.x";

/// The row of NATS JetStream, or `None` and a message about what is missing.
pub(super) async fn row(size: Size, dir: &Path) -> Result<Option<Row>> {
    let Some(version) = Version::installed() else {
        progress("no NATS JetStream: nats-server is not in the PATH (Debian: apt-get install nats-server)");
        return Ok(None);
    };
    let peer = version.peer();
    let (mut ours, mut theirs) = (vec![], vec![]);
    for round in 0..size.rounds {
        progress(&format!("{peer}, round {}", round + 1));
        let store = dir.join(format!("nats-{round}"));
        let nats = Nats::start(&store, &version)?;
        let rate = publish_rate(&nats, size.cell).await;
        nats.stop().await?;
        theirs.push(rate?);
        std::fs::remove_dir_all(&store)?;
        ours.push(append_rate(&dir.join("beside-nats"), 1, 1, size.cell).await?);
    }
    Ok(Some(Row::new(
        "Appends acknowledged, 64 publishers",
        median(ours),
        &peer,
        median(theirs),
        "entries/s",
    )))
}

async fn publish_rate(nats: &Nats, time: Duration) -> Result<f64> {
    nats.create_stream("bench", SUBJECT).await?;
    let mut publishers = Vec::new();
    for number in 0..APPENDERS {
        let inbox = format!("_INBOX.p{number}");
        publishers.push(Arc::new(Mutex::new(Connection::dial(nats.port, &inbox).await?)));
    }
    let publishers = Arc::new(publishers);
    let published = load(APPENDERS, time, move |client, _| {
        let publisher = Arc::clone(&publishers[client]);
        async move {
            let mut publisher = publisher.lock().await;
            publisher.publish(SUBJECT, &entry()).await?;
            publisher.acknowledgment().await
        }
    });
    Ok(published.await?.rate)
}
