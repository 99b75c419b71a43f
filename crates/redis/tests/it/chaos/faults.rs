//! What goes wrong, for how long, and how it ends.

use std::time::Duration;

use capstan_redis::api;
use capstan_redis::spec::{ClusterSpec, Persistence};
use capstan_redis::status::NodeRecord;
use capstan_testkit::proxy::Flow;
use nix::sys::signal::Signal;
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::{IndexedRandom, SliceRandom};

use super::installation::Installation;

/// What a fault does. Those that end by themselves, or by [`Installation::repair`], never need an operator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    /// kill -9 of a redis-server.
    KillPrimary,
    KillReplica,
    /// kill -9 of a replica, and of its primary a moment later.
    KillReplicaThenPrimary,
    /// kill -9 of a daemon: its servers run on.
    KillDaemon,
    /// kill -9 of a daemon and its servers.
    KillHost,
    /// kill -9 of a daemon and its servers; the host returns with an empty disk.
    LoseDisk,
    FreezePrimary,
    FreezeReplica,
    FreezeDaemon,
    /// SIGSTOP of a daemon and its servers.
    FreezeHost,
    /// A daemon and its servers are slow: they are stopped most of the time.
    SlowHost,
    KillController,
    CutHostFromStore,
    CutHostFromControllers,
    CutHostFromOneController,
    CutControllersFromStore,
    /// A replica loses its primary, and cannot connect to it.
    CutReplication,
    KillStore,
    FreezeStore,
    /// An operator promotes a replica.
    Failover,
    /// Slots move.
    Rebalance,
    /// kill -9 of everything.
    PowerCut,
}

impl Fault {
    /// Those that the specification promises to survive without an operator.
    pub(super) fn survivable(spec: &ClusterSpec) -> Vec<Fault> {
        use Fault::*;
        let mut faults = vec![
            KillDaemon,
            FreezePrimary,
            FreezeDaemon,
            FreezeHost,
            SlowHost,
            KillController,
            CutHostFromStore,
            CutHostFromControllers,
            CutHostFromOneController,
            CutControllersFromStore,
            KillStore,
            FreezeStore,
            Rebalance,
        ];
        if spec.replicas > 0 {
            faults.extend([KillPrimary, KillReplica, KillHost, LoseDisk]);
            faults.extend([FreezeReplica, CutReplication, Failover]);
        }
        // Everything that a killed server has acknowledged is in its file.
        if spec.serving.persistence == Persistence::Aof {
            faults.extend([KillPrimary, KillHost, PowerCut]);
            if spec.replicas > 0 {
                faults.push(KillReplicaThenPrimary);
            }
        }
        faults
    }

    /// Whether everything on a host is lost: another fault at the same time may take the last copy.
    pub(super) fn comes_alone(self) -> bool {
        self == Fault::LoseDisk
    }

    /// Whether all copies of a shard lose what is only in their memory.
    pub(super) fn ends_copies(self) -> bool {
        matches!(self, Fault::KillReplicaThenPrimary | Fault::PowerCut)
    }

    /// Whether redis-servers lose what is only in their memory.
    pub(super) fn ends_processes(self) -> bool {
        use Fault::*;
        matches!(self, KillPrimary | KillReplica | KillReplicaThenPrimary | KillHost | LoseDisk | PowerCut)
    }

    /// Whether a shard may change its primary because of it.
    pub(super) fn may_fail_over(self) -> bool {
        use Fault::*;
        !matches!(self, KillReplica | FreezeReplica | KillController | CutHostFromOneController | Rebalance)
    }
}

fn any<'n>(
    nodes: &'n [NodeRecord],
    is: impl Fn(&NodeRecord) -> bool,
    rng: &mut StdRng,
) -> Option<&'n NodeRecord> {
    nodes.iter().filter(|node| is(node)).collect::<Vec<_>>().choose(rng).copied()
}

/// Lets at most this many milliseconds pass.
async fn moment(rng: &mut StdRng, millis: u64) {
    let time = Duration::from_millis(rng.random_range(0..millis));
    // tidy: allow, because faults come at random instants
    tokio::time::sleep(time).await;
}

