//! How fast do copies of tokens leave a node? One limit in bytes per second for all of them together.

use std::io::{self, Read};
use std::num::NonZeroU64;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::time::Instant;

/// Bytes after which a stream waits for its turn: a wait is long enough for the timer, and short for the receiver.
const STRETCH: u64 = 64 * 1024;

/// When the next bytes are due: those before them have had their time.
#[derive(Debug)]
struct Schedule {
    bytes_per_second: NonZeroU64,
    due: Duration,
}

impl Schedule {
    /// The time until these bytes may be sent. `now` is the time since a fixed moment. Unused time is not saved up.
    fn take(&mut self, now: Duration, bytes: u64) -> Duration {
        let begin = self.due.max(now);
        let nanoseconds = u128::from(bytes) * 1_000_000_000 / u128::from(self.bytes_per_second.get());
        self.due = begin + Duration::from_nanos(u64::try_from(nanoseconds).unwrap_or(u64::MAX));
        begin - now
    }
}

/// The pace of all copies that leave a node.
#[derive(Debug)]
pub(crate) struct Pace {
    schedule: Option<Mutex<Schedule>>,
    begun: Instant,
}

impl Pace {
    /// A limit in bytes per second; `None` is no limit.
    pub(crate) fn new(bytes_per_second: Option<NonZeroU64>) -> Pace {
        let schedule = |bytes_per_second| Mutex::new(Schedule { bytes_per_second, due: Duration::ZERO });
        Pace { schedule: bytes_per_second.map(schedule), begun: Instant::now() }
    }

    /// Whether there is a limit.
    pub(crate) fn is_limited(&self) -> bool {
        self.schedule.is_some()
    }

    fn turn(&self, bytes: u64) -> Duration {
        let Some(schedule) = &self.schedule else { return Duration::ZERO };
        schedule.lock().unwrap_or_else(PoisonError::into_inner).take(self.begun.elapsed(), bytes)
    }

    /// Waits until this number of bytes may be sent.
    pub(crate) async fn wait(&self, bytes: usize) {
        let turn = self.turn(bytes as u64);
        if !turn.is_zero() {
            tokio::time::sleep(turn).await;
        }
    }

    /// [`Pace::wait`], on a thread that may block.
    fn block(&self, bytes: u64) {
        let turn = self.turn(bytes);
        if !turn.is_zero() {
            Handle::current().block_on(tokio::time::sleep(turn));
        }
    }

    /// The stream at this pace. It is read on a thread that may block.
    pub(crate) fn paced<R: Read>(self: std::sync::Arc<Pace>, content: R) -> impl Read + use<R> {
        Paced { content, unpaid: 0, pay: move |bytes| self.block(bytes) }
    }
}

/// A stream that waits for its turn.
struct Paced<R, P> {
    content: R,
    /// Bytes that were read since the last wait.
    unpaid: u64,
    pay: P,
}

impl<R: Read, P: FnMut(u64)> Read for Paced<R, P> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.unpaid >= STRETCH {
            (self.pay)(std::mem::take(&mut self.unpaid));
        }
        let most = buffer.len().min(STRETCH as usize);
        let read = self.content.read(buffer.get_mut(..most).unwrap_or_default())?;
        self.unpaid += read as u64;
        Ok(read)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MIB: u64 = 1 << 20;

    fn schedule(rate: u64) -> Schedule {
        Schedule { bytes_per_second: NonZeroU64::new(rate).unwrap(), due: Duration::ZERO }
    }

    #[test]
    fn bytes_are_due_when_those_before_them_had_their_time() {
        let (mut schedule, second) = (schedule(MIB), Duration::from_secs(1));
        assert_eq!(schedule.take(Duration::ZERO, MIB), Duration::ZERO);
        assert_eq!(schedule.take(second / 4, MIB / 2), second * 3 / 4);
        assert_eq!(schedule.take(second, MIB), second / 2, "two streams share the rate");
        // Nothing is saved up while nothing is sent.
        assert_eq!(schedule.take(100 * second, MIB), Duration::ZERO);
        assert_eq!(schedule.take(100 * second, MIB), second);
    }

    #[test]
    fn a_stream_takes_the_time_of_its_bytes() {
        let (mut schedule, mut now) = (schedule(4 * MIB), Duration::ZERO);
        let content = vec![7; 20 * MIB as usize];
        let pay = |bytes| now += schedule.take(now, bytes);
        let mut read = Vec::new();
        Paced { content: &content[..], unpaid: 0, pay }.read_to_end(&mut read).unwrap();
        assert!(read == content);
        assert!((4_900..=5_000).contains(&now.as_millis()), "20 MiB with 4 MiB per second took {now:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn batches_wait_for_their_turn() {
        let (limited, free) = (Pace::new(NonZeroU64::new(MIB)), Pace::new(None));
        let begun = Instant::now();
        for _ in 0..100 {
            free.wait(MIB as usize).await;
        }
        assert_eq!(begun.elapsed(), Duration::ZERO);
        let copy = async || {
            for _ in 0..10 {
                limited.wait(MIB as usize).await;
            }
        };
        tokio::join!(copy(), copy());
        assert_eq!(begun.elapsed().as_secs(), 19, "20 batches of 1 MiB, the first one at once");
    }
}
