//! The network between coordinators and proxies, and the checker of every message.

// tidy: the clock is paused in this file

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::Duration;

use capstan_control::epoch::Epoch;
use capstan_meta::{OwnedTask, Store};
use capstan_redis::Address;
use capstan_redis::coordinator::{Proxies, Reply, Unreached};
use capstan_redis::keys::{HostEpochKey, LastHostEpochKey};
use capstan_redis::nmctl::{Basis, Message, Standing};
use capstan_redis_proxy::state::Move;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::time::{Instant, sleep};

use super::proxy::{Arrival, SimProxy};
use super::world::Sabotage;

/// How late a message can still arrive: longer than any grant.
const LATEST_MILLIS: u64 = 4000;

pub struct Net {
    state: Mutex<State>,
    /// The store without faults, for the checker.
    store: Store,
    reply_within: Duration,
    sabotage: Option<Sabotage>,
}

pub struct State {
    pub proxies: BTreeMap<Address, SimProxy>,
    /// Which coordinators cannot reach which proxies.
    pub cut: BTreeSet<(u64, Address)>,
    pub lossy: bool,
    rng: StdRng,
    pub messages: u64,
    /// Everything that was sent and when, to compare two runs of one seed.
    pub trace: Vec<String>,
    begun_at: Instant,
    late: Vec<OwnedTask>,
    /// The first violation of an invariant; a panic in a task would not be noticed.
    pub violation: Option<String>,
}

impl Net {
    pub fn new(store: Store, reply_within: Duration, seed: u64, sabotage: Option<Sabotage>) -> Arc<Net> {
        let rng = StdRng::seed_from_u64(seed);
        let state = State {
            proxies: BTreeMap::new(),
            cut: BTreeSet::new(),
            lossy: true,
            rng,
            messages: 0,
            trace: Vec::new(),
            begun_at: Instant::now(),
            late: Vec::new(),
            violation: None,
        };
        Arc::new(Net { state: Mutex::new(state), store, reply_within, sabotage })
    }

    pub fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// A message in transit: late, lost, accepted, or accepted with a lost reply.
    async fn carry(
        self: &Arc<Net>,
        from: u64,
        proxy: &Address,
        message: &Message,
    ) -> Result<Reply, Unreached> {
        let (delay, lost, unheard) = {
            let mut state = self.state();
            let line = format!("{:?} {from} {proxy} {}", state.begun_at.elapsed(), message.name());
            state.trace.push(line);
            let lossy = state.lossy;
            let slow = lossy && state.rng.random_bool(0.02);
            let longest = if slow { self.reply_within.as_millis() as u64 } else { 8 };
            let delay = Duration::from_millis(state.rng.random_range(0..longest));
            (delay, lossy && state.rng.random_bool(0.01), lossy && state.rng.random_bool(0.01))
        };
        sleep(delay).await;
        let reachable = {
            let state = self.state();
            state.proxies.get(proxy).is_some_and(|proxy| proxy.up)
                && !state.cut.contains(&(from, proxy.clone()))
        };
        if reachable && lost {
            self.deliver_late(proxy, message);
        }
        if !reachable || lost {
            sleep(self.reply_within.saturating_sub(delay)).await;
            return Err(Unreached("no reply".to_owned()));
        }
        let reply = self.deliver(proxy, message).await?;
        if unheard {
            sleep(self.reply_within.saturating_sub(delay)).await;
            return Err(Unreached("the reply was lost".to_owned()));
        }
        Ok(reply)
    }

    async fn deliver(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        self.judge_epoch(proxy, message).await;
        let mut state = self.state();
        state.messages += 1;
        let Some(receiver) = state.proxies.get_mut(proxy).filter(|proxy| proxy.up) else {
            return Err(Unreached("it is gone".to_owned()));
        };
        let before = (receiver.state.own().epoch, receiver.state.peers().epoch);
        let released: BTreeSet<Move> = receiver.state.released().cloned().collect();
        let meant = match message {
            Message::Releasing(told) => receiver.state.releasing(told).unwrap_or_default(),
            _ => Vec::new(),
        };
        if let Some(not) = meant.iter().find(|of| !released.contains(of) && !state.is_taken(proxy, of)) {
            return Ok(Reply::Refused(format!(
                "MIGRATING failed keys=0 why=\"{} does not take it\"",
                not.to
            )));
        }
        let Some(receiver) = state.proxies.get_mut(proxy) else {
            return Err(Unreached("it is gone".to_owned()));
        };
        let reply = receiver.obey(message);
        let after = (receiver.state.own().epoch, receiver.state.peers().epoch);
        if after.0 < before.0 || after.1 < before.1 {
            state.violation.get_or_insert(format!("an epoch went back at {proxy}"));
        }
        if reply == Reply::Done {
            meant.iter().for_each(|of| state.judge_release(proxy, of, released.contains(of)));
        }
        if !matches!(message, Message::Info | Message::Epoch) {
            state.judge_owners(proxy);
        }
        Ok(reply)
    }