impl Installation {
    /// Begins a fault. It lasts until [`repair`](Installation::repair).
    pub(super) async fn strike(&mut self, fault: Fault, nodes: &[NodeRecord], rng: &mut StdRng) {
        let primary = any(nodes, NodeRecord::is_primary, rng).unwrap().clone();
        let replica = any(nodes, |node| node.replica_of.as_ref() == Some(&primary.address), rng).cloned();
        let at = self.host_of(&primary);
        let one = rng.random_range(0..self.controllers.len());
        let address = self.hosts[at].address();
        match fault {
            Fault::KillPrimary => self.signal(&primary, Signal::SIGKILL),
            Fault::FreezePrimary => self.signal(&primary, Signal::SIGSTOP),
            Fault::KillReplica => replica.iter().for_each(|replica| self.signal(replica, Signal::SIGKILL)),
            Fault::FreezeReplica => replica.iter().for_each(|replica| self.signal(replica, Signal::SIGSTOP)),
            Fault::KillReplicaThenPrimary => {
                replica.iter().for_each(|replica| self.signal(replica, Signal::SIGKILL));
                moment(rng, 600).await;
                self.signal(&primary, Signal::SIGKILL);
            }
            Fault::KillDaemon => self.hosts[at].kill_daemon(),
            Fault::KillHost => {
                self.hosts[at].kill_daemon();
                self.hosts[at].kill_servers();
            }
            Fault::LoseDisk => {
                self.hosts[at].kill_daemon();
                self.hosts[at].kill_servers();
                self.hosts[at].lose_disk();
            }
            Fault::FreezeDaemon => self.hosts[at].signal_daemon(Signal::SIGSTOP),
            Fault::FreezeHost => {
                self.hosts[at].signal_daemon(Signal::SIGSTOP);
                self.hosts[at].signal_servers(Signal::SIGSTOP);
            }
            Fault::SlowHost => {
                for _ in 0..8 {
                    self.hosts[at].signal_servers(Signal::SIGSTOP);
                    self.hosts[at].signal_daemon(Signal::SIGSTOP);
                    moment(rng, 800).await;
                    self.hosts[at].signal_daemon(Signal::SIGCONT);
                    self.hosts[at].signal_servers(Signal::SIGCONT);
                    moment(rng, 200).await;
                }
            }
            Fault::KillController => self.controllers[one].kill(),
            Fault::CutHostFromStore => self.hosts[at].way_to_store.set_both(Flow::Swallow),
            Fault::CutHostFromControllers => self.controllers.iter().for_each(|it| it.cut(&address)),
            Fault::CutHostFromOneController => self.controllers[one].cut(&address),
            Fault::CutControllersFromStore => {
                self.controllers.iter().for_each(|it| it.way_to_store.set_both(Flow::Swallow));
            }
            Fault::CutReplication => replica.iter().for_each(|replica| self.break_link(replica)),
            Fault::KillStore => assert!(!self.etcd.kill9().unwrap().success()),
            Fault::FreezeStore if self.etcd.process().exit_status().unwrap().is_some() => {}
            Fault::FreezeStore => self.etcd.pause().unwrap(),
            // A replica that is not in sync is refused.
            Fault::Failover => drop(api::failover(self.store(), &self.name(), &primary.address, None).await),
            Fault::Rebalance => self.move_slots(nodes, &primary).await,
            Fault::PowerCut => {
                assert!(!self.etcd.kill9().unwrap().success());
                self.controllers.iter_mut().for_each(super::installation::Controller::kill);
                for host in &mut self.hosts {
                    host.kill_daemon();
                    host.kill_servers();
                }
            }
        }
    }

    fn signal(&self, node: &NodeRecord, signal: Signal) {
        self.hosts[self.host_of(node)].signal_server(node.address.port(), signal);
    }

    /// A replica gets a wrong password for its primary, and loses its connection.
    fn break_link(&self, replica: &NodeRecord) {
        // A node that does not reply has no link either.
        let Ok(mut wire) = self.hosts[self.host_of(replica)].node(&replica.address) else { return };
        for words in ["CONFIG SET masterauth wrong", "CLIENT KILL TYPE master"] {
            drop(wire.say(words));
        }
    }

    /// Moves some slots of a primary to another one.
    async fn move_slots(&self, nodes: &[NodeRecord], primary: &NodeRecord) {
        let other = nodes.iter().find(|node| node.is_primary() && node.address != primary.address);
        let range = primary.owned().next();
        let (Some(other), Some(range)) = (other, range) else { return };
        let half = range.first() + (range.last() - range.first()) / 2;
        let range = capstan_redis::slots::SlotRange::new(range.first().into(), half.into()).unwrap();
        let wish = capstan_redis::decide::Wish { range, target: other.address.clone() };
        // Refused while another move of these slots is in progress.
        drop(capstan_redis::broker::begin_move(self.store(), &self.name(), &wish, "chaos").await);
    }

    /// Ends every fault, in a random order.
    pub(super) async fn repair(&mut self, nodes: &[NodeRecord], rng: &mut StdRng) {
        let mut steps: Vec<usize> = (0..=self.hosts.len() + self.controllers.len()).collect();
        steps.shuffle(rng);
        for step in steps {
            match step.checked_sub(1) {
                None => self.repair_store().await,
                Some(at) if at < self.hosts.len() => self.repair_host(at, nodes).await,
                Some(at) => self.repair_controller(at - self.hosts.len()).await,
            }
        }
    }

    async fn repair_store(&mut self) {
        if self.etcd.process().exit_status().unwrap().is_some() {
            self.etcd.restart().await.unwrap();
        } else {
            self.etcd.resume().unwrap();
        }
    }

    async fn repair_host(&mut self, at: usize, nodes: &[NodeRecord]) {
        let host = &mut self.hosts[at];
        host.way_to_store.heal().await;
        if host.is_dead() {
            host.boot().await;
        }
        host.signal_servers(Signal::SIGCONT);
        host.signal_daemon(Signal::SIGCONT);
        let (host, here) = (&self.hosts[at], |node: &&NodeRecord| self.host_of(node) == at);
        for node in nodes.iter().filter(here) {
            host.repair_link(&node.address);
        }
    }

    async fn repair_controller(&mut self, at: usize) {
        let controller = &mut self.controllers[at];
        controller.heal();
        controller.way_to_store.heal().await;
        if controller.is_dead() {
            controller.boot().await;
        }
    }
}
