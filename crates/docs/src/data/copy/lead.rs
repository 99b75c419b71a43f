//! How does a copy lead? Batches of commands, one after the other, in one epoch.

use std::sync::atomic::Ordering;

use bytes::Bytes;
use capstan_log::{Fate, LogEpoch, LogError, Offset};
use capstan_meta::clock;

use super::{Job, PAUSE, READ_BYTES, Worker};
use crate::data::command::{Reply, Write};
use crate::data::entry;
use crate::data::evaluate::{build, evaluate, is_wide};
use crate::data::state::{Collection, Draft, parse};
use crate::error::DocsError;
use crate::spec::CollectionId;
use crate::storage::layout;

/// Commands of one batch.
const BATCH: usize = 256;
/// Bytes of changes after which a batch takes no further command: one more document still fits into an append.
const BATCH_BYTES: usize = 1024 * 1024;

/// Why leading has ended.
struct Ended;

/// An index that is being built.
struct Building {
    collection: CollectionId,
    after: Option<Vec<u8>>,
}

impl Worker {
    /// Leads until the epoch ends.
    pub(super) async fn lead(&mut self, epoch: LogEpoch, begun: Offset) {
        if self.catch_up(begun).await.is_err() {
            return;
        }
        if self.is_ahead().await {
            return self.refuse_writes().await;
        }
        let mut building = self.unfinished();
        let mut carried = None;
        loop {
            let first = match carried.take() {
                Some(job) => Some(job),
                None if building.is_some() => self.queue.try_recv().ok(),
                None => tokio::select! {
                    biased;
                    changed = self.standing.changed() => {
                        if changed.is_err() { self.queue.close(); }
                        return;
                    }
                    job = self.queue.recv() => match job {
                        Some(job) => Some(job),
                        None => return,
                    },
                },
            };
            let led = match first {
                Some(job) if is_wide(&job.write) => {
                    let led = self.wide(epoch, job).await;
                    building = building.or_else(|| self.unfinished());
                    led
                }
                Some(job) => {
                    let (led, rest) = self.batch(epoch, job).await;
                    carried = rest;
                    led
                }
                None => Ok(()),
            };
            let led = match (led, &mut building) {
                (Ok(()), Some(work)) => self.build_step(epoch, work).await,
                (led, _) => led.map(|()| true),
            };
            match led {
                Ok(true) => {}
                Ok(false) => building = self.unfinished(),
                Err(Ended) => {
                    if let Some(job) = carried {
                        job.reply.send(Err(self.not_primary())).ok();
                    }
                    return;
                }
            }
        }
    }

    /// Whether this copy has applied entries that its log does not have. New ones would get their offsets, and would be
    /// acknowledged without being applied.
    async fn is_ahead(&self) -> bool {
        let end = self.log.status().await.map(|status| status.end);
        end.is_ok_and(|end| self.data.applied().next > end.0)
    }

    /// Refuses every write until this copy stands differently. Reads are answered: what is there can be exported.
    async fn refuse_writes(&mut self) {
        tracing::error!(token = %self.data.token, "the log has lost entries that were applied; writes are refused");
        self.data.is_ahead.store(true, Ordering::Relaxed);
        let token = self.data.token;
        loop {
            tokio::select! {
                biased;
                changed = self.standing.changed() => {
                    if changed.is_err() { self.queue.close(); }
                    break;
                }
                job = self.queue.recv() => match job {
                    Some(job) => {
                        let text = format!("the log of token {token} has lost entries; see capstan status");
                        job.reply.send(Err(DocsError::Broken(text))).ok();
                    }
                    None => break,
                },
            }
        }
        self.data.is_ahead.store(false, Ordering::Relaxed);
    }

    /// Applies everything before an offset.
    async fn catch_up(&mut self, until: Offset) -> Result<(), Ended> {
        loop {
            let from = Offset(self.data.applied().next);
            if from >= until {
                return Ok(());
            }
            match self.log.read(from, READ_BYTES).await {
                Ok(batch) => {
                    let entries: Vec<_> = batch.entries.into_iter().map(|e| (e.offset.0, e.data)).collect();
                    if !self.apply(from.0, &entries, batch.next.0).await || batch.next == from {
                        tokio::time::sleep(PAUSE).await;
                    }
                }
                Err(error) => {
                    tracing::warn!(token = %self.data.token, %error, "log cannot be read; trying again");
                    tokio::time::sleep(PAUSE).await;
                }
            }
            if self.standing.has_changed().unwrap_or(true) {
                return Err(Ended);
            }
        }
    }

    /// Evaluates and commits several commands. A command that must stand alone is handed back.
    async fn batch(&mut self, epoch: LogEpoch, first: Job) -> (Result<(), Ended>, Option<Job>) {
        let now = now();
        let (mut entries, mut answers, mut carried) = (Vec::new(), Vec::new(), None);
        let view = self.data.view();
        {
            let mut draft = Draft::new(&view);
            let (mut next, mut bytes) = (Some(first), 0);
            while let Some(job) = next.take() {
                if is_wide(&job.write) {
                    carried = Some(job);
                    break;
                }
                let answer = match evaluate(&mut draft, &job.target, &job.write, None, now) {
                    Ok(step) => {
                        let changes = draft.take();
                        if !changes.is_empty() {
                            bytes += entry::size(&changes);
                            entries.push(entry::encode(&changes));
                        }
                        Ok(step.reply)
                    }
                    Err(error) => {
                        draft.forget();
                        Err(error)
                    }
                };
                answers.push((job.reply, answer));
                if answers.len() < BATCH && bytes < BATCH_BYTES {
                    next = self.queue.try_recv().ok();
                }
            }
        }
        let committed = self.commit(epoch, entries).await;
        let ended = if let Err((error, ended)) = committed {
            for (reply, _) in answers {
                reply.send(Err(error.clone())).ok();
            }
            if ended { Err(Ended) } else { Ok(()) }
        } else {
            for (reply, answer) in answers {
                reply.send(answer).ok();
            }
            Ok(())
        };
        (ended, carried)
    }

