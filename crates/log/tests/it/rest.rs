//! One copy of a log, stepped by hand: heartbeats of a log at rest become rare, silence is still noticed, and a follower
//! that is too slow leaves the in-sync set although it makes progress.

use std::time::Duration;

use bytes::Bytes;
use capstan_log::config::LogConfig;
use capstan_log::entry::{History, LogEpoch, Offset};
use capstan_log::replica::{Append, Effect, Event, Message, Replica, Ticket, Timing};
use capstan_meta::Revision;

use super::host::id;

const TIMING: Timing = Timing {
    heartbeat: Duration::from_millis(200),
    resend: Duration::from_millis(500),
    lag: Duration::from_secs(3),
    behind: Duration::from_secs(10),
    window: 4096,
    shipment: 512,
};
const TICK: Duration = Duration::from_millis(100);

/// The primary of a log on `a`, `b` and `c`, whose own disk is fast.
struct Primary {
    replica: Replica,
    now: Duration,
    appends: u64,
    /// What was sent to `b` since it was last looked at.
    sent: Vec<Message>,
    shipped: Offset,
    proposed: Vec<LogConfig>,
}

impl Primary {
    fn new(rest: Duration) -> Primary {
        let replica = Replica::new(id("a"), Offset::ZERO, History::default(), TIMING).in_life(1);
        let (sent, proposed) = (Vec::new(), Vec::new());
        let mut primary = Primary { replica, now: TICK, appends: 0, sent, shipped: Offset::ZERO, proposed };
        primary.replica.rest_up_to(rest);
        let config = LogConfig::new(vec![id("a"), id("b"), id("c")], 1).unwrap();
        primary.step(Event::Configured(config.clone(), Revision(1)));
        let led = config.elect(&id("a")).unwrap();
        primary.step(Event::Configured(led, Revision(2)));
        primary.step(Event::Leased(Duration::from_secs(100_000)));
        primary.proposed.clear();
        primary
    }

    fn end(&self) -> Offset {
        self.replica.history().end()
    }

    fn step(&mut self, event: Event) {
        for effect in self.replica.step(self.now, event) {
            match effect {
                Effect::Write(generation, entries) => {
                    let upto = entries.last().unwrap().offset.plus(1);
                    self.step(Event::Durable(generation, upto));
                }
                Effect::Send(to, message) if to == id("b") => self.sent.push(message),
                Effect::Ship(to, shipment) if to == id("b") => self.shipped = shipment.upto,
                Effect::Propose(_, config) => self.proposed.push(config),
                _ => {}
            }
        }
    }

    fn append(&mut self) {
        self.appends += 1;
        let (ticket, batch) = (Ticket(self.appends), vec![Bytes::from_static(b"x")]);
        self.step(Event::Append(vec![Append { ticket, epoch: None, time: self.now, batch }]));
    }

    fn ack(&mut self, from: &str, durable: Offset) {
        let ack = Message::Ack { epoch: LogEpoch(2), life: 1, durable };
        self.step(Event::Received(id(from), ack));
    }

    /// One tick, which live followers answer at once. Returns the messages to `b`.
    fn tick(&mut self, live: &[&str]) -> usize {
        self.sent.clear();
        self.step(Event::Tick);
        let sent = self.sent.len();
        for follower in live {
            self.ack(follower, self.end());
        }
        self.now += TICK;
        sent
    }

    fn dropped(&self, holder: &str) -> bool {
        self.proposed.iter().any(|config| !config.is_in_sync(&id(holder)))
    }
}

#[test]
fn heartbeats_of_a_log_at_rest_become_rare() {
    let mut primary = Primary::new(Duration::from_secs(5));
    primary.append();
    let beats: usize = (0..600).map(|_| primary.tick(&["b", "c"])).sum();
    assert!((12..25).contains(&beats), "{beats} heartbeats in a minute");
    assert!(primary.proposed.is_empty(), "{:?}", primary.proposed);
    assert!(primary.replica.pause(primary.now) > TICK);
    // Without a limit by the host they come as often as ever.
    let mut primary = Primary::new(Duration::ZERO);
    let beats: usize = (0..600).map(|_| primary.tick(&["b", "c"])).sum();
    assert!(beats >= 290, "{beats}");
}

