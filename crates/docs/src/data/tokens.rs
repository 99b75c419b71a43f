//! All tokens of this node.

use std::collections::{BTreeSet, HashMap};
use std::sync::{Arc, Mutex, PoisonError};

use capstan_log::{Log, LogName, NoSnapshots, StateMachine};
use capstan_steward::Owner;

use super::copy::{Copy, Data};
use super::machine::Machine;
use super::pace::Pace;
use crate::error::DocsError;
use crate::id::Token;
use crate::metrics::DocsMetrics;
use crate::queue::Queue;
use crate::storage::{Engine, layout};

/// The tokens that this node holds, on one engine.
pub(crate) struct Tokens {
    engine: Arc<dyn Engine>,
    /// What copies come over, if not directly.
    queue: Option<Arc<Queue>>,
    /// How fast copies leave this node.
    pace: Arc<Pace>,
    metrics: DocsMetrics,
    data: Mutex<HashMap<Token, Arc<Data>>>,
    open: Mutex<HashMap<Token, Copy>>,
}

impl Tokens {
    pub(crate) fn new(
        engine: Arc<dyn Engine>,
        queue: Option<Arc<Queue>>,
        pace: Arc<Pace>,
        metrics: DocsMetrics,
    ) -> Tokens {
        Tokens { engine, queue, pace, metrics, data: Mutex::default(), open: Mutex::default() }
    }

    /// What copies come over, if not directly.
    pub(crate) fn queue(&self) -> Option<&Queue> {
        self.queue.as_deref()
    }

    /// Whether nodes that have nothing of a token begin with a snapshot of it, whatever its log has: what they get is
    /// sent over the queue, or counted.
    pub(crate) fn prefer_snapshots(&self) -> bool {
        self.queue.is_some() || self.pace.is_limited()
    }

    /// A token that is open here.
    pub(crate) fn get(&self, token: Token) -> Option<Copy> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner).get(&token).cloned()
    }

    /// Every token that is open here, in order.
    pub(crate) fn list(&self) -> Vec<(Token, Copy)> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        let mut list: Vec<_> = open.iter().map(|(token, copy)| (*token, copy.clone())).collect();
        list.sort_by_key(|(token, _)| *token);
        list
    }

    /// The data of a token, opened once.
    pub(super) fn data(&self, token: Token) -> Result<Arc<Data>, DocsError> {
        let mut all = self.data.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(data) = all.get(&token) {
            return Ok(Arc::clone(data));
        }
        let data = Arc::new(Data::open(token, Arc::clone(&self.engine), self.metrics.clone())?);
        all.insert(token, Arc::clone(&data));
        Ok(data)
    }

    /// Every generation of every token's data that is stored here, whether or not it counts.
    pub(super) fn stored(&self, digits: u8) -> Result<Vec<(Token, u32)>, DocsError> {
        let (view, mut stored) = (self.engine.snapshot(), Vec::new());
        let (mut from, before) = layout::whole(layout::COPIES.to_vec());
        while let Some((key, _)) = view.range(&from, &before).next().transpose()? {
            let (number, generation) = layout::copy_of(&key)?;
            let token = Token::numbered(digits, number);
            from = layout::whole(layout::copy_prefix(token, generation)).1;
            stored.push((token, generation));
        }
        Ok(stored)
    }

    /// Deletes what does not count: copies that were replaced or cut off, and tokens that have left this node, also those
    /// that did in an earlier life of it.
    pub(crate) fn tidy(&self, digits: u8, left: &BTreeSet<Token>) -> Result<(), DocsError> {
        let outcomes = self.stored(digits)?.into_iter().map(|(token, generation)| {
            let data = self.data(token)?;
            if left.contains(&token) && data.applied().generation == generation {
                self.discard(token, &data)?;
            }
            data.sweep(generation)
        });
        // One that has to wait does not keep the others waiting.
        let outcomes: Vec<Result<(), DocsError>> = outcomes.collect();
        outcomes.into_iter().collect()
    }

    /// Discards the data of a token that is not open here.
    fn discard(&self, token: Token, data: &Data) -> Result<(), DocsError> {
        let open = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if open.contains_key(&token) {
            return Ok(());
        }
        data.discard()?;
        tracing::info!(%token, "data of a token that moved away is deleted");
        Ok(())
    }
}

impl Owner for Tokens {
    fn snapshots(&self, log: &LogName) -> Arc<dyn StateMachine> {
        let data = Token::of_log(log).map(|token| self.data(token));
        match data {
            Some(Ok(data)) => {
                Arc::new(Machine { data, queue: self.queue.clone(), pace: Arc::clone(&self.pace) })
            }
            Some(Err(error)) => {
                tracing::error!(%log, %error, "data of a token cannot be opened");
                Arc::new(NoSnapshots)
            }
            None => Arc::new(NoSnapshots),
        }
    }

    fn opened(&self, log: &Log) {
        let Some(token) = Token::of_log(log.name()) else { return };
        match self.data(token) {
            Ok(data) => {
                let copy = Copy::start(data, log.clone());
                self.open.lock().unwrap_or_else(PoisonError::into_inner).insert(token, copy);
            }
            Err(error) => tracing::error!(%token, %error, "token cannot be opened"),
        }
    }

    fn closed(&self, log: &LogName) {
        if let Some(token) = Token::of_log(log) {
            self.open.lock().unwrap_or_else(PoisonError::into_inner).remove(&token);
            if let Some(queue) = &self.queue {
                queue.close(token);
            }
        }
    }
}
