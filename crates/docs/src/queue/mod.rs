//! How do the batches of a copy get from its master to a node that has none? Directly, as pieces of the log's own
//! transfer, or over RabbitMQ, if `docs.queue` names one. [Why so](../../../../docs/adr/docs-0002-queue.md).
//!
//! Over RabbitMQ the snapshot that the log transfers is a ticket. The receiver asks for one batch after the other and
//! makes each durable before it acknowledges it; the copy counts when it is complete, as always. The queue is never the
//! truth: the log's record says which node learns which token, and whatever happens to messages costs time only.

pub(crate) mod desk;
mod message;
mod rabbit;

use std::collections::{HashMap, HashSet};
use std::io;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use capstan_meta::{OwnedTask, clock};
use sha2::{Digest as _, Sha256};
use tokio::runtime::Handle;
use tokio::sync::{mpsc, oneshot};
use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

use desk::Desk;
pub(crate) use message::Ticket;
use message::{Batch, Message};
pub(crate) use rabbit::is_url;

use crate::data::pace::Pace;
use crate::id::Token;
use crate::status::QueueReport;
use crate::storage::{StorageError, View};

/// Batches that wait for one job; further ones are doubles.
const INBOX: usize = 4;
/// The longest name of a node that is part of a queue's name as it is.
const MAX_NODE: usize = 128;
/// How often jobs that nothing is asked of are looked for.
const TIDY: Duration = Duration::from_secs(30);

/// How patient a receiver is.
#[derive(Clone, Copy, Debug)]
struct Patience {
    /// The time after which it asks again for a batch.
    repeat: Duration,
    /// The time without a batch after which it gives up; the log then begins the copy anew.
    stalled: Duration,
}

impl Default for Patience {
    fn default() -> Patience {
        Patience { repeat: Duration::from_secs(3), stalled: Duration::from_secs(60) }
    }
}

/// What becomes of a delivered message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Verdict {
    /// Its effect is durable, or it has none.
    Done,
    /// It failed for a reason that may pass.
    Again,
    /// It is not a message.
    Invalid,
}

/// What takes messages to the queues of nodes.
#[async_trait]
trait Post: Send + Sync {
    /// Puts a message into a queue. An error says only that it is not known to be there.
    async fn publish(&self, queue: &str, bytes: Vec<u8>) -> Result<(), String>;
}

/// A batch on its way to the copy that waits for it.
struct Arrived {
    message: Message,
    verdict: oneshot::Sender<Verdict>,
}

/// How far a copy is whose batches come over the queue.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Copied {
    /// Pairs that came in batches.
    pub(crate) pairs: u64,
    /// The offset that the copy has when it is complete.
    pub(crate) at: u64,
}

/// The names of the queues of a cluster.
#[derive(Clone, Debug)]
struct Names {
    cluster: String,
}

impl Names {
    /// Clusters that share a RabbitMQ have secrets, and therefore names, of their own.
    fn new(secret: &str) -> Names {
        Names { cluster: hash_of(secret, 4) }
    }

    /// Where a node is asked for batches.
    fn jobs(&self, node: &str) -> String {
        format!("capstan.docs.{}.{}.jobs", self.cluster, short(node))
    }

    /// Where a node receives batches.
    fn batches(&self, node: &str) -> String {
        format!("capstan.docs.{}.{}.batches", self.cluster, short(node))
    }

    /// Where messages end that no node could use.
    fn dead(&self) -> String {
        format!("capstan.docs.{}.dead", self.cluster)
    }

    /// Where a message goes.
    fn of(&self, message: &Message, node: &str) -> String {
        match message {
            Message::RequestNextBatch { .. } | Message::Completed { .. } => self.jobs(node),
            Message::DataBatch { .. } | Message::Unknown { .. } => self.batches(node),
        }
    }
}

/// A name of a queue has at most 255 bytes: a long name of a node is replaced by its hash.
fn short(node: &str) -> String {
    if node.len() <= MAX_NODE { node.to_owned() } else { hash_of(node, 32) }
}

/// The first bytes of a hash, in hex digits.
fn hash_of(text: &str, bytes: usize) -> String {
    Sha256::digest(text.as_bytes()).iter().take(bytes).map(|byte| format!("{byte:02x}")).collect()
}

