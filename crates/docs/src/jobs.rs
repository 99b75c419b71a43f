//! How far is a token that moves to this node? One record for each, written by the node that receives it.
//!
//! The batches of a job are those of the token's log, which the receiver follows from its own position on, after those of
//! a copy that come over a queue, if there is one: what is lost or sent twice on the way changes nothing. The record says
//! how far it is; it decides nothing.

use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

use capstan_meta::record::{Extra, Key as _};
use capstan_meta::settle::Next;
use capstan_meta::{Txn, clock};

use crate::data::command::{Command, Reply};
use crate::decide::{JobProgress, JobState, Seen, events};
use crate::error::DocsError;
use crate::guarded::change;
use crate::id::Token;
use crate::keys::{JobKey, TokenName};
use crate::node::{Inner, Node};
use crate::queue::{Copied, Queue};
use crate::router::Router;
use crate::status::Job;

/// How often jobs are looked at.
const LOOK: Duration = Duration::from_millis(500);
/// How long a job that has ended stays to be seen.
const SHOWN_FOR: u64 = 60;

/// Keeps the records of the jobs of one node.
pub(crate) async fn follow_jobs(inner: Weak<Inner>) {
    let mut held: BTreeMap<Token, bool> = BTreeMap::new();
    loop {
        let Some(inner) = inner.upgrade() else { return };
        let node = Node { inner };
        for token in Token::all(node.inner.cluster.token_digits) {
            if let Err(error) = look(&node, token, &mut held).await {
                tracing::debug!(%token, %error, "the record of a job was not written; trying again");
            }
        }
        drop(node);
        tokio::time::sleep(LOOK).await;
    }
}

/// Looks at the job of one token, if there is one for this node. `held` is whether the node had a copy at the last look.
async fn look(node: &Node, token: Token, held: &mut BTreeMap<Token, bool>) -> Result<(), DocsError> {
    let router = &node.inner.router;
    let snapshot = router.view.snapshot();
    let Some(config) = Router::config(&snapshot, token) else { return Ok(()) };
    let key = JobKey { token: TokenName::new(token.to_string())? };
    let known = snapshot.get(&key).map_err(|bad| DocsError::Broken(bad.to_string()))?;
    let mine = known.as_ref().map(|found| &found.record).filter(|job| job.to == node.id().as_str());
    let me = node.holder_id();
    let learns = config.learner.as_ref() == Some(me);
    // A move can be over between two looks: a copy that was not here before came by a job all the same.
    let holds = config.holders.contains(me);
    let came = holds && held.get(&token) == Some(&false);
    if !came || mine.is_some() {
        held.insert(token, holds);
    }
    if let Some(copy) = router.tokens().get(token) {
        copy.set_moving(learns);
    }
    match mine {
        None if !learns && !came => return Ok(()),
        Some(job) if job.progress.state == JobState::Completed && !learns => {
            let is_old = clock::since_epoch().as_secs() > job.updated_at + SHOWN_FOR;
            return if is_old { remove(node, &key).await } else { Ok(()) };
        }
        // Its master changed its mind: another node gets the copy, or none.
        Some(_) if !learns && !config.holders.contains(me) => return remove(node, &key).await,
        None | Some(_) => {}
    }
    let position = router.tokens().get(token).map(|copy| copy.position());
    let queue = router.tokens().queue();
    let copied = queue.map(|queue| queue.copied(token)).unwrap_or_default();
    let receiver = queue.map_or_else(|| me.to_string(), Queue::name);
    let total = match router.ask(token, Command::Position {}).await {
        Ok(Reply::Count(end)) => u64::try_from(end).unwrap_or(0),
        Ok(_) | Err(_) => 0,
    };
    let from = config.primary.as_str().trim_start_matches("docs.").to_owned();
    let to = node.id().to_string();
    let (now, epoch) = (clock::since_epoch().as_secs(), config.epoch.0);
    let mut is_over = false;
    change(&router.store, &key, |seen, progress| {
        if progress.committed > 0 {
            return Ok(Next::Done(()));
        }
        let current = seen
            .map(|seen| &seen.record)
            .filter(|job| job.to == to && (!learns || job.progress.state != JobState::Completed));
        let next = match current {
            None => Job {
                token: token.to_string(),
                from: from.clone(),
                to: to.clone(),
                progress: JobProgress::started(),
                cursor: 0,
                copied: 0,
                batch: 0,
                total,
                epoch,
                started_at: now,
                updated_at: now,
                extra: Extra::default(),
            },
            Some(job) => {
                let sight = match position {
                    None => Seen::Nothing,
                    Some(_) if !learns => Seen::Complete,
                    Some(position) => Seen::Progress(gained(job, position, copied)),
                };
                let moved = job.progress.steps(&events(job.progress.state, sight, job.batch), &receiver);
                let cursor = position.unwrap_or(job.cursor).max(job.cursor);
                let batch = if let Seen::Progress(count) = sight { count } else { 0 };
                let copied = job.copied.max(copied.pairs);
                let known = (job.cursor, job.copied, job.total);
                let same = moved == job.progress && (cursor, copied, total) == known;
                if same {
                    return Ok(Next::Done(()));
                }
                is_over = moved.state == JobState::Completed && job.progress.state != JobState::Completed;
                let total = total.max(job.total);
                let (from, updated_at) = (from.clone(), now);
                Job { progress: moved, cursor, copied, batch, total, from, epoch, updated_at, ..job.clone() }
            }
        };
        let put = match seen {
            Some(seen) => Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &next)),
            None => Txn::new().when(key.absent()).then(key.put(&next)),
        };
        Ok(Next::Commit(put))
    })
    .await?;
    if is_over {
        node.inner.metrics.moved();
    }
    Ok(())
}

/// What the receiver has more than its job says: pairs that came in batches, and entries behind the copy they make.
fn gained(job: &Job, position: u64, copied: Copied) -> u64 {
    let pairs = copied.pairs.saturating_sub(job.copied);
    let begin = if copied.pairs > 0 { job.cursor.max(copied.at) } else { job.cursor };
    pairs + position.saturating_sub(begin)
}

async fn remove(node: &Node, key: &JobKey) -> Result<(), DocsError> {
    change(&node.inner.router.store, key, |seen, _| match seen {
        None => Ok(Next::Done(())),
        Some(seen) => Ok(Next::Last(Txn::new().when(key.unchanged(seen)).then(key.delete()), ())),
    })
    .await
}
