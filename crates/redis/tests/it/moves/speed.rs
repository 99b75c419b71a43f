//! How fast does a range move without writes?

use std::time::Instant;

use capstan_testkit::seed;

use super::host::{Host, coming, leaving, range};

/// What a release build must reach; a debug build only shows that it works.
const KEYS_A_SECOND: f64 = 60_000.0;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn small_keys_move_quickly() {
    let keys: u32 = seed::soak(if cfg!(debug_assertions) { 10_000 } else { 150_000 }, 300_000);
    let (mut source, mut target) = (Host::start().await, Host::start().await);
    let mut connection = source.connection().await;
    for chunk in (0..keys).collect::<Vec<_>>().chunks(1000) {
        let mut pipe = redis::pipe();
        for key in chunk {
            pipe.cmd("SET").arg(format!("key:{key}")).arg("x".repeat(64)).ignore();
        }
        pipe.exec_async(&mut connection).await.unwrap();
    }
    let began = Instant::now();
    target.set(&[coming(&source, 0, 16_383)]);
    source.set(&[leaving(&target, 0, 16_383)]);
    source.released(range(0, 16_383)).await;
    let rate = f64::from(keys) / began.elapsed().as_secs_f64();
    eprintln!("{rate:.0} keys/s, {}", source.moves.lines().join("\n"));
    let arrived: u32 = redis::cmd("DBSIZE").query_async(&mut target.connection().await).await.unwrap();
    assert_eq!(arrived, keys);
    if !cfg!(debug_assertions) && seed::soak(false, true) {
        assert!(rate >= KEYS_A_SECOND, "{rate:.0} keys/s");
    }
}