/// The queue of a node.
pub(crate) struct Queue {
    shared: Arc<Shared>,
    link: Arc<rabbit::Link>,
    handle: Handle,
    _tasks: Vec<OwnedTask>,
}

struct Shared {
    node: String,
    names: Names,
    desk: Desk,
    /// How fast batches leave this node.
    pace: Arc<Pace>,
    /// Batches that wait for their turn: job and cursor. They are asked for again meanwhile, and sent once.
    answering: Mutex<HashSet<(String, Vec<u8>)>>,
    post: Arc<dyn Post>,
    patience: Patience,
    waiting: Mutex<HashMap<String, mpsc::Sender<Arrived>>>,
    copied: Mutex<HashMap<Token, Copied>>,
    /// Ends the copies of tokens that are closed on this node.
    closing: Mutex<HashMap<Token, CancellationToken>>,
    /// Ends every copy, because the node stops.
    stopping: CancellationToken,
}

impl Queue {
    /// Connects in the background, and for ever again.
    pub(crate) fn start(url: &str, node: &str, secret: &str, pace: Arc<Pace>) -> Arc<Queue> {
        let link = Arc::new(rabbit::Link::new());
        let shared = Arc::new(Shared { pace, ..Shared::new(node, secret, link.clone()) });
        let tasks = vec![
            OwnedTask::spawn(rabbit::run(url.to_owned(), Arc::clone(&shared), Arc::clone(&link))),
            OwnedTask::spawn(tidy(Arc::clone(&shared))),
        ];
        Arc::new(Queue { shared, link, handle: Handle::current(), _tasks: tasks })
    }

    /// The name of the queue on which this node receives batches.
    pub(crate) fn name(&self) -> String {
        self.shared.names.batches(&self.shared.node)
    }

    /// Whether RabbitMQ is there.
    pub(crate) fn report(&self) -> QueueReport {
        self.link.report()
    }

    /// How far the copy of a token is that comes, or came, over the queue.
    pub(crate) fn copied(&self, token: Token) -> Copied {
        let copied = self.shared.copied.lock().unwrap_or_else(PoisonError::into_inner);
        copied.get(&token).copied().unwrap_or_default()
    }

    /// Holds a copy for a receiver, which gets the ticket.
    pub(crate) fn offer(&self, view: Box<dyn View>, prefix: Vec<u8>) -> Ticket {
        Ticket { job: self.shared.desk.open(view, prefix), from: self.shared.node.clone() }
    }

    /// Gives up the copy of a token that was closed on this node.
    pub(crate) fn close(&self, token: Token) {
        let mut closing = self.shared.closing.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(closing) = closing.remove(&token) {
            closing.cancel();
        }
    }

    /// Gives up every copy: the node stops.
    pub(crate) fn stop(&self) {
        self.shared.stopping.cancel();
    }

    /// Receives every batch of a job; `take` makes each durable and counts its pairs. Blocking: call it on a thread of
    /// its own.
    pub(crate) fn receive(
        &self,
        token: Token,
        at: u64,
        ticket: &Ticket,
        take: impl FnMut(&[u8]) -> io::Result<u64>,
    ) -> io::Result<()> {
        let closing = self.shared.closing(token);
        let received = closing.run_until_cancelled(self.shared.receive(token, at, ticket, take));
        let ended = || io::Error::new(io::ErrorKind::Interrupted, "the token was closed on this node");
        self.handle.block_on(received).ok_or_else(ended)?
    }
}

/// A job that waits for its batches, until it is dropped.
struct Registered<'a> {
    shared: &'a Shared,
    job: &'a str,
}

impl<'a> Registered<'a> {
    fn new(shared: &'a Shared, job: &'a str, sender: mpsc::Sender<Arrived>) -> Registered<'a> {
        shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).insert(job.to_owned(), sender);
        Registered { shared, job }
    }
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        self.shared.waiting.lock().unwrap_or_else(PoisonError::into_inner).remove(self.job);
    }
}

/// A request that is being answered, until this is dropped.
struct Answering<'a> {
    shared: &'a Shared,
    asked: (String, Vec<u8>),
}

