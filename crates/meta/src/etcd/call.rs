//! How long a call may take and when it is sent again: a read whenever it is safe, a write only when it surely never
//! left.

use std::future::Future;
use std::time::Duration;

use etcd_client::{Client, Error};
use rand::RngExt;
use tokio::time::Instant;

use super::Link;
use super::errors::Failure;
use crate::error::{MetaError, Result};

/// Attempts for each endpoint: the client picks one at random, so that a dead member among living ones is drawn
/// several times in a row now and then.
const ATTEMPTS_PER_ENDPOINT: u32 = 4;
/// First pause before the next attempt; it doubles, with jitter.
const FIRST_PAUSE: Duration = Duration::from_millis(10);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A pause before attempt `n` (from 0): between half and the whole of a doubling time, so that many clients of one
/// server do not come back at once.
pub(super) fn pause(attempt: u32, first: Duration, longest: Duration) -> Duration {
    let full = first.saturating_mul(1 << attempt.min(16)).min(longest);
    full.mul_f64(rand::rng().random_range(0.5..=1.0))
}

impl Link {
    /// A call that changes nothing: repeated within the request's time.
    pub(super) async fn read<T, F>(&self, call: impl FnMut(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.attempt(call, |failure| matches!(failure, Failure::Unsent(_) | Failure::Broken(_)))
            .await
            .map_err(Failure::of_read)
    }

    /// A call that changes something: what was sent once is never sent again.
    pub(super) async fn write<T, F>(&self, call: impl FnMut(Client) -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Error>>,
    {
        self.attempt(call, |failure| matches!(failure, Failure::Unsent(_))).await.map_err(Failure::of_write)
    }

    async fn attempt<T, F>(
        &self,
        mut call: impl FnMut(Client) -> F,
        again: impl Fn(&Failure) -> bool,
    ) -> Result<T, Failure>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let patience = self.options.request_timeout;
        let deadline = Instant::now() + patience;
        let attempts = ATTEMPTS_PER_ENDPOINT.saturating_mul(self.options.endpoints.len() as u32);
        let mut attempt = 0;
        loop {
            let client = self.calls.client();
            let failure = match tokio::time::timeout_at(deadline, call(Client::clone(&client))).await {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => Failure::of(error),
                Err(_) => {
                    self.calls.abandon(&client, &self.options()).await;
                    return Err(Failure::Broken(format!("no answer within {patience:?}")));
                }
            };
            let pause = pause(attempt, FIRST_PAUSE, LONGEST_PAUSE);
            attempt += 1;
            if attempt >= attempts || !again(&failure) || Instant::now() + pause >= deadline {
                return Err(failure);
            }
            tokio::time::sleep(pause).await;
        }
    }

    /// Fills in where history begins, which etcd's answer to a call does not say.
    pub(super) async fn explain<T>(&self, result: Result<T>) -> Result<T> {
        match result {
            Err(MetaError::Compacted { .. }) => {
                Err(MetaError::Compacted { oldest: self.oldest_revision().await })
            }
            result => result,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_up_to_a_bound_and_are_never_less_than_half() {
        for (attempt, full) in [(0, 10), (1, 20), (5, 320), (6, 500), (40, 500)] {
            let pause = pause(attempt, FIRST_PAUSE, LONGEST_PAUSE).as_millis();
            assert!(pause >= full / 2 && pause <= full, "{attempt}: {pause}");
        }
    }
}
