//! Which process completes a move? Every coordinator asks the source repeatedly to release; one that gets
//! `+OK` commits.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_meta::record::Key;
use capstan_meta::{Txn, clock};
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep};

use super::proxies::{Proxies, Reply};
use super::watch::Shared;
use crate::broker::commit_move;
use crate::commit::{self, Committed};
use crate::decide::plan_commit;
use crate::error::BrokerError;
use crate::facts::Tree;
use crate::keys::{ClusterName, MoveKey, ProgressKey};
use crate::nmctl::{Announcement, Claim, Entry, Flags, Message};
use crate::status::{MoveId, MoveProgress, MoveRecord, MoveState};

/// Sources queried concurrently.
const ASKED_AT_ONCE: usize = 32;
/// How often a source is asked. Short: clients wait between its `+OK` and the commit.
const ASK_EVERY: Duration = Duration::from_millis(50);
/// How often progress is written for operators.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);

/// A source to ask: the move, and the epoch of its host.
#[derive(Clone, Debug)]
struct Asked {
    name: ClusterName,
    id: MoveId,
    record: MoveRecord,
    host_epoch: Epoch,
}

/// Moves in progress whose source has them.
fn under_way<P: Proxies>(shared: &Shared<P>, tree: &Tree) -> Vec<Asked> {
    let moves = tree
        .active()
        .flat_map(|(name, cluster)| cluster.moves.iter().map(move |(id, seen)| (name, id, seen)));
    let copying = moves.filter(|(_, _, seen)| seen.record.state == MoveState::Copying);
    copying
        .filter_map(|(name, id, seen)| {
            let epoch = tree.host(&seen.record.source.proxy)?.epoch.as_ref()?.record;
            let confirmed = |proxy| shared.board.confirmed_epoch(proxy);
            let target_epoch = tree.host(&seen.record.target.proxy)?.epoch.as_ref()?.record;
            // Both ends have confirmed it: a release towards a target without the move only makes clients
            // wait.
            let both_confirmed = confirmed(&seen.record.source.proxy) == Some(epoch)
                && confirmed(&seen.record.target.proxy) == Some(target_epoch)
                && tree.is_settled(&seen.record.source.proxy);
            both_confirmed.then(|| Asked {
                name: name.clone(),
                id: *id,
                record: seen.record.clone(),
                host_epoch: epoch,
            })
        })
        .collect()
}

fn releasing(asked: &Asked) -> Option<Message> {
    let Asked { record, .. } = asked;
    let (to, range) = (record.target.proxy.clone(), record.range()?);
    let claim = Claim::Migrating { to, range, pairing: Some(record.epoch) };
    let entry = Entry { db: asked.name.clone(), address: record.source.node.clone(), claim };
    Some(Message::Releasing(Announcement {
        epoch: asked.host_epoch,
        flags: Flags::default(),
        entries: vec![entry],
    }))
}

/// Asks repeatedly, without end.
pub(super) async fn run<P: Proxies>(shared: Arc<Shared<P>>) {
    let (mut trees, mut notes) = (shared.trees.clone(), shared.board.notes());
    let mut written: BTreeMap<(ClusterName, MoveId), Instant> = BTreeMap::new();
    loop {
        notes.see();
        let tree = trees.see();
        let asked = under_way(&shared, &tree);
        written.retain(|(name, id), _| asked.iter().any(|asked| asked.name == *name && asked.id == *id));
        let idle = asked.is_empty();
        let mut asking = JoinSet::new();
        for asked in asked {
            if asking.len() >= ASKED_AT_ONCE {
                asking.join_next().await;
            }
            let due =
                written.get(&(asked.name.clone(), asked.id)).is_none_or(|at| at.elapsed() >= PROGRESS_EVERY);
            if due {
                written.insert((asked.name.clone(), asked.id), Instant::now());
            }
            asking.spawn(ask(shared.clone(), asked, due));
        }
        while asking.join_next().await.is_some() {}
        if idle {
            tokio::select! {
                biased;
                changed = trees.changed() => if changed.is_err() { return },
                changed = notes.changed() => if changed.is_err() { return },
            }
        }
        sleep(ASK_EVERY).await;
    }
}

async fn ask<P: Proxies>(shared: Arc<Shared<P>>, asked: Asked, write_progress: bool) {
    let Some(message) = releasing(&asked) else { return };
    match shared.proxies.send(&asked.record.source.proxy, &message).await {
        Ok(Reply::Done) => {
            if let Err(error) = commit(&shared, &asked).await {
                tracing::warn!(cluster = %asked.name, id = %asked.id, %error, "cannot commit move");
            }
        }
        Ok(Reply::Refused(text) | Reply::Text(text)) if write_progress => {
            if let Some(progress) = progress(&text) {
                write(&shared, &asked, progress).await;
            }
        }
        Ok(Reply::Refused(_) | Reply::Text(_)) | Err(_) => {}
    }
}

/// Clients wait: the view's tree is tried first, and the store is read only if it is outdated.
async fn commit<P: Proxies>(shared: &Shared<P>, asked: &Asked) -> Result<(), BrokerError> {
    let Asked { name, id, record, .. } = asked;
    let planned = plan_commit(&shared.newest(), name, *id, record.epoch, clock::since_epoch().as_secs());
    if let Ok(draft) = planned
        && let Ok(Committed::At(_)) = commit::commit(&shared.store, draft).await
    {
        return Ok(());
    }
    commit_move(&shared.store, name, *id, record.epoch).await
}

/// `MIGRATING copying keys=.. bytes=.. pass=.. dirty=..`; missing fields are allowed.
fn progress(text: &str) -> Option<MoveProgress> {
    let mut words = text.strip_prefix("MIGRATING ")?.split(' ');
    let mut progress = MoveProgress { phase: words.next()?.to_owned(), ..MoveProgress::default() };
    for (name, value) in words.filter_map(|word| word.split_once('=')) {
        let number = value.parse().unwrap_or(0);
        match name {
            "keys" => progress.keys = number,
            "bytes" => progress.bytes = number,
            "pass" | "passes" => progress.pass = number,
            "dirty" => progress.dirty = number,
            other => {
                progress.extra.insert(other.to_owned(), value.into());
            }
        }
    }
    Some(progress)
}

/// Only while the move exists; an unknown outcome does not matter.
async fn write<P: Proxies>(shared: &Shared<P>, asked: &Asked, progress: MoveProgress) {
    let at = clock::since_epoch().as_secs();
    let key = ProgressKey { cluster: asked.name.clone(), id: asked.id };
    let present = MoveKey { cluster: asked.name.clone(), id: asked.id }.present();
    let txn = Txn::new().when(present).then(key.put(&MoveProgress { at, ..progress }));
    if let Err(error) = shared.store.commit(txn).await {
        tracing::debug!(%error, "cannot write progress");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_is_read_as_far_as_it_is_said() {
        let read = progress("MIGRATING catching-up keys=10 bytes=2000 pass=3 dirty=4 scanned=7").unwrap();
        assert_eq!(
            (read.phase.as_str(), read.keys, read.bytes, read.pass, read.dirty),
            ("catching-up", 10, 2000, 3, 4)
        );
        assert_eq!(read.extra["scanned"], "7");
        assert_eq!(progress("ERR no such move"), None);
    }
}