impl Drop for Answering<'_> {
    fn drop(&mut self) {
        self.shared.answering.lock().unwrap_or_else(PoisonError::into_inner).remove(&self.asked);
    }
}

impl Shared {
    fn new(node: &str, secret: &str, post: Arc<dyn Post>) -> Shared {
        Shared {
            node: node.to_owned(),
            names: Names::new(secret),
            desk: Desk::default(),
            pace: Arc::new(Pace::new(None)),
            answering: Mutex::default(),
            post,
            patience: Patience::default(),
            waiting: Mutex::default(),
            copied: Mutex::default(),
            closing: Mutex::default(),
            stopping: CancellationToken::new(),
        }
    }

    async fn receive(
        &self,
        token: Token,
        at: u64,
        ticket: &Ticket,
        mut take: impl FnMut(&[u8]) -> io::Result<u64>,
    ) -> io::Result<()> {
        let begun = Copied { pairs: 0, at };
        self.copied.lock().unwrap_or_else(PoisonError::into_inner).insert(token, begun);
        let (sender, mut inbox) = mpsc::channel(INBOX);
        let _registered = Registered::new(self, &ticket.job, sender);
        let mut cursor: Option<Vec<u8>> = None;
        loop {
            let (batch, verdict) = self.next(ticket, cursor.as_deref(), &mut inbox).await?;
            let taken = take(batch.pairs());
            verdict.send(if taken.is_ok() { Verdict::Done } else { Verdict::Again }).ok();
            self.note(token, taken?);
            match batch.next() {
                Some(next) => cursor = Some(next.to_vec()),
                None => break,
            }
        }
        let completed = Message::Completed { job: ticket.job.clone() };
        if let Err(why) = self.send(&ticket.from, &completed).await {
            tracing::debug!(%token, why, "the master of a job was not told that it is complete");
        }
        Ok(())
    }

