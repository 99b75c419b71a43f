//! Do the embedded store, its wire and a real etcd answer alike? Random scripts run on all of them, and everything that
//! they say is compared, counted from the revision at which the script began. A difference is shrunk to a small script.

mod lives;
mod perform;
mod script;

use std::sync::atomic::{AtomicI64, Ordering};

use capstan_meta::Store;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::etcd::{Etcd, EtcdOptions};
use capstan_testkit as testkit;
use capstan_testkit::seed;
use proptest::test_runner::{Config, RngAlgorithm, TestCaseError, TestError, TestRng, TestRunner};

use crate::subjects::{fresh_prefix, serve};
use perform::perform;
use script::{Script, scripts};

/// Scripts of a normal run, and of a long one (`CAPSTAN_SOAK=1`).
const CASES: u32 = 200;
const SOAK_CASES: u32 = 20_000;
/// Steps that shrinking may take: each runs a script on etcd.
const SHRINK_STEPS: u32 = 500;

#[test]
fn embedded_and_etcd_answer_alike() {
    seed::seeds(1, |seed| {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let etcd = runtime.block_on(testkit::Etcd::start()).unwrap();
        let config = Config {
            cases: seed::soak(CASES, SOAK_CASES),
            max_shrink_iters: SHRINK_STEPS,
            failure_persistence: None,
            ..Config::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng = TestRng::from_seed(RngAlgorithm::ChaCha, &bytes);
        let tried = TestRunner::new_with_rng(config, rng)
            .run(&scripts(), |script| runtime.block_on(compare(&etcd, &script)).map_err(TestCaseError::fail));
        match tried {
            Ok(()) => {}
            Err(TestError::Fail(difference, script)) => panic!("{difference}\nsmallest script: {script:#?}"),
            Err(TestError::Abort(reason)) => panic!("{reason}"),
        }
    });
}

/// Runs a script on the embedded store, on the same over its wire, and on etcd; an error is their first difference.
async fn compare(etcd: &testkit::Etcd, script: &Script) -> Result<(), String> {
    // Leases of all scripts share one etcd.
    static NEXT_LEASE: AtomicI64 = AtomicI64::new(1_000);
    let lease = NEXT_LEASE.fetch_add(10, Ordering::Relaxed);
    let embedded = || Embedded::in_memory(embedded::Options::default());
    let (endpoint, _server) = serve(embedded()).await;
    let wire = connect(EtcdOptions::new([endpoint])).await?;
    let theirs = connect(EtcdOptions::new([etcd.endpoint()]).prefix(fresh_prefix())).await?;
    let theirs = perform(&theirs, script, lease).await;
    for (name, ours) in [("embedded", Store::new(embedded())), ("    wire", wire)] {
        let ours = perform(&ours, script, lease).await;
        let differ = ours.iter().zip(&theirs).find(|(ours, theirs)| ours != theirs);
        if let Some((ours, theirs)) = differ {
            return Err(format!("{name}: {ours}\n    etcd: {theirs}"));
        }
        assert_eq!(ours.len(), theirs.len(), "{name} and etcd did not get the same number of questions");
    }
    Ok(())
}

async fn connect(options: EtcdOptions) -> Result<Store, String> {
    Etcd::connect(options).await.map(Store::new).map_err(|error| error.to_string())
}
