//! Real processes on a real etcd: hosts and controllers are killed with -9 and drained; the beacons stay lit.

use std::path::Path;
use std::time::Duration;

use capstan_control::drain::{self, Ask, DrainPhase};
use capstan_control::keys::HostId;
use capstan_example::check::findings;
use capstan_example::controller::SERVICE;
use capstan_example::facts::Facts;
use capstan_example::keys::{BeaconName, SpecKey};
use capstan_example::spec::Spec;
use capstan_meta::etcd::{self, EtcdOptions};
use capstan_meta::record::Key as _;
use capstan_meta::view::{View, ViewOptions};
use capstan_meta::{Store, Txn};
use capstan_testkit::{Etcd, Process, TempDir, eventually};

const SOON: Duration = Duration::from_secs(90);

fn start(etcd: &Etcd, dir: &Path, role: &str, id: &str) -> Process {
    let mut builder = Process::builder(env!("CARGO_BIN_EXE_beacon"));
    builder = builder.args([role, "--meta", etcd.endpoint(), "--id", id]);
    if role == "host" {
        builder = builder.args(["--dir", dir.join(id).to_str().unwrap()]);
    }
    builder.spawn(dir.join(format!("{role}-{id}.log"))).unwrap()
}

struct Cluster {
    store: Store,
    view: View,
    beacon: BeaconName,
}

impl Cluster {
    async fn open(etcd: &Etcd) -> Cluster {
        let store = Store::new(etcd::Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
        let view = View::open(store.clone(), Facts::ranges(), ViewOptions::default()).await.unwrap();
        Cluster { store, view, beacon: "harbour".parse().unwrap() }
    }

    fn facts(&self) -> Facts {
        Facts::of(&self.view.snapshot())
    }

    /// Waits until the beacon is lit on exactly these hosts and nothing is wrong.
    async fn lit_on(&self, hosts: &[&str]) {
        eventually("the beacon is lit where it should be", SOON, async || {
            let facts = self.facts();
            let lit: Vec<String> = facts
                .lit
                .iter()
                .filter(|(_, host)| facts.up.contains(host))
                .map(|(_, host)| host.to_string())
                .collect();
            match findings(&facts) {
                found if found.is_empty() && lit == hosts => Ok(()),
                found => Err(format!("lit on {lit:?}, wanted {hosts:?}; {found:?}")),
            }
        })
        .await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn beacons_survive_kills_and_drains() {
    let dir = TempDir::new("beacons").unwrap();
    let etcd = Etcd::start().await.unwrap();
    let mut controllers =
        [start(&etcd, dir.path(), "controller", "c1"), start(&etcd, dir.path(), "controller", "c2")];
    let mut hosts = ["a", "b", "c"].map(|id| start(&etcd, dir.path(), "host", id));
    let cluster = Cluster::open(&etcd).await;
    eventually("three hosts are up", SOON, async || match cluster.facts().up.len() {
        3 => Ok(()),
        up => Err(format!("{up} are up")),
    })
    .await;
    let spec = SpecKey { beacon: cluster.beacon.clone() };
    cluster.store.commit(Txn::new().then(spec.put(&Spec { copies: 2 }))).await.unwrap();
    cluster.lit_on(&["a", "b"]).await;

    // A host that is killed and comes back finds its beacon on disk.
    hosts[0].kill9().unwrap();
    hosts[0] = start(&etcd, dir.path(), "host", "a");
    eventually("a is back with its beacon", SOON, async || {
        let found = std::fs::read_dir(dir.join("a")).map_err(|error| error.to_string())?.count();
        if found == 1 && findings(&cluster.facts()).is_empty() {
            Ok(())
        } else {
            Err(format!("{found} files"))
        }
    })
    .await;

    // The leader is killed; the other controller takes over, and a drain is answered.
    controllers[0].kill9().unwrap();
    let host: HostId = "b".parse().unwrap();
    let ask = Ask { asked_by: "test".into(), reason: "test".into(), asked_at: 1, services: Vec::new() };
    drain::ask(&cluster.store, &host, &ask).await.unwrap();
    eventually("b is drained", SOON, async || {
        let status = drain::statuses(&cluster.view.snapshot());
        match status.first() {
            Some(status) if status.phase == DrainPhase::Drained => Ok(()),
            other => Err(format!("{other:?}, {SERVICE}")),
        }
    })
    .await;
    cluster.lit_on(&["a", "c"]).await;
}