    /// The batch behind the cursor. Asks for it, and again, until it comes or time is up.
    async fn next(
        &self,
        ticket: &Ticket,
        cursor: Option<&[u8]>,
        inbox: &mut mpsc::Receiver<Arrived>,
    ) -> io::Result<(Batch, oneshot::Sender<Verdict>)> {
        let request = Message::request(&ticket.job, &self.node, cursor);
        let until = Instant::now() + self.patience.stalled;
        let mut ask_at = Instant::now();
        loop {
            if Instant::now() >= until {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "no batch came over the queue"));
            }
            if Instant::now() >= ask_at {
                if let Err(why) = self.send(&ticket.from, &request).await {
                    tracing::debug!(job = ticket.job, why, "a batch was not asked for; trying again");
                }
                ask_at = Instant::now() + self.patience.repeat;
            }
            tokio::select! {
                arrived = inbox.recv() => {
                    let Some(Arrived { message, verdict }) = arrived else { continue };
                    match message {
                        Message::DataBatch { batch, .. } if batch.after() == cursor => return Ok((batch, verdict)),
                        Message::Unknown { .. } => {
                            verdict.send(Verdict::Done).ok();
                            return Err(io::Error::other("the master does not have the job any more"));
                        }
                        // A double of a batch that is durable here.
                        Message::DataBatch { .. } => drop(verdict.send(Verdict::Done)),
                        Message::RequestNextBatch { .. } | Message::Completed { .. } => {
                            verdict.send(Verdict::Invalid).ok();
                        }
                    }
                }
                () = tokio::time::sleep_until(ask_at.min(until)) => {}
            }
        }
    }

    /// What ends the copy of a token.
    fn closing(&self, token: Token) -> CancellationToken {
        let closing = self.stopping.child_token();
        self.closing.lock().unwrap_or_else(PoisonError::into_inner).insert(token, closing.clone());
        closing
    }

    fn note(&self, token: Token, pairs: u64) {
        let mut copied = self.copied.lock().unwrap_or_else(PoisonError::into_inner);
        copied.entry(token).or_default().pairs += pairs;
    }

    /// Sends a message to a node; when it returns, RabbitMQ has it.
    async fn send(&self, node: &str, message: &Message) -> Result<(), String> {
        let bytes = message.encode().map_err(|StorageError(why)| why)?;
        self.post.publish(&self.names.of(message, node), bytes).await
    }

    /// Acts on a message.
    async fn deliver(self: &Arc<Shared>, bytes: &[u8]) -> Verdict {
        match Message::decode(bytes) {
            None => Verdict::Invalid,
            Some(Message::Completed { job }) => {
                self.desk.close(&job);
                Verdict::Done
            }
            Some(Message::RequestNextBatch { job, to, after }) => self.answer(job, &to, after).await,
            Some(message @ (Message::DataBatch { .. } | Message::Unknown { .. })) => {
                self.hand_in(message).await
            }
        }
    }

    /// Answers a request, unless it is being answered.
    async fn answer(self: &Arc<Shared>, job: String, to: &str, after: Option<bson::Binary>) -> Verdict {
        let cursor = after.as_ref().map(|key| key.bytes.clone()).unwrap_or_default();
        let asked = (job.clone(), cursor);
        if !self.answering.lock().unwrap_or_else(PoisonError::into_inner).insert(asked.clone()) {
            return Verdict::Done;
        }
        let _answering = Answering { shared: self, asked };
        self.send_batch(job, to, after).await
    }

    /// Sends a batch; done when RabbitMQ has it.
    async fn send_batch(self: &Arc<Shared>, job: String, to: &str, after: Option<bson::Binary>) -> Verdict {
        let (shared, id) = (Arc::clone(self), job.clone());
        let cut = move || shared.desk.batch(&id, after.as_ref().map(|key| &key.bytes[..]));
        let answer = match tokio::task::spawn_blocking(cut).await {
            Ok(Some(Ok(batch))) => {
                self.pace.wait(batch.pairs().len()).await;
                Message::DataBatch { job, batch }
            }
            Ok(None) => Message::Unknown { job },
            Ok(Some(Err(error))) => {
                tracing::warn!(%error, "a batch cannot be read");
                return Verdict::Again;
            }
            Err(_) => return Verdict::Again,
        };
        match self.send(to, &answer).await {
            Ok(()) => Verdict::Done,
            Err(why) => {
                tracing::debug!(to, why, "a batch was not sent");
                Verdict::Again
            }
        }
    }

    /// Hands a message to the copy that waits for it. Without one it is of no use any more.
    async fn hand_in(&self, message: Message) -> Verdict {
        let (Message::DataBatch { job, .. }
        | Message::Unknown { job }
        | Message::Completed { job }
        | Message::RequestNextBatch { job, .. }) = &message;
        let waiting = self.waiting.lock().unwrap_or_else(PoisonError::into_inner).get(job).cloned();
        let Some(waiting) = waiting else { return Verdict::Done };
        let (verdict, answer) = oneshot::channel();
        // A full inbox has the batch already: one is asked for at a time.
        if waiting.try_send(Arrived { message, verdict }).is_err() {
            return Verdict::Done;
        }
        answer.await.unwrap_or(Verdict::Done)
    }
}

async fn tidy(shared: Arc<Shared>) {
    loop {
        tokio::time::sleep(TIDY).await;
        shared.desk.expire();
    }
}

