//! Closed-loop load: a number of clients, each sending its next request after the previous answer, for a given time.

use std::future::Future;
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use hdrhistogram::Histogram;
use tokio::task::JoinSet;

/// The result of a load.
#[derive(Debug)]
pub(crate) struct Load {
    /// Answered requests per second, over all clients.
    pub(crate) rate: f64,
    /// Median time of one request, in milliseconds.
    pub(crate) p50_ms: f64,
    /// 99 of 100 requests took at most this, in milliseconds.
    pub(crate) p99_ms: f64,
}

/// The share of a run that is not counted, while connections and caches warm up.
const WARM_UP_SHARE: u32 = 5;

/// The minimum number of answers for a rate: fewer mean that the disk stalled during the run.
const ENOUGH_ANSWERS: u64 = 10;
/// The factor by which a run with too few answers is extended, up to [`LONGEST`].
const LONGER: u32 = 4;
const LONGEST: Duration = Duration::from_secs(30);

/// Runs `clients` loops for `time`, or longer if there are too few answers; the closure makes each request from
/// (client, number of the request).
pub(crate) async fn load<Request, Answer>(clients: usize, time: Duration, request: Request) -> Result<Load>
where
    Request: Fn(usize, u64) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<()>> + Send + 'static,
{
    let mut time = time;
    loop {
        let times = answers(clients, time, request.clone()).await?;
        if times.len() >= ENOUGH_ANSWERS {
            let rate = times.len() as f64 / time.as_secs_f64();
            let ms = |quantile| times.value_at_quantile(quantile) as f64 / 1e6;
            return Ok(Load { rate, p50_ms: ms(0.5), p99_ms: ms(0.99) });
        }
        ensure!(
            time * LONGER <= LONGEST,
            "{} answers to {clients} clients in {time:?} are no rate",
            times.len()
        );
        time *= LONGER;
    }
}

/// The time of each request that was sent and answered within `time`.
async fn answers<Request, Answer>(clients: usize, time: Duration, request: Request) -> Result<Histogram<u64>>
where
    Request: Fn(usize, u64) -> Answer + Clone + Send + 'static,
    Answer: Future<Output = Result<()>> + Send + 'static,
{
    let begin = Instant::now() + time / WARM_UP_SHARE;
    let end = begin + time;
    let mut tasks = JoinSet::new();
    for client in 0..clients {
        tasks.spawn(one_client(client, begin, end, request.clone()));
    }
    let mut all = histogram()?;
    while let Some(done) = tasks.join_next().await {
        all.add(done??)?;
    }
    Ok(all)
}

async fn one_client<Request, Answer>(
    client: usize,
    begin: Instant,
    end: Instant,
    request: Request,
) -> Result<Histogram<u64>>
where
    Request: Fn(usize, u64) -> Answer,
    Answer: Future<Output = Result<()>>,
{
    let mut times = histogram()?;
    for number in 0.. {
        let sent = Instant::now();
        if sent >= end {
            break;
        }
        request(client, number).await?;
        let answered = Instant::now();
        if sent >= begin && answered <= end {
            times.record(nanos(answered - sent))?;
        }
    }
    Ok(times)
}

/// A histogram of nanoseconds with a precision of one part in a thousand.
pub(crate) fn histogram() -> Result<Histogram<u64>> {
    Ok(Histogram::new(3)?)
}

/// The nanoseconds of a duration; enough for five centuries.
pub(crate) fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The median (the lower one of an even number).
pub(crate) fn median(mut figures: Vec<f64>) -> f64 {
    figures.sort_by(f64::total_cmp);
    figures.get(figures.len().saturating_sub(1) / 2).copied().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_median_ignores_outliers() {
        assert_eq!(median(vec![900.0, 1.0, 2.0]), 2.0);
        assert_eq!(median(vec![2.0, 1.0]), 1.0);
        assert_eq!(median(vec![]), 0.0);
    }

    #[tokio::test]
    async fn a_load_counts_what_was_answered() {
        let load = load(4, Duration::from_millis(50), |_, _| async {
            tokio::task::yield_now().await;
            Ok(())
        });
        assert!(load.await.unwrap().rate > 100.0);
    }

    #[tokio::test]
    async fn a_server_that_stalls_is_measured_for_longer() {
        let cell = Duration::from_millis(5);
        let stalls_at_first = move |_, number: u64| async move {
            tokio::time::sleep(if number == 0 { cell * 2 } else { Duration::ZERO }).await;
            Ok(())
        };
        assert!(load(1, cell, stalls_at_first).await.unwrap().rate > 0.0);
    }
}
