//! How does a holder follow the records? It tracks which logs have changed, and performs its duty for each, many
//! concurrently, with retries.

use std::collections::{BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use capstan_log::config::Incarnation;
use capstan_log::keys::{LogKey, LogKeys};
use capstan_log::net::AddressBook;
use capstan_log::{HolderId, Host, LogEpoch, LogError, LogName, Standing};
use capstan_meta::record::Key;
use capstan_meta::view::{Delta, Ranges, Snapshot, View};
use tokio::sync::watch;
use tokio::task::JoinSet;

use super::Owner;
use super::duty::{Duty, duty};
use crate::error::StewardError;
use crate::keys::{Alive, AliveKey, HandoverKey, Handovers};

/// Logs that are opened, closed or handed over concurrently.
const AT_ONCE: usize = 64;
/// How long a log accepts no appends for a handover; then it continues as before, and the handover is retried.
const HAND_OVER_WITHIN: Duration = Duration::from_secs(3);
/// Pause before a failed duty is retried.
const RETRY: Duration = Duration::from_millis(500);

/// The ranges of a holder's view.
pub(super) fn ranges() -> Ranges {
    Ranges::new().with(&LogKeys {}).with(&Handovers {}).with(&Alive {})
}

/// Fills in the addresses of all holders.
pub(super) fn fill(book: &AddressBook, snapshot: &Snapshot) {
    for (key, status) in snapshot.list(&Alive {}).iter() {
        book.set(key.holder.clone(), status.record.address);
    }
}

/// The task that follows the records.
pub(super) struct Follower {
    me: HolderId,
    host: Host,
    owner: Arc<dyn Owner>,
    book: AddressBook,
    turned: watch::Sender<u64>,
    /// Logs that were opened and not closed since.
    open: HashMap<LogName, Incarnation>,
    /// Logs whose duty may be pending.
    todo: BTreeSet<LogName>,
    /// Logs whose duty failed; they are retried together.
    failed: BTreeSet<LogName>,
    /// Logs with a duty in progress.
    busy: HashSet<LogName>,
}

/// The outcome of a duty.
struct Done {
    log: LogName,
    outcome: Result<Deed, StewardError>,
}

enum Deed {
    Opened(Incarnation),
    Closed,
    /// Closed, and its copy could not be deleted: the record may name this holder again by now.
    NotDeleted(LogError),
    HandedOver,
}

impl Follower {
    pub(super) fn new(
        me: HolderId,
        host: Host,
        owner: Arc<dyn Owner>,
        book: AddressBook,
        turned: watch::Sender<u64>,
    ) -> Follower {
        let (open, busy) = (HashMap::new(), HashSet::new());
        let (todo, failed) = (BTreeSet::new(), BTreeSet::new());
        Follower { me, host, owner, book, turned, open, todo, failed, busy }
    }

    pub(super) async fn run(mut self, view: Arc<View>) {
        let mut changes = view.changes();
        let first = changes.mark_seen();
        fill(&self.book, &first);
        self.todo.extend(first.list(&LogKeys {}).iter().map(|(key, _)| key.log.clone()));
        let mut doing = JoinSet::new();
        loop {
            self.begin(&view.snapshot(), &mut doing);
            tokio::select! {
                delta = changes.next() => match delta {
                    Some(delta) => self.note(&delta),
                    None => return,
                },
                Some(done) = doing.join_next() => match done {
                    Ok(done) => self.finish(done),
                    Err(error) => {
                        tracing::error!(%error, "duty of holder panicked, checking all logs again");
                        self.todo.extend(self.busy.drain());
                    }
                },
                () = tokio::time::sleep(RETRY), if !self.failed.is_empty() => {
                    self.todo.append(&mut self.failed);
                }
            }
        }
    }

    fn note(&mut self, delta: &Delta) {
        for change in delta.changes() {
            let Some(kv) = change.after.or(change.before) else { continue };
            let path = kv.key_text();
            if let Some(key) = LogKey::parse(&path) {
                self.todo.insert(key.log);
            } else if let Some(key) = HandoverKey::parse(&path) {
                self.todo.insert(key.log);
            } else if let Some(key) = AliveKey::parse(&path)
                && let Ok(Some(status)) = delta.after.get(&key)
            {
                self.book.set(key.holder, status.record.address);
            }
        }
    }

    /// Starts pending duties, up to the limit.
    fn begin(&mut self, snapshot: &Snapshot, doing: &mut JoinSet<Done>) {
        let mut later = BTreeSet::new();
        while self.busy.len() < AT_ONCE
            && let Some(log) = self.todo.pop_first()
        {
            if self.busy.contains(&log) {
                later.insert(log);
                continue;
            }
            let duty = duty(snapshot, &self.me, &log);
            if self.is_done(&duty, &log) {
                continue;
            }
            self.busy.insert(log.clone());
            let deed = self.deed(log.clone(), duty);
            doing.spawn(async move { Done { outcome: deed.await, log } });
        }
        self.todo.append(&mut later);
    }

    fn is_done(&self, duty: &Duty, log: &LogName) -> bool {
        match duty {
            Duty::Keep(incarnation) => self.open.get(log) == Some(incarnation),
            Duty::Close => !self.open.contains_key(log),
            Duty::Discard => !self.open.contains_key(log) && !self.host.has_copy(log),
            Duty::HandOver { .. } => false,
            Duty::Wait => true,
        }
    }

    fn deed(
        &self,
        log: LogName,
        duty: Duty,
    ) -> impl Future<Output = Result<Deed, StewardError>> + Send + 'static {
        let (host, owner) = (self.host.clone(), self.owner.clone());
        let open = self.open.get(&log).copied();
        async move {
            match duty {
                Duty::HandOver { incarnation, epoch, to } if open == Some(incarnation) => {
                    hand_over(&host, &log, epoch, &to).await?;
                    Ok(Deed::HandedOver)
                }
                Duty::Keep(_) | Duty::HandOver { .. } | Duty::Wait => {
                    // Deleted and created again: the open copy belongs to the deleted log.
                    close(&host, &*owner, &log, open);
                    let opened = host.open(&log, owner.snapshots(&log)).await?;
                    owner.opened(&opened);
                    Ok(Deed::Opened(opened.incarnation()))
                }
                Duty::Close => {
                    close(&host, &*owner, &log, open);
                    Ok(Deed::Closed)
                }
                Duty::Discard => {
                    close(&host, &*owner, &log, open);
                    Ok(host.delete(&log).await.map_or_else(Deed::NotDeleted, |()| Deed::Closed))
                }
            }
        }
    }

    fn finish(&mut self, done: Done) {
        let Done { log, outcome } = done;
        self.busy.remove(&log);
        match outcome {
            Ok(Deed::Opened(incarnation)) => {
                self.open.insert(log.clone(), incarnation);
                // Changes made while it was opened, a handover for example, are checked again.
                self.todo.insert(log);
            }
            Ok(Deed::Closed) => drop(self.open.remove(&log)),
            Ok(Deed::NotDeleted(error)) => {
                tracing::warn!(%log, %error, "copy is not deleted, will look again");
                self.open.remove(&log);
                self.failed.insert(log);
            }
            Ok(Deed::HandedOver) => {}
            Err(error) => {
                match error {
                    // Every log passes through this when its primary starts.
                    StewardError::Log(LogError::Beginning(_)) => {
                        tracing::debug!(%log, %error, "log does not match its record yet, will retry");
                    }
                    _ => tracing::warn!(%log, %error, "log does not match its record yet, will retry"),
                }
                self.failed.insert(log);
            }
        }
        self.turned.send_modify(|turns| *turns += 1);
    }
}

fn close(host: &Host, owner: &dyn Owner, log: &LogName, open: Option<Incarnation>) {
    if open.is_some() {
        host.close(log);
        owner.closed(log);
    }
}

/// Hands over to another holder, if this one leads, with all its appends committed, so that clients see only a pause.
async fn hand_over(host: &Host, name: &LogName, epoch: LogEpoch, to: &HolderId) -> Result<(), StewardError> {
    let Some(log) = host.log(name) else { return Ok(()) };
    let standing = log.standing().borrow().clone();
    match standing {
        Standing::Leading { epoch: leading, .. } if leading == epoch => {
            log.hand_over(to, HAND_OVER_WITHIN).await?;
            Ok(())
        }
        // It leads soon, or the record changes, which triggers another duty.
        Standing::Following { .. } | Standing::Leading { .. } => {
            Err(LogError::Beginning(name.clone()).into())
        }
        Standing::Out => Ok(()),
    }
}
