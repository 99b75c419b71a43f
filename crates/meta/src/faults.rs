//! What if the store misbehaves? A [`Backend`] around another one that loses, delays and repeats, from a seed.
//!
//! A first-class implementation, for simulations and tests: whatever it does, a real store behind a real network could
//! have done. Each client gets its own [`Faulty`] around the shared store, so that one can be cut off alone.

mod replace;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{RngExt, SeedableRng};
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

pub use replace::Replaceable;

use crate::error::{MetaError, Result};
use crate::kv::{LeaseId, Revision};
use crate::latest;
use crate::request::*;
use crate::store::{Backend, WatchStream};

/// How the network between one client and the store is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Link {
    /// It works, as far as the [`Rates`] let it.
    Up,
    /// Connections are refused; open watches break.
    Refused,
    /// Nothing comes through and nobody says so: requests and watches hang until the link is up again or the caller
    /// gives up.
    Silent,
}

/// How often something goes wrong, each as a probability per request or watch message.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rates {
    /// The request is refused and surely did nothing.
    pub unavailable: f64,
    /// The request is lost on the way; its outcome is reported as unknown.
    pub lost_request: f64,
    /// The request is done but the answer is lost; its outcome is reported as unknown.
    pub lost_answer: f64,
    /// An open watch breaks instead of bringing a message.
    pub cut_watch: f64,
    /// A watch brings a message twice.
    pub repeat_message: f64,
    /// History is compacted away just before a watch is opened.
    pub compact_before_watch: f64,
    /// Requests and messages take up to this long.
    pub delay: Duration,
}

/// The hand on the faults of one client. Clones steer the same client.
#[derive(Clone, Debug)]
pub struct Faults {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    link: latest::Sender<Link>,
    dice: Mutex<Dice>,
}

#[derive(Debug)]
struct Dice {
    rng: StdRng,
    rates: Rates,
}

impl Dice {
    fn strikes(&mut self, rate: impl Fn(&Rates) -> f64) -> bool {
        let rate = rate(&self.rates);
        rate > 0.0 && self.rng.random_bool(rate.min(1.0))
    }
}

impl Faults {
    /// No faults yet; what happens later follows from this seed.
    #[must_use]
    pub fn seeded(seed: u64) -> Faults {
        let dice = Mutex::new(Dice { rng: StdRng::seed_from_u64(seed), rates: Rates::default() });
        Faults { inner: Arc::new(Inner { link: latest::Sender::new(Link::Up), dice }) }
    }

    /// From now on so often.
    pub fn set_rates(&self, rates: Rates) {
        self.dice().rates = rates;
    }

    /// From now on the link is like this.
    pub fn set_link(&self, link: Link) {
        self.inner.link.set(link);
    }

    /// How the link is.
    #[must_use]
    pub fn link(&self) -> Link {
        self.inner.link.get()
    }

    fn dice(&self) -> MutexGuard<'_, Dice> {
        self.inner.dice.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn strikes(&self, rate: impl Fn(&Rates) -> f64) -> bool {
        self.dice().strikes(rate)
    }

    fn some_delay(&self) -> Duration {
        let mut dice = self.dice();
        let longest = dice.rates.delay;
        if longest.is_zero() { longest } else { longest.mul_f64(dice.rng.random_range(0.0..=1.0)) }
    }

    async fn delay(&self) {
        let delay = self.some_delay();
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
    }

    /// Waits while the link is silent; an error if it is refused.
    async fn pass(&self) -> Result<()> {
        let mut link = self.inner.link.subscribe();
        // The sender lives as long as `self`.
        link.wait_for(|link| *link != Link::Silent).await.ok();
        match self.link() {
            Link::Refused => Err(MetaError::Unavailable("connection refused".to_owned())),
            Link::Up | Link::Silent => Ok(()),
        }
    }

    async fn until_not_up(&self) -> Link {
        let mut link = self.inner.link.subscribe();
        match link.wait_for(|link| *link != Link::Up).await {
            Ok(link) => link,
            Err(_) => Link::Refused,
        }
    }

    /// A request on its way: refused, lost, done, or done without anybody hearing of it.
    async fn request<T>(&self, work: impl Future<Output = Result<T>> + Send) -> Result<T> {
        self.delay().await;
        self.pass().await?;
        if self.strikes(|rates| rates.unavailable) {
            return Err(MetaError::Unavailable("injected".to_owned()));
        }
        if self.strikes(|rates| rates.lost_request) {
            return Err(MetaError::Unknown("request lost".to_owned()));
        }
        let done = work.await;
        let lost = self.strikes(|rates| rates.lost_answer);
        self.delay().await;
        if lost || self.pass().await.is_err() {
            return Err(MetaError::Unknown("answer lost".to_owned()));
        }
        done
    }
}

