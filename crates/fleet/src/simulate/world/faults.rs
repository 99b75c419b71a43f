//! What goes wrong in a simulated world, and what operators do about it.

use rand::RngExt;

use super::{Event, LEASE_MS, NEW, SimWorld};
use crate::facts::Source as _;
use crate::history::Outcome;
use crate::lrn::Lrn;
use crate::simulate::Sabotage;
use crate::spec::{Order, Orders, Target};
use capstan_meta::Txn;
use capstan_meta::record::{Key, Prefix};

/// How often operators look after everything once nothing goes wrong any more.
const TEND_MS: u64 = 120_000;

/// How long after a stop nothing runs any more: hosts look within 150 ms and end a step within two seconds.
const AUDIT_MS: u64 = 10_000;

/// How much earlier than the store a host believes that its lease is over.
const MARGIN_MS: u64 = 500;

/// Kinds of faults.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(in crate::simulate) enum Fault {
    Crash,
    Partition,
    Failover,
    Churn,
    Order,
}

impl SimWorld<'_> {
    /// Plants the first fault of each kind.
    pub(super) fn plant_faults(&mut self) {
        for fault in [Fault::Crash, Fault::Partition, Fault::Failover, Fault::Churn, Fault::Order] {
            self.plant(fault);
        }
    }

    fn plant(&mut self, fault: Fault) {
        let hosts = f64::from(self.scenario.hosts);
        let faults = &self.scenario.faults;
        let per_hour = match fault {
            Fault::Crash => faults.crashes_per_hour * hosts,
            Fault::Partition => faults.partitions_per_hour * hosts,
            Fault::Failover => faults.failovers_per_hour,
            Fault::Churn => faults.churn_per_hour,
            Fault::Order => faults.orders_per_hour,
        };
        if per_hour > 0.0 && !self.is_quiet() {
            let mean = 3_600_000.0 / per_hour;
            let wait = self.rng.random_range(0.1..2.0) * mean;
            self.after(wait as u64, Event::Fault(fault));
        }
    }

    pub(super) fn strike(&mut self, fault: Fault) {
        if self.is_quiet() {
            return;
        }
        match fault {
            Fault::Crash => self.crash(),
            Fault::Partition => self.partition(),
            Fault::Failover => self.fail_over(),
            Fault::Churn => self.churn(),
            Fault::Order => self.give_order(),
        }
        self.plant(fault);
    }

    fn any_host(&mut self) -> Option<Lrn> {
        let at = self.rng.random_range(0..self.hosts.len().max(1));
        self.hosts.keys().nth(at).copied()
    }

    fn crash(&mut self) {
        let Some(lrn) = self.any_host() else { return };
        let down = self.rng.random_range(500..90_000);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if !host.up {
            return;
        }
        host.crash();
        let lease = host.lease;
        self.deed("crash");
        self.after(LEASE_MS, Event::Expire(lease));
        self.after(down, Event::Boot(lrn));
    }

    fn partition(&mut self) {
        let Some(lrn) = self.any_host() else { return };
        let lasts = self.rng.random_range(500..60_000);
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        if !host.linked {
            return;
        }
        host.linked = false;
        let lease = host.lease;
        self.deed("partition");
        if lasts > LEASE_MS {
            self.after(LEASE_MS - MARGIN_MS, Event::Doubt(lrn));
            self.after(LEASE_MS, Event::Expire(lease));
        }
        self.after(lasts, Event::Heal(lrn));
    }

    /// The leader dies or loses its lease; what it has decided may still be under way.
    fn fail_over(&mut self) {
        let Some((key, _)) = self.leader.take() else { return };
        self.deed("failover");
        let gone = self.store.remove(&key);
        self.changed(&gone);
        let wait = self.rng.random_range(100..3_000);
        self.after(wait, Event::Elect);
    }

    fn churn(&mut self) {
        let joins = self.rng.random_range(0..2) == 0 || self.hosts.len() <= 3;
        if joins {
            let next = self.hosts.keys().next_back().map_or(0, |lrn| lrn.0 + 1);
            self.deed("join");
            self.join(Lrn(next));
            self.plan_in(100);
            return;
        }
        let Some(lrn) = self.any_host() else { return };
        self.deed("leave");
        if self.rng.random_range(0..2) == 0 {
            self.leave(lrn);
        } else {
            self.leave_in_order(lrn);
        }
    }

    /// A host leaves while it works: its worker ends what it is doing, says so, and only then is it forgotten.
    fn leave_in_order(&mut self, lrn: Lrn) {
        let registered = self.tree.boot_server(lrn);
        let forgets = self.scenario.sabotage == Sabotage::ForgetsWhoLeaves;
        let Some(host) = self.hosts.get_mut(&lrn) else { return };
        host.leaving = true;
        let mut txn = Txn::new().then(registered.delete());
        if forgets {
            txn = txn.then(self.tree.host_keys(lrn).delete_all()).then(self.tree.host_status(lrn).delete());
        }
        let changed = self.store.commit(&txn).unwrap_or_default();
        self.changed(&changed);
        self.wake(lrn);
    }

    /// A host that left and has stopped, or is gone, is forgotten.
    pub(super) fn take_away(&mut self, lrn: Lrn) {
        self.deed("taken away");
        self.leave(lrn);
    }

    fn leave(&mut self, lrn: Lrn) {
        let Some(host) = self.hosts.remove(&lrn) else { return };
        self.truths.remove(&lrn);
        self.safety.forget(lrn);
        let txn = Txn::new()
            .then(self.tree.boot_server(lrn).delete())
            .then(self.tree.installed_on(lrn).delete_all())
            .then(self.tree.host_keys(lrn).delete_all())
            .then(self.tree.host_status(lrn).delete());
        let changed = self.store.commit(&txn).unwrap_or_default();
        self.after(LEASE_MS, Event::Expire(host.lease));
        self.changed(&changed);
    }

    fn orders(&mut self, change: impl FnOnce(&mut Orders)) {
        let Some(request) = self.request() else { return };
        let key = self.tree.orders(request.record.generation);
        let mut orders =
            self.store.records.get(&key).ok().flatten().map(|seen| seen.record.clone()).unwrap_or_default();
        change(&mut orders);
        let changed = self.store.set(&key, &orders);
        self.changed(&[changed]);
    }

    fn give_order(&mut self) {
        let now = self.moment();
        let order = Order { by: "operator".to_owned(), reason: "simulated".to_owned(), at: now };
        let host = self.any_host();
        match self.rng.random_range(0..9) {
            0 => {
                self.deed("pause");
                self.orders(|orders| orders.paused = Some(order));
            }
            1 | 2 => {
                self.deed("resume");
                self.orders(|orders| {
                    orders.paused = None;
                    orders.resumed_at = Some(now);
                });
            }
            3 => self.give_stop(),
            4 => self.recover(),
            5 => {
                let Some(lrn) = host else { return };
                self.deed("skip");
                self.orders(|orders| {
                    orders.skip.insert(lrn, order);
                });
            }
            6 => {
                self.deed("promote");
                self.orders(|orders| orders.promoted += 1);
            }
            _ => {
                let Some(lrn) = host else { return };
                self.deed("retry");
                self.orders(|orders| {
                    orders.skip.remove(&lrn);
                    *orders.retry.entry(lrn).or_default() += 1;
                });
            }
        }
    }

    /// An operator stops the rollout; half of the time the leader has just died.
    pub(super) fn give_stop(&mut self) {
        self.deed("order to stop");
        if self.rng.random_range(0..2) == 0 {
            self.lose_leader();
        }
        let Ok(Some(seen)) = self.store.records.get(&self.tree.current()) else { return };
        if seen.record.stop {
            return;
        }
        let generation = seen.record.generation;
        if self.scenario.sabotage == Sabotage::StopNeedsALeader {
            let order =
                Order { by: "operator".to_owned(), reason: "simulated".to_owned(), at: self.moment() };
            self.orders(|orders| orders.stopped = Some(order));
        } else {
            let stop_reason = "stopped by operator: simulated".to_owned();
            let stopped = crate::status::Request { stop: true, stop_reason, ..seen.record.clone() };
            let changed = self.store.set(&self.tree.current(), &stopped);
            self.changed(&[changed]);
        }
        self.stop_told = Some(generation);
        let told = self.now;
        self.after(AUDIT_MS, Event::Audit { generation, told });
    }

    /// The leader is dead, and no updater can be elected until its lease is over.
    fn lose_leader(&mut self) {
        let Some((key, _)) = self.leader.take() else { return };
        self.deed("failover");
        let gone = self.store.remove(&key);
        self.changed(&gone);
        let wait = self.rng.random_range(1_000..30_000);
        self.after(wait, Event::Elect);
    }

    /// What `recover` does, in one transaction.
    fn recover(&mut self) {
        let Ok(Some(seen)) = self.store.records.get(&self.tree.current()) else { return };
        if !seen.record.stop {
            return;
        }
        self.deed("recover");
        let history = self.tree.history(seen.record.generation);
        let mut note = self
            .store
            .records
            .get(&history)
            .ok()
            .flatten()
            .map(|seen| seen.record.clone())
            .unwrap_or_default();
        note.outcome.get_or_insert(Outcome::Stopped);
        let target = Target { version: NEW.to_owned(), by: "operator".to_owned(), ..Target::default() };
        let txn = Txn::new()
            .when(self.tree.current().unchanged(&seen))
            .then(self.tree.current().delete())
            .then(self.tree.released().delete())
            .then(self.tree.host_statuses().delete_all())
            .then(self.tree.target().put(&target))
            .then(history.put(&note));
        if let Some(changed) = self.store.commit(&txn) {
            self.changed(&changed);
        }
    }

    /// Nothing goes wrong any more: hosts are started and repaired, and whatever waits for a person gets one.
    pub(super) fn tend(&mut self) {
        let lrns: Vec<Lrn> = self.hosts.keys().copied().collect();
        for lrn in lrns {
            if let Some(host) = self.hosts.get_mut(&lrn) {
                host.bad = false;
            }
            self.heal(lrn);
            self.boot(lrn);
            self.serve(lrn);
        }
        if self.leader.is_none() {
            self.after(10, Event::Elect);
        }
        self.recover();
        let now = self.moment();
        let failed: Vec<Lrn> = self
            .store
            .records
            .list(&self.tree.host_statuses())
            .iter()
            .filter(|(_, seen)| seen.record.error)
            .map(|(key, _)| key.lrn)
            .collect();
        let given_up = self.store.records.list(&self.tree.desireds());
        let given_up =
            given_up.iter().filter(|(_, seen)| seen.record.failure.is_some()).map(|(key, _)| key.lrn);
        let again: std::collections::BTreeSet<Lrn> = failed.into_iter().chain(given_up).collect();
        let stuck = self.scenario.sabotage == Sabotage::SkipHoldsItsSlot;
        self.orders(|orders| {
            orders.paused = None;
            orders.resumed_at = Some(now);
            if !stuck {
                orders.skip.clear();
            }
            for lrn in again {
                *orders.retry.entry(lrn).or_default() += 1;
            }
        });
        self.after(TEND_MS, Event::Tend);
    }
}