    /// Carries out a command over many keys, step by step; each step is committed before the next one is evaluated.
    async fn wide(&mut self, epoch: LogEpoch, job: Job) -> Result<(), Ended> {
        let (mut after, mut changed, mut refused) = (None, Vec::new(), None::<(i64, String)>);
        loop {
            let view = self.data.view();
            let step = {
                let mut draft = Draft::new(&view);
                let step = evaluate(&mut draft, &job.target, &job.write, after.as_deref(), now());
                step.map(|step| (step, draft.take()))
            };
            let (step, changes) = match step {
                Ok(step) => step,
                Err(error) => {
                    job.reply.send(Err(error)).ok();
                    return Ok(());
                }
            };
            let entries = if changes.is_empty() { Vec::new() } else { vec![entry::encode(&changes)] };
            if let Err((error, ended)) = self.commit(epoch, entries).await {
                let partly = !changed.is_empty() && matches!(job.write, Write::Update { .. });
                let error = if partly { DocsError::Unknown(error.to_string()) } else { error };
                job.reply.send(Err(error)).ok();
                return if ended { Err(Ended) } else { Ok(()) };
            }
            if let Reply::Changed(ids) = step.reply {
                changed.extend(ids);
            }
            if let Some((count, reason)) = step.refused {
                refused.get_or_insert((0, reason)).0 += count;
            }
            after = step.after;
            if after.is_none() {
                let reply = match refused {
                    None => Reply::Changed(changed),
                    Some((refused, reason)) => Reply::Partly { changed, refused, reason },
                };
                job.reply.send(Ok(reply)).ok();
                return Ok(());
            }
        }
    }

    /// Appends entries, and applies them when they are committed. Without entries it makes sure that this copy leads.
    /// An error says whether leading has ended.
    async fn commit(&mut self, epoch: LogEpoch, entries: Vec<Bytes>) -> Result<(), (DocsError, bool)> {
        if entries.is_empty() {
            return self.log.read_index().await.map(drop).map_err(|error| (error.into(), false));
        }
        let pending = match self.log.submit(epoch, entries.clone()).await {
            Ok(pending) => pending,
            Err(error) => return Err(self.failed(error).await),
        };
        match pending.committed().await {
            Ok((first, end)) => {
                let entries: Vec<_> = (first.0..).zip(entries).collect();
                if self.data.applied().next != first.0 || !self.apply(first.0, &entries, end.0).await {
                    self.catch_up(end).await.map_err(|Ended| {
                        (DocsError::Unknown("the primary of the token changed".to_owned()), true)
                    })?;
                }
                Ok(())
            }
            Err(error) => Err(self.failed(error).await),
        }
    }

    /// After a failed append: waits until it is known what is in the log.
    async fn failed(&mut self, error: LogError) -> (DocsError, bool) {
        if error.fate() == Fate::NotThere {
            return (error.into(), self.standing.has_changed().unwrap_or(true));
        }
        loop {
            if self.standing.has_changed().unwrap_or(true) {
                return (error.into(), true);
            }
            if let (Ok(status), Ok(committed)) = (self.log.status().await, self.log.committed())
                && status.end == committed
            {
                let ended = self.catch_up(committed).await.is_err();
                return (error.into(), ended);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    /// A collection with an index that is not complete.
    fn unfinished(&self) -> Option<Building> {
        let view = self.data.view();
        let collections = view.prefixed(layout::COLLECTIONS.to_vec()).filter_map(Result::ok);
        let mut known = collections.filter_map(|(_, value)| parse::<Collection>(&value).ok());
        known
            .find(|collection| collection.building().is_some())
            .map(|collection| Building { collection: collection.spec.id, after: None })
    }

    /// Builds a little of an index. False: it is complete.
    async fn build_step(&mut self, epoch: LogEpoch, work: &mut Building) -> Result<bool, Ended> {
        let view = self.data.view();
        let built = {
            let mut draft = Draft::new(&view);
            match view.collection(work.collection) {
                Ok(Some(collection)) if collection.building().is_some() => {
                    build(&mut draft, &collection, work.after.as_deref()).map(|after| (after, draft.take()))
                }
                Ok(_) => return Ok(false),
                Err(error) => Err(error),
            }
        };
        let (after, changes) = match built {
            Ok(built) => built,
            Err(error) => {
                tracing::error!(token = %self.data.token, %error, "index cannot be built; trying again");
                tokio::time::sleep(PAUSE).await;
                return Ok(true);
            }
        };
        match self.commit(epoch, vec![entry::encode(&changes)]).await {
            Ok(()) => {
                let done = after.is_none();
                work.after = after;
                Ok(!done)
            }
            Err((_, true)) => Err(Ended),
            Err((error, false)) => {
                tracing::warn!(token = %self.data.token, %error, "index step was not committed; trying again");
                Ok(true)
            }
        }
    }
}

/// Milliseconds since 1970.
fn now() -> i64 {
    i64::try_from(clock::since_epoch().as_millis()).unwrap_or(i64::MAX)
}