#[test]
fn an_append_after_a_rest_does_not_make_a_live_follower_suspicious() {
    let mut primary = Primary::new(Duration::from_secs(5));
    for _ in 0..600 {
        primary.tick(&["b", "c"]);
    }
    primary.append();
    assert_eq!(primary.shipped, primary.end());
    assert!(primary.replica.pause(primary.now) <= TICK, "an append ends the rest");
    // It takes a while, and less than the limit.
    for _ in 0..25 {
        primary.tick(&["c"]);
    }
    assert!(!primary.dropped("b"), "{:?}", primary.proposed);
    primary.ack("b", primary.end());
    assert_eq!(primary.replica.committed(), primary.end());
}

#[test]
fn a_dead_follower_of_a_log_at_rest_is_noticed() {
    let mut primary = Primary::new(Duration::from_secs(5));
    for _ in 0..600 {
        primary.tick(&["b", "c"]);
    }
    let ticks = (0..200).take_while(|_| {
        primary.tick(&["c"]);
        !primary.dropped("b")
    });
    let noticed = TICK * u32::try_from(ticks.count()).unwrap();
    assert!(noticed <= Duration::from_secs(9), "{noticed:?}");
    assert!(primary.dropped("b") && !primary.dropped("c"), "{:?}", primary.proposed);
}

#[test]
fn a_follower_that_is_too_slow_leaves_the_set_although_it_makes_progress() {
    let mut primary = Primary::new(Duration::ZERO);
    let mut slow = Offset(1);
    for _ in 0..95 {
        (0..5).for_each(|_| primary.append());
        primary.tick(&["c"]);
        slow = slow.plus(1);
        primary.ack("b", slow);
        assert!(!primary.dropped("b"), "too early, at {:?}", primary.now);
    }
    for _ in 0..20 {
        (0..5).for_each(|_| primary.append());
        primary.tick(&["c"]);
        slow = slow.plus(1);
        primary.ack("b", slow);
    }
    assert!(primary.dropped("b") && !primary.dropped("c"), "{:?}", primary.proposed);
}

/// A follower tolerates silence of a primary whose heartbeats became rare, and not of one that was cut off.
#[test]
fn a_follower_introduces_itself_again_to_a_silent_primary() {
    let mut follower = Replica::new(id("b"), Offset::ZERO, History::default(), TIMING).in_life(1);
    let config = LogConfig::new(vec![id("a"), id("b")], 1).unwrap();
    let mut now = TICK;
    follower.step(now, Event::Configured(config, Revision(1)));
    let introductions = |effects: Vec<Effect>| {
        effects.iter().filter(|effect| matches!(effect, Effect::Send(_, Message::Behind { .. }))).count()
    };
    let (mut gap, mut introduced) = (Duration::from_millis(200), 0);
    for _ in 0..8 {
        let until = now + gap;
        while now < until {
            now += TICK;
            introduced += introductions(follower.step(now, Event::Tick));
        }
        let heartbeat = Message::Append {
            epoch: LogEpoch(1),
            epoch_before: LogEpoch(0),
            from: Offset::ZERO,
            entries: Vec::new(),
            committed: Offset::ZERO,
        };
        follower.step(now, Event::Received(id("a"), heartbeat));
        gap = (gap * 2).min(Duration::from_secs(5));
    }
    assert_eq!(introduced, 0);
    for _ in 0..120 {
        now += TICK;
        introduced += introductions(follower.step(now, Event::Tick));
    }
    assert!(introduced > 0, "twelve seconds of silence after intervals of five");
}
