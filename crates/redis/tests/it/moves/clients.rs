//! Clients of two proxies that are as strict as a test can be: every error is a failure, except for
//! redirections, and for errors that a test expects because it killed the process at the other end.

use std::net::SocketAddr;
use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisResult, Value};

use super::host::SOON;
use super::shadow::Front;
use super::workload::Op;

/// How many redirections a client follows before that is an error of its own.
const MAX_HOPS: usize = 200;
/// The pause before a retry.
const RETRY_EVERY: Duration = Duration::from_millis(2);

async fn connect(address: SocketAddr) -> RedisResult<MultiplexedConnection> {
    let client = redis::Client::open(format!("redis://{address}/"))?;
    let config = AsyncConnectionConfig::new().set_response_timeout(None);
    client.get_multiplexed_async_connection_with_config(&config).await
}

/// A client that has both proxies and follows redirections; every other error is returned.
#[derive(Clone)]
pub(super) struct Redirected {
    proxies: [MultiplexedConnection; 2],
    at: usize,
}

impl Redirected {
    pub(super) async fn to([source, target]: [SocketAddr; 2]) -> Redirected {
        let proxies = [connect(source).await.unwrap(), connect(target).await.unwrap()];
        Redirected { proxies, at: 0 }
    }

    pub(super) async fn query<T: redis::FromRedisValue>(&mut self, cmd: &Cmd) -> RedisResult<T> {
        for _ in 0..MAX_HOPS {
            match cmd.query_async(&mut self.proxies[self.at]).await {
                Err(error) if error.code() == Some("MOVED") => self.at = 1 - self.at,
                other => return other,
            }
        }
        panic!("sent to and fro");
    }

    /// A transaction, which runs on one side as a whole or not at all.
    pub(super) async fn transact<T: redis::FromRedisValue>(&mut self, pipe: &Pipeline) -> RedisResult<T> {
        for _ in 0..MAX_HOPS {
            match pipe.query_async(&mut self.proxies[self.at]).await {
                // Nothing was executed in either case.
                Err(error) if matches!(error.code(), Some("MOVED" | "EXECABORT")) => self.at = 1 - self.at,
                other => return other,
            }
        }
        panic!("sent to and fro");
    }
}

impl Front for Redirected {
    async fn call(&mut self, op: &Op) -> RedisResult<Value> {
        self.query(&op.cmd).await
    }
}

/// Sends commands that cannot fail, many at once; each to the owner of its slot.
pub(super) async fn fill(address: SocketAddr, ops: &[Op]) {
    let mut connection = connect(address).await.unwrap();
    for chunk in ops.chunks(1000) {
        let mut pipe = redis::pipe();
        for op in chunk {
            pipe.add_command(op.cmd.clone());
        }
        let _: Vec<Value> = pipe.query_async(&mut connection).await.unwrap();
    }
}

/// A client for tests that kill one server: it retries what failed there, and only there.
pub(super) struct Patient {
    addresses: [SocketAddr; 2],
    connections: [Option<MultiplexedConnection>; 2],
    /// The proxy whose errors are expected.
    killed: Option<usize>,
    at: usize,
}

impl Patient {
    pub(super) fn new(addresses: [SocketAddr; 2], killed: Option<usize>) -> Patient {
        Patient { addresses, connections: [None, None], killed, at: 0 }
    }

    /// The reply, after as many attempts as necessary. The command must be idempotent.
    pub(super) async fn query<T: redis::FromRedisValue>(&mut self, cmd: &Cmd) -> T {
        let mut pipe = redis::pipe();
        pipe.add_command(cmd.clone());
        let (reply,): (T,) = self.send(&pipe).await;
        reply
    }

    /// The same for several commands at once, or a transaction.
    pub(super) async fn send<T: redis::FromRedisValue>(&mut self, pipe: &Pipeline) -> T {
        let end = Instant::now() + SOON;
        loop {
            let error = match self.ask(pipe).await {
                Ok(reply) => return reply,
                Err(error) => error,
            };
            match error.code() {
                Some("MOVED" | "EXECABORT") => self.at = 1 - self.at,
                _ => {
                    assert_eq!(self.killed, Some(self.at), "only {:?} was killed: {error:?}", self.killed);
                    self.connections[self.at] = None;
                }
            }
            assert!(Instant::now() < end, "{error}");
            // tidy: allow, because a client that tries again pauses
            tokio::time::sleep(RETRY_EVERY).await;
        }
    }

    async fn ask<T: redis::FromRedisValue>(&mut self, pipe: &Pipeline) -> RedisResult<T> {
        let connection = match &mut self.connections[self.at] {
            Some(connection) => connection,
            none => none.insert(connect(self.addresses[self.at]).await?),
        };
        pipe.query_async(connection).await
    }
}