    /// A part of what the sender has given up was buffered: it arrives long after, and is accepted then.
    fn deliver_late(self: &Arc<Net>, proxy: &Address, message: &Message) {
        let (net, proxy, message) = (self.clone(), proxy.clone(), message.clone());
        let mut state = self.state();
        if state.rng.random_bool(0.5) {
            return;
        }
        let delay = Duration::from_millis(state.rng.random_range(0..LATEST_MILLIS));
        state.late.push(OwnedTask::spawn(async move {
            sleep(delay).await;
            let _ = net.deliver(&proxy, &message).await;
        }));
    }

    /// Nothing is pushed before it is committed.
    async fn judge_epoch(&self, proxy: &Address, message: &Message) {
        let epoch = match message {
            Message::SetDb(told) | Message::SetPeer(told) => told.epoch,
            Message::SetRepl(told) => told.epoch,
            Message::SetConf(told) => told.epoch,
            _ => return,
        };
        let present = self.store.read(&HostEpochKey { proxy: proxy.clone() }).await;
        let last = self.store.read(&LastHostEpochKey { proxy: proxy.clone() }).await;
        // A store that is down judges nothing.
        let (Ok(present), Ok(last)) = (present, last) else { return };
        let committed = present.or(last).map_or(Epoch::NEVER_TOLD, |seen| seen.record);
        if epoch > committed {
            let text = format!("{proxy} got epoch {epoch} before it was committed ({committed})");
            self.state().violation.get_or_insert(text);
        }
    }
}

impl State {
    /// Whether the target of a move accepts its keys at this moment.
    fn is_taken(&self, source: &Address, of: &Move) -> bool {
        let target = self.proxies.get(&of.to).filter(|target| target.up);
        target.is_some_and(|target| target.coming().any(|one| one == arrival(source, of)))
    }

    /// A source releases only what its target has a copy of.
    fn judge_release(&mut self, source: &Address, of: &Move, before: bool) {
        let Some(target) = self.proxies.get_mut(&of.to) else { return };
        let arrives = arrival(source, of);
        if !before {
            target.has_arrived(arrives);
        } else if target.coming().any(|one| one == arrives) && !target.has(&arrives) {
            let text = format!("{source} has released {of}, of which there is no copy");
            self.violation.get_or_insert(text);
        }
    }

    /// No slot has two proxies that may serve it.
    pub fn judge_owners(&mut self, changed: &Address) {
        let found = self.two_owners(changed);
        if let Some(found) = found {
            self.violation.get_or_insert(found);
        }
    }

    fn two_owners(&self, changed: &Address) -> Option<String> {
        let one = self.proxies.get(changed)?;
        let serves = one.serves();
        for (other, proxy) in self.proxies.iter().filter(|(other, _)| *other != changed) {
            for (db, range) in proxy.serves() {
                let both = serves.iter().find(|(same, mine)| {
                    *same == db && mine.first() <= range.last() && range.first() <= mine.last()
                });
                if let Some((_, mine)) = both {
                    return Some(format!(
                        "slots {mine} of {db} are served by {changed} (SETDB {}, SETPEER {}) and {range} by {other} (SETDB {}, SETPEER {})",
                        one.state.own().epoch,
                        one.state.peers().epoch,
                        proxy.state.own().epoch,
                        proxy.state.peers().epoch
                    ));
                }
            }
        }
        None
    }
}

fn arrival(source: &Address, of: &Move) -> Arrival {
    (of.db.clone(), source.clone(), of.range, of.pairing)
}

/// The network as one coordinator sees it.
pub struct Link {
    pub net: Arc<Net>,
    pub from: u64,
}

impl Proxies for Link {
    async fn send(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        let mut message = message.clone();
        if let (Some(Sabotage::ReportsBeforeTheLeaseRanOut), Message::Lease(grant)) =
            (self.net.sabotage, &mut message)
        {
            grant.ttl_ms *= 8;
        }
        if let (Some(Sabotage::GrantsAloneWithoutTheStore), Message::Lease(grant)) =
            (self.net.sabotage, &mut message)
            && let Some(Basis { standing: standing @ Standing::Detached, .. }) = &mut grant.basis
        {
            *standing = Standing::Registered(vec![grant.coordinator.clone()]);
            grant.needed = 1;
        }
        self.net.carry(self.from, proxy, &message).await
    }
}