/// Seconds since 1970.
fn now() -> u64 {
    clock::since_epoch().as_secs()
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::sync::OnceLock;

    use bytes::Bytes;
    use capstan_testkit::seed;
    use rand::RngExt as _;
    use rand::rngs::StdRng;
    use tokio::task::JoinSet;

    use super::*;
    use crate::data::read_pair;
    use crate::storage::{Change, Engine as _, MemoryEngine};

    /// Queues that lose, double, delay and garble what is put into them.
    struct Faulty {
        nodes: OnceLock<Vec<Arc<Shared>>>,
        random: Mutex<StdRng>,
        deliveries: Mutex<JoinSet<Verdict>>,
    }

    impl Faulty {
        fn new(seed: u64) -> Arc<Faulty> {
            let (nodes, random) = (OnceLock::new(), Mutex::new(seed::rng(seed)));
            Arc::new(Faulty { nodes, random, deliveries: Mutex::default() })
        }
    }

    #[async_trait]
    impl Post for Faulty {
        async fn publish(&self, queue: &str, mut bytes: Vec<u8>) -> Result<(), String> {
            let nodes = self.nodes.get().unwrap();
            let to = nodes
                .iter()
                .find(|node| queue == node.names.jobs(&node.node) || queue == node.names.batches(&node.node));
            let to = to.ok_or("no such queue")?;
            let mut random = self.random.lock().unwrap();
            let copies = match random.random_range(0..10) {
                0 => return Err("not reachable".to_owned()),
                1 => 0,
                2 | 3 => 2,
                4 => {
                    let at = random.random_range(0..bytes.len());
                    bytes[at] ^= 0x40;
                    1
                }
                _ => 1,
            };
            for _ in 0..copies {
                let (to, bytes) = (Arc::clone(to), bytes.clone());
                let delay = Duration::from_millis(random.random_range(0..20));
                self.deliveries.lock().unwrap().spawn(async move {
                    tokio::time::sleep(delay).await;
                    to.deliver(&bytes).await
                });
            }
            Ok(())
        }
    }

    fn pair(faulty: &Arc<Faulty>, stalled: Duration) -> (Arc<Shared>, Arc<Shared>) {
        let node = |name: &str| {
            let patience = Patience { repeat: Duration::from_millis(15), stalled };
            let desk = Desk::new(1_000);
            Arc::new(Shared { patience, desk, ..Shared::new(name, "secret", faulty.clone()) })
        };
        let (master, receiver) = (node("n1"), node("n4"));
        faulty.nodes.set(vec![Arc::clone(&master), Arc::clone(&receiver)]).ok();
        (master, receiver)
    }

    fn pairs_of(mut bytes: &[u8]) -> Vec<(Vec<u8>, Vec<u8>)> {
        std::iter::from_fn(|| read_pair(&mut bytes).unwrap()).collect()
    }

    #[test]
    fn lost_doubled_late_and_garbled_messages_change_nothing() {
        seed::seeds(10, |seed| {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
            runtime.unwrap().block_on(copy_over_faulty_queues(seed));
        });
    }

    async fn copy_over_faulty_queues(seed: u64) {
        let faulty = Faulty::new(seed);
        let (master, receiver) = pair(&faulty, Duration::from_secs(20));
        let engine = MemoryEngine::default();
        let all: BTreeMap<Vec<u8>, Vec<u8>> =
            (0..30_u32).map(|at| (at.to_be_bytes().to_vec(), vec![7; 200])).collect();
        let put = |(key, value): (&Vec<u8>, &Vec<u8>)| {
            Change::Put([b"p", &key[..]].concat().into(), Bytes::from(value.clone()))
        };
        engine.write(all.iter().map(put).collect()).unwrap();
        let job = master.desk.open(engine.snapshot(), b"p".to_vec());
        // What comes later is not part of the copy.
        engine.write(vec![Change::Put("pz".into(), "later".into())]).unwrap();
        let ticket = Ticket { job, from: "n1".to_owned() };
        let (mut taken, mut batches) = (Vec::new(), 0);
        let token = "7".parse().unwrap();
        let received = receiver.receive(token, 9, &ticket, |bytes| {
            let pairs = pairs_of(bytes);
            batches += 1;
            taken.extend(pairs.clone());
            Ok(pairs.len() as u64)
        });
        received.await.unwrap();
        assert!(batches >= 5, "{batches} batches");
        assert_eq!(taken.len(), all.len());
        assert_eq!(taken.into_iter().collect::<BTreeMap<_, _>>(), all);
        assert_eq!(receiver.copied.lock().unwrap()[&token], Copied { pairs: 30, at: 9 });
        assert!(receiver.waiting.lock().unwrap().is_empty());
    }

    #[tokio::test]
    async fn a_copy_without_a_master_or_without_a_queue_is_given_up() {
        let receive = async |from: &str, stalled| {
            let faulty = Faulty::new(1);
            let (_master, receiver) = pair(&faulty, stalled);
            let ticket = Ticket { job: "none".to_owned(), from: from.to_owned() };
            receiver.receive("7".parse().unwrap(), 9, &ticket, |_| Ok(0)).await.unwrap_err()
        };
        assert!(receive("n1", Duration::from_secs(60)).await.to_string().contains("does not have the job"));
        assert_eq!(receive("n9", Duration::from_millis(200)).await.kind(), io::ErrorKind::TimedOut);
    }
}
