//! Clients that write continuously and verify what they wrote.

use std::collections::HashMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redis::cluster::ClusterClient;
use redis::cluster_async::ClusterConnection;
use tokio::task::JoinSet;

const CLIENTS: u64 = 8;
const KEYS_EACH: u64 = 500;
/// Fewer requests than this are no load.
const FEWEST_REQUESTS: u64 = 100;

/// What one client wrote and saw.
#[derive(Debug, Default)]
struct Account {
    values: HashMap<String, u64>,
    requests: u64,
    /// The longest that three requests in a row took.
    slowest: Duration,
    wrong: Vec<String>,
}

/// Clients at work on a cluster.
pub struct Load {
    seeds: Vec<String>,
    stop: Arc<AtomicBool>,
    clients: JoinSet<Account>,
}

impl Load {
    /// Begins; `proxies` are those of a cluster that serves.
    pub async fn start(proxies: &[SocketAddr]) -> Load {
        let seeds: Vec<String> = proxies.iter().map(|proxy| format!("redis://{proxy}")).collect();
        let stop = Arc::new(AtomicBool::new(false));
        let mut clients = JoinSet::new();
        for me in 0..CLIENTS {
            clients.spawn(client(connect(&seeds).await.unwrap(), me, stop.clone()));
        }
        Load { seeds, stop, clients }
    }

    /// Stops. No client may have seen an error or a wrong value, and every written value is still there.
    pub async fn finish(self) {
        self.stop.store(true, Ordering::Relaxed);
        let accounts = self.clients.join_all().await;
        for account in &accounts {
            assert!(account.wrong.is_empty(), "{:#?}", account.wrong);
            assert!(account.requests > FEWEST_REQUESTS, "hardly any load");
        }
        let mut connection = connect(&self.seeds).await.unwrap();
        for (key, value) in accounts.iter().flat_map(|account| &account.values) {
            let kept: Option<u64> = redis::cmd("GET").arg(key).query_async(&mut connection).await.unwrap();
            assert_eq!(kept, Some(*value), "{key}");
        }
        let requests: u64 = accounts.iter().map(|account| account.requests).sum();
        let slowest = accounts.iter().map(|account| account.slowest).max().unwrap_or_default();
        eprintln!("{requests} requests without an error; the slowest three in a row took {slowest:?}");
    }
}

/// Writes and reads back its own keys until stopped. Every reply is compared with what it wrote before.
async fn client(mut connection: ClusterConnection, me: u64, stop: Arc<AtomicBool>) -> Account {
    let mut account = Account::default();
    let mut turn = 0;
    while !stop.load(Ordering::Relaxed) {
        turn += 1;
        let begun = Instant::now();
        let key = format!("client-{me}-{}", turn % KEYS_EACH);
        let read: Result<Option<u64>, _> = redis::cmd("GET").arg(&key).query_async(&mut connection).await;
        let wrote: Result<String, _> =
            redis::cmd("SET").arg(&key).arg(turn).query_async(&mut connection).await;
        let counted: Result<u64, _> =
            redis::cmd("INCR").arg(format!("count-{me}")).query_async(&mut connection).await;
        let expected = account.values.insert(key.clone(), turn);
        account.requests += 3;
        account.slowest = account.slowest.max(begun.elapsed());
        match (read, wrote, counted) {
            (Ok(read), Ok(_), Ok(count)) if read == expected && count == turn => {}
            answers => {
                account.wrong.push(format!("{key} in turn {turn}, expected {expected:?}: {answers:?}"))
            }
        }
    }
    account
}

async fn connect(seeds: &[String]) -> redis::RedisResult<ClusterConnection> {
    ClusterClient::new(seeds.to_vec())?.get_async_connection().await
}
