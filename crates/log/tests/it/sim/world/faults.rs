//! Crashes, restarts, lost disks and the weather of the network.

use super::*;

impl World {
    pub(super) fn restart(&mut self, id: &HolderId) {
        let timing = Timing {
            heartbeat: Duration::from_millis(50),
            resend: Duration::from_millis(150),
            lag: Duration::from_millis(400),
            behind: Duration::from_millis(1_500),
            window: 16,
            shipment: 4,
        };
        let node = self.nodes.get_mut(id).unwrap();
        node.life += 1;
        node.lease = 0;
        let (start, history) = (Offset(node.disk.seen.start()), node.disk.seen.history());
        let known_life = if self.bug == Bug::BelieveEarlierLives { 1 } else { node.life };
        node.replica = Some(Replica::new(id.clone(), start, history, timing).in_life(known_life));
        node.generation = 0;
        let rest = Duration::from_millis(self.rng.random_range(0..1_000));
        let node = self.nodes.get_mut(id).unwrap();
        if let Some(replica) = &mut node.replica {
            replica.rest_up_to(rest);
        }
        let life = node.life;
        self.after(0..50, Next::Look { node: id.clone(), life });
        if life == 1 {
            self.after(0..50, Next::Tick(id.clone()));
            self.after(0..50, Next::Renew(id.clone()));
        }
    }

    pub(super) fn crash(&mut self) {
        self.after(100..1_500, Next::Crash);
        let victim = id(NODES[self.rng.random_range(0..NODES.len())]);
        if self.chaos && self.nodes[&victim].replica.is_some() {
            self.fall(victim);
        }
    }

    /// A node crashes, and may lose some of what was durable.
    pub(super) fn fall(&mut self, victim: HolderId) {
        self.seen.crashes += 1;
        let node = self.nodes.get_mut(&victim).unwrap();
        let kept = self.rng.random_range(0..=node.disk.waiting());
        node.disk.crash(kept);
        node.replica = None;
        node.waiting.clear();
        if self.rng.random_bool(0.2) {
            self.lose(&victim);
        }
        self.after(10..2_000, Next::Restart(victim));
    }

    /// A copy that is down loses some of what was durable. It leaves the in-sync set before it takes part again; the only
    /// complete copy loses nothing, because nothing could be done about that.
    pub(super) fn lose(&mut self, victim: &HolderId) {
        let config = self.store.config.clone();
        let Ok(mut distrusted) = config.distrust(victim) else { return };
        let disk = &mut self.nodes.get_mut(victim).unwrap().disk;
        let (start, end) = (disk.durable.start(), disk.durable.end());
        disk.lose(self.rng.random_range(start..=end));
        self.seen.losses += 1;
        if self.bug == Bug::BelieveEarlierLives && config.primary != *victim {
            (distrusted.epoch, distrusted.primary) = (config.epoch, config.primary.clone());
        }
        if self.bug != Bug::KeepALossSecret && distrusted != config {
            self.write(distrusted);
        }
    }

    pub(super) fn is_blind(&self, node: &HolderId) -> bool {
        self.blind.get(node).is_some_and(|until| *until > self.now)
    }

    /// A node is cut off from the store, sometimes for longer than its lease lasts.
    pub(super) fn blind(&mut self) {
        self.after(1_000..4_000, Next::Blind);
        if self.chaos {
            let victim = id(NODES[self.rng.random_range(0..NODES.len())]);
            let time = Duration::from_millis(self.rng.random_range(0..3_500));
            self.blind.insert(victim, self.now + time);
        }
    }

    pub(super) fn weather(&mut self) {
        self.after(200..1_500, Next::Weather);
        if !self.chaos {
            return;
        }
        self.loss = [0.0, 0.0, 0.1, 0.4][self.rng.random_range(0..4)];
        self.cut.clear();
        for from in NODES {
            for to in NODES {
                if self.rng.random_bool(0.15) {
                    self.cut.insert((id(from), id(to)));
                }
            }
        }
    }

    pub(super) fn renew(&mut self, node: HolderId) {
        self.after(150..350, Next::Renew(node.clone()));
        let blind = self.is_blind(&node);
        if self.nodes[&node].replica.is_none() || blind || self.chaos && self.rng.random_bool(0.25) {
            return;
        }
        let Node { life, lease, .. } = self.nodes[&node];
        let asked = self.nodes[&node].local(self.now);
        let late = if self.chaos && self.rng.random_bool(0.1) { 900 } else { 20 };
        self.after(0..late, Next::Renewed { node, life, lease, asked });
    }
}