/// A store behind a bad network.
#[derive(Debug)]
pub struct Faulty<B> {
    inner: B,
    faults: Faults,
}

impl<B: Backend> Faulty<B> {
    /// Puts this client's faults between it and the store.
    pub fn new(inner: B, faults: Faults) -> Faulty<B> {
        Faulty { inner, faults }
    }
}

#[async_trait]
impl<B: Backend> Backend for Faulty<B> {
    async fn range(&self, range: Range) -> Result<RangeResult> {
        self.faults.request(self.inner.range(range)).await
    }

    async fn put(&self, put: Put) -> Result<PutResult> {
        self.faults.request(self.inner.put(put)).await
    }

    async fn delete(&self, delete: Delete) -> Result<DeleteResult> {
        self.faults.request(self.inner.delete(delete)).await
    }

    async fn commit(&self, txn: Txn) -> Result<TxnResult> {
        self.faults.request(self.inner.commit(txn)).await
    }

    async fn watch(&self, watch: Watch) -> Result<Box<dyn WatchStream>> {
        if self.faults.strikes(|rates| rates.compact_before_watch) {
            let newest = self.inner.status().await?.revision;
            // Compacted already is as good.
            self.inner.compact(newest).await.ok();
        }
        let stream = self.faults.request(self.inner.watch(watch)).await?;
        Ok(Box::new(FaultyWatch { stream, faults: self.faults.clone(), held: Held::Nothing }))
    }

    async fn lease_grant(&self, ttl: Duration, id: LeaseId) -> Result<Lease> {
        self.faults.request(self.inner.lease_grant(ttl, id)).await
    }

    async fn lease_revoke(&self, id: LeaseId) -> Result<Revision> {
        self.faults.request(self.inner.lease_revoke(id)).await
    }

    async fn lease_keep_alive(&self, id: LeaseId) -> Result<Duration> {
        self.faults.request(self.inner.lease_keep_alive(id)).await
    }

    async fn lease_info(&self, id: LeaseId) -> Result<Option<LeaseInfo>> {
        self.faults.request(self.inner.lease_info(id)).await
    }

    async fn leases(&self) -> Result<Vec<LeaseId>> {
        self.faults.request(self.inner.leases()).await
    }

    async fn compact(&self, revision: Revision) -> Result<Revision> {
        self.faults.request(self.inner.compact(revision)).await
    }

    async fn status(&self) -> Result<StoreStatus> {
        self.faults.request(self.inner.status()).await
    }

    async fn snapshot(&self) -> Result<mpsc::Receiver<Result<Bytes>>> {
        self.faults.request(self.inner.snapshot()).await
    }

    async fn defragment(&self) -> Result<()> {
        self.faults.request(self.inner.defragment()).await
    }
}

/// What a watch has taken from the store and not yet handed on.
enum Held {
    Nothing,
    /// On its way until then; a dropped call must neither lose it nor begin its journey anew.
    Message(WatchMessage, Instant),
    /// Handed on once already.
    Repeat(WatchMessage),
}

struct FaultyWatch {
    stream: Box<dyn WatchStream>,
    faults: Faults,
    held: Held,
}

impl FaultyWatch {
    async fn receive(&mut self) -> Result<WatchMessage> {
        if let Held::Nothing = self.held {
            let message = self.stream.next().await?;
            self.held = Held::Message(message, Instant::now() + self.faults.some_delay());
        }
        if let Held::Message(_, arrives_at) = self.held
            && arrives_at > Instant::now()
        {
            sleep_until(arrives_at).await;
        }
        match std::mem::replace(&mut self.held, Held::Nothing) {
            Held::Message(message, _) => {
                if self.faults.strikes(|rates| rates.repeat_message) {
                    self.held = Held::Repeat(message.clone());
                }
                Ok(message)
            }
            Held::Repeat(message) => Ok(message),
            Held::Nothing => Err(MetaError::Unavailable("nothing held".to_owned())),
        }
    }
}

#[async_trait]
impl WatchStream for FaultyWatch {
    async fn next(&mut self) -> Result<WatchMessage> {
        loop {
            self.faults.pass().await?;
            let faults = self.faults.clone();
            let message = tokio::select! {
                biased;
                link = faults.until_not_up() => match link {
                    Link::Refused => return Err(MetaError::Unavailable("connection lost".to_owned())),
                    Link::Silent | Link::Up => continue,
                },
                message = self.receive() => message?,
            };
            if self.faults.strikes(|rates| rates.cut_watch) {
                return Err(MetaError::Unavailable("watch cut".to_owned()));
            }
            return Ok(message);
        }
    }

    async fn request_progress(&mut self) -> Result<()> {
        self.faults.pass().await?;
        self.stream.request_progress().await
    }
}
