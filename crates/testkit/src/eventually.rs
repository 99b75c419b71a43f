//! How a test waits: for a named condition, level-triggered, with a deadline. A timeout reports what was last seen.

use std::fmt::{self, Display};
use std::panic::Location;
use std::time::{Duration, Instant};

/// The first pause between two checks; it doubles up to [`SLOWEST_POLL`], so that fast conditions are seen quickly and
/// slow ones do not take CPU time from the server under test.
const FIRST_POLL: Duration = Duration::from_millis(1);
const SLOWEST_POLL: Duration = Duration::from_millis(50);

/// The condition did not come true in time.
#[derive(Debug, Clone)]
pub struct TimedOut {
    /// The condition.
    pub condition: String,
    /// The deadline.
    pub deadline: Duration,
    /// The last result of the condition, or that it never returned.
    pub last_seen: String,
    /// How often it returned.
    pub looks: u64,
    /// The line of the test that waited.
    pub waiter: &'static Location<'static>,
}

impl Display for TimedOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { condition, deadline, last_seen, looks, waiter } = self;
        write!(
            f,
            "{waiter}: not within {deadline:?}: {condition}; looked {looks} times, last seen: {last_seen}"
        )
    }
}

impl std::error::Error for TimedOut {}

/// The state of a wait.
struct Watchful {
    timed_out: TimedOut,
    pause: Duration,
}

impl Watchful {
    fn new(condition: &str, deadline: Duration, waiter: &'static Location<'static>) -> Self {
        let timed_out = TimedOut {
            condition: condition.to_owned(),
            deadline,
            last_seen: "nothing: the condition has not answered yet".to_owned(),
            looks: 0,
            waiter,
        };
        Self { timed_out, pause: FIRST_POLL }
    }

    /// Records an unmet condition; returns the pause before the next check.
    fn unmet(&mut self, seen: impl Display) -> Duration {
        self.timed_out.last_seen = seen.to_string();
        self.timed_out.looks += 1;
        let pause = self.pause;
        self.pause = (pause * 2).min(SLOWEST_POLL);
        pause
    }
}

/// Waits until `look` returns `Ok`, and returns what it found; panics at the deadline with its last result.
///
/// Time is tokio's, so that a simulation with a paused clock waits in its own time. A look that hangs is cut off at
/// the deadline. In a spawned task the closure must own what it uses (`async move ||`): the compiler cannot yet show
/// that one which borrows may cross threads.
///
/// ```
/// # use std::time::Duration;
/// # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
/// let mut lag = 3;
/// capstan_testkit::eventually("the replica has caught up", Duration::from_secs(5), async || {
///     lag -= 1;
///     if lag == 0 { Ok(()) } else { Err(format!("lag {lag}")) }
/// })
/// .await;
/// # });
/// ```
#[track_caller]
pub fn eventually<T, E, F>(condition: &str, deadline: Duration, look: F) -> impl Future<Output = T>
where
    E: Display,
    F: AsyncFnMut() -> Result<T, E>,
{
    let waiting = try_eventually(condition, deadline, look);
    async move { waiting.await.unwrap_or_else(|timed_out| panic!("{timed_out}")) }
}

/// [`eventually`] for callers that report the failure themselves.
#[track_caller]
pub fn try_eventually<T, E, F>(
    condition: &str,
    deadline: Duration,
    mut look: F,
) -> impl Future<Output = Result<T, TimedOut>>
where
    E: Display,
    F: AsyncFnMut() -> Result<T, E>,
{
    let mut watchful = Watchful::new(condition, deadline, Location::caller());
    async move {
        let end = tokio::time::Instant::now() + deadline;
        loop {
            let Ok(seen) = tokio::time::timeout_at(end, look()).await else { return Err(watchful.timed_out) };
            match seen {
                Ok(found) => return Ok(found),
                Err(unmet) => {
                    let pause = watchful.unmet(unmet);
                    if tokio::time::Instant::now() >= end {
                        return Err(watchful.timed_out);
                    }
                    tokio::time::sleep_until(end.min(tokio::time::Instant::now() + pause)).await;
                }
            }
        }
    }
}

/// [`try_eventually`] with the real clock, also where tokio's is paused: a child process runs in real time.
#[track_caller]
pub(crate) fn try_eventually_real_time<T, E: Display>(
    condition: &str,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, E>,
) -> impl Future<Output = Result<T, TimedOut>> {
    let mut watchful = Watchful::new(condition, deadline, Location::caller());
    async move {
        let end = Instant::now() + deadline;
        loop {
            match look().await {
                Ok(found) => return Ok(found),
                Err(unmet) => {
                    let pause = watchful.unmet(unmet);
                    if Instant::now() >= end {
                        return Err(watchful.timed_out);
                    }
                    tokio::time::sleep(pause).await;
                }
            }
        }
    }
}

/// [`eventually`] for tests without a runtime. A check that hangs hangs the test.
#[track_caller]
pub fn eventually_blocking<T, E: Display>(
    condition: &str,
    deadline: Duration,
    look: impl FnMut() -> Result<T, E>,
) -> T {
    try_eventually_blocking(condition, deadline, look).unwrap_or_else(|timed_out| panic!("{timed_out}"))
}

/// [`eventually_blocking`] for callers that report the failure themselves.
#[track_caller]
pub fn try_eventually_blocking<T, E: Display>(
    condition: &str,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, E>,
) -> Result<T, TimedOut> {
    let mut watchful = Watchful::new(condition, deadline, Location::caller());
    let end = Instant::now() + deadline;
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(unmet) => {
                let pause = watchful.unmet(unmet);
                let now = Instant::now();
                if now >= end {
                    return Err(watchful.timed_out);
                }
                pause_blocking(pause.min(end - now));
            }
        }
    }
}

#[expect(clippy::disallowed_methods, reason = "the one place that polls: everything else waits through it")]
fn pause_blocking(pause: Duration) {
    std::thread::sleep(pause);
}
