//! Where does a command go? To the primary of its token: on this node, or over HTTP to the node that leads it.
//!
//! The map is the view of the logs' records. A node with an old map asks a node that does not lead, is refused without
//! effect, and asks again; the client does not notice.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use bson::Bson;
use capstan_access::tls::LiveTls;
use capstan_control::keys::HostId;
use capstan_log::LogConfig;
use capstan_log::keys::{LogKey, LogKeys};
use capstan_meta::Store;
use capstan_meta::view::{Ranges, Snapshot, View};
use capstan_steward::keys::Holders;
use serde::{Deserialize, Serialize};
use tokio::time::Instant;

use crate::data::command::{Command, Read, Reply, Target};
use crate::data::copy::Copy;
use crate::data::tokens::Tokens;
use crate::data::{Allowance, Question};
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{
    AccessKeys, Alive, AliveKey, CollectionKey, CollectionName, Collections, DatabaseKey, DatabaseName,
    Databases, DroppingAll, Jobs, Nodes, Users,
};
use crate::way::Way;

/// How long a request is tried.
const WITHIN: Duration = Duration::from_secs(15);
/// How long a connection to another node is kept for the next request: shorter than that node keeps it.
const IDLE_WITHIN: Duration = Duration::from_secs(10);
/// The first pause between attempts, and the longest one.
const PAUSE: (Duration, Duration) = (Duration::from_millis(10), Duration::from_millis(250));
/// How long a read that takes any copy waits for the primary.
const PREFER_PRIMARY: Duration = Duration::from_secs(1);
/// How long a view may take to catch up with the store.
const SEE_WITHIN: Duration = Duration::from_secs(5);
/// Tokens that one request asks at a time.
const AT_ONCE: usize = 64;
/// Times that a request is made anew because its collection has changed.
const RENEWALS: usize = 8;
/// Threads that one read uses. To find out how many cores there are takes system calls.
static CORES: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, usize::from));

/// The path of commands between nodes, followed by the token.
pub(crate) const COMMANDS: &str = "docs-internal";
/// The header with what nodes present to each other.
pub(crate) const SECRET_HEADER: &str = "x-capstan-docs-secret";

/// An answer on its way between nodes.
#[derive(Serialize, Deserialize)]
pub(crate) struct Envelope {
    pub(crate) outcome: Result<Reply, DocsError>,
}

/// Which copy answers a read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Concern {
    /// The primary, with everything that was acknowledged before.
    Linearizable,
    /// The primary as well, while it answers; if it does not, the copy on this node, however old.
    Available,
}

/// The way to every token.
pub(crate) struct Router {
    pub(crate) store: Store,
    pub(crate) view: Arc<View>,
    pub(crate) digits: u8,
    tokens: Arc<Tokens>,
    way: Way,
    secret: String,
}

/// What the view of a node covers.
pub(crate) fn ranges() -> Ranges {
    Ranges::new()
        .with(&Databases {})
        .with(&Collections {})
        .with(&DroppingAll {})
        .with(&AccessKeys {})
        .with(&Users {})
        .with(&Nodes {})
        .with(&Alive {})
        .with(&Jobs {})
        .with(&LogKeys {})
        .with(&Holders {})
}

impl Router {
    pub(crate) fn new(
        store: Store,
        view: Arc<View>,
        digits: u8,
        tokens: Arc<Tokens>,
        secret: String,
        tls: Option<&LiveTls>,
    ) -> Result<Router, DocsError> {
        let client = reqwest::Client::builder().tcp_nodelay(true).timeout(WITHIN);
        let way = Way::new(client.pool_idle_timeout(IDLE_WITHIN), tls)?;
        Ok(Router { store, view, digits, tokens, way, secret })
    }

    pub(crate) fn tokens(&self) -> &Arc<Tokens> {
        &self.tokens
    }

    pub(crate) fn is_peer(&self, presented: &[u8]) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(presented, self.secret.as_bytes()).is_ok()
    }

    /// The token of an id.
    pub(crate) fn token_of(&self, id: &Bson) -> Token {
        Token::of(id, self.digits)
    }

    /// The record of a token's log.
    pub(crate) fn config(snapshot: &Snapshot, token: Token) -> Option<LogConfig> {
        let log = token.log().ok()?;
        snapshot.get(&LogKey { log }).ok().flatten().map(|found| found.record.clone())
    }

    /// A fresh look at the metadata.
    pub(crate) async fn refresh(&self) -> Result<Arc<Snapshot>, DocsError> {
        Ok(self.view.catch_up(SEE_WITHIN).await?)
    }

    /// A collection as it is known now; what is not known is looked for once more in the store.
    pub(crate) async fn target(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
    ) -> Result<Target, DocsError> {
        let key = CollectionKey { database: database.clone(), collection: collection.clone() };
        for attempt in 0..2 {
            let snapshot = if attempt == 0 { self.view.snapshot() } else { self.refresh().await? };
            let found = snapshot.get(&key).map_err(|bad| DocsError::Broken(bad.to_string()))?;
            if let Some(found) = found {
                return Ok(Target { version: found.mod_revision.0, spec: found.record.clone() });
            }
            let known = snapshot.get(&DatabaseKey { database: database.clone() });
            if attempt == 1 && matches!(known, Ok(None)) {
                return Err(DocsError::NotFound(format!("DB \"{database}\" not found")));
            }
        }
        Err(DocsError::NotFound(format!("Collection \"{collection}\" not found")))
    }

    /// Asks one token.
    pub(crate) async fn ask(&self, token: Token, command: Command) -> Result<Reply, DocsError> {
        let until = Instant::now() + WITHIN;
        let mut pause = PAUSE.0;
        loop {
            let outcome = match self.tokens.get(token).filter(|copy| copy.is_leading()) {
                Some(copy) => copy.carry_out(command.clone()).await,
                None => self.forward(token, &command).await,
            };
            match outcome {
                Err(DocsError::NotPrimary(_) | DocsError::Busy(_)) if Instant::now() < until => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE.1);
                }
                Err(DocsError::NotPrimary(_)) => {
                    return Err(DocsError::Busy(format!("token {token} has no primary")));
                }
                done => return done,
            }
        }
    }

    /// Asks the node that leads the token.
    async fn forward(&self, token: Token, command: &Command) -> Result<Reply, DocsError> {
        let snapshot = self.view.snapshot();
        let leaderless = || DocsError::NotPrimary(token.to_string());
        let primary = Router::config(&snapshot, token).ok_or_else(leaderless)?.primary;
        let node = node_of(primary.as_str()).ok_or_else(leaderless)?;
        let found = snapshot.get(&AliveKey { node }).ok().flatten().ok_or_else(leaderless)?;
        let url = self.way.url(found.record.http, &format!("{COMMANDS}/{token}"));
        let body = bson::serialize_to_vec(command).map_err(|error| DocsError::refused(error.to_string()))?;
        let sent = self.way.http.post(url).header(SECRET_HEADER, &self.secret).body(body).send().await;
        let is_read = matches!(
            command,
            Command::Read(..) | Command::Digest | Command::Position {} | Command::Changes { .. }
        );
        let lost = |error: reqwest::Error| match error.is_connect() || is_read {
            true => DocsError::Busy(format!("the node that leads token {token} cannot be reached")),
            false => DocsError::Unknown(format!("the node that leads token {token} did not answer")),
        };
        let bytes = sent.map_err(lost)?.bytes().await.map_err(lost)?;
        let envelope: Result<Envelope, _> = bson::deserialize_from_slice(&bytes);
        match envelope {
            Ok(envelope) => envelope.outcome,
            Err(_) if is_read => Err(DocsError::Busy("a node gave no usable answer".to_owned())),
            Err(_) => Err(DocsError::Unknown("a node gave no usable answer".to_owned())),
        }
    }

    /// Reads from one token.
    pub(crate) async fn read(
        &self,
        token: Token,
        target: &Target,
        read: Read,
        concern: Concern,
    ) -> Result<Reply, DocsError> {
        let asked = self.ask(token, Command::Read(target.clone(), read.clone()));
        let Some(copy) = self.tokens.get(token).filter(|_| concern == Concern::Available) else {
            return asked.await;
        };
        match tokio::time::timeout(PREFER_PRIMARY, asked).await {
            Err(_) | Ok(Err(DocsError::Busy(_) | DocsError::NotPrimary(_) | DocsError::Unknown(_))) => {
                copy.look(target.clone(), read).await
            }
            Ok(answered) => answered,
        }
    }

    /// Asks every token, and gives their answers in the order of the tokens.
    pub(crate) async fn ask_all(&self, command: &Command) -> Result<Vec<Reply>, DocsError> {
        let tokens: Vec<Token> = Token::all(self.digits).collect();
        let mut replies = Vec::with_capacity(tokens.len());
        for some in tokens.chunks(AT_ONCE) {
            let asked = some.iter().map(|token| self.ask(*token, command.clone()));
            replies.extend(futures_util::future::join_all(asked).await);
        }
        replies.into_iter().collect()
    }

    /// Reads from every token, and gives their answers in the order of the tokens.
    pub(crate) async fn read_all(
        &self,
        target: &Target,
        read: &Read,
        concern: Concern,
    ) -> Result<Vec<Reply>, DocsError> {
        let tokens: Vec<Token> = Token::all(self.digits).collect();
        let mut replies = Vec::with_capacity(tokens.len());
        for some in tokens.chunks(AT_ONCE) {
            let led = some.iter().filter(|_| concern == Concern::Linearizable);
            let led: Vec<(Token, Copy)> = led.filter_map(|token| self.led_here(*token)).collect();
            let others = some.iter().filter(|token| !led.iter().any(|(other, _)| other == *token)).copied();
            let ask = |tokens: Vec<Token>| {
                let asked = tokens
                    .into_iter()
                    .map(async |token| (token, self.read(token, target, read.clone(), concern).await));
                futures_util::future::join_all(asked)
            };
            let (here, elsewhere) =
                futures_util::future::join(read_together(&led, target, read), ask(others.collect())).await;
            let here = here?;
            let left = led.iter().map(|(token, _)| *token).filter(|token| !here.contains_key(token));
            let again = ask(left.collect()).await;
            let all: BTreeMap<_, _> = here.into_iter().chain(elsewhere).chain(again).collect();
            replies.extend(all.into_values());
        }
        replies.into_iter().collect()
    }

    fn led_here(&self, token: Token) -> Option<(Token, Copy)> {
        let copy = self.tokens.get(token).filter(Copy::is_leading)?;
        Some((token, copy))
    }
}

/// Reads from tokens that this node leads. What takes little is read at once: to hand it to a thread would cost more.
/// Otherwise there is one thread for each core. A token that cannot answer now is left out.
async fn read_together(
    copies: &[(Token, Copy)],
    target: &Target,
    read: &Read,
) -> Result<BTreeMap<Token, Result<Reply, DocsError>>, DocsError> {
    let waits = copies.iter().map(|(_, copy)| copy.wait_until_current());
    let current = futures_util::future::join_all(waits).await;
    let ready = copies.iter().zip(current).filter(|(_, current)| current.is_ok());
    let ready: Vec<&(Token, Copy)> = ready.map(|(copy, _)| copy).collect();
    if let Some(replies) = read_in_place(&ready, target, &Question::of(read)?) {
        return Ok(replies);
    }
    let shares = ready.chunks(ready.len().div_ceil(*CORES).max(1)).map(|share| {
        let share: Vec<(Token, Copy)> = share.iter().map(|copy| (*copy).clone()).collect();
        let (target, read) = (target.clone(), read.clone());
        tokio::task::spawn_blocking(move || {
            let question = Question::of(&read);
            let answer = |copy: &Copy| copy.read_now(&target, question.as_ref().map_err(DocsError::clone)?);
            share.iter().map(|(token, copy)| (*token, answer(copy))).collect::<Vec<_>>()
        })
    });
    let mut replies = BTreeMap::new();
    for share in shares.collect::<Vec<_>>() {
        replies.extend(share.await.map_err(|error| DocsError::Broken(error.to_string()))?);
    }
    Ok(replies)
}

/// Reads from tokens one after the other, in the task that asks; nothing if that takes more than a task may do at a time.
fn read_in_place(
    copies: &[&(Token, Copy)],
    target: &Target,
    question: &Question<'_>,
) -> Option<BTreeMap<Token, Result<Reply, DocsError>>> {
    let mut left = Allowance::LITTLE;
    let read = |(token, copy): &&(Token, Copy)| {
        let reply = copy.read_little(target, question, &mut left).transpose()?;
        Some((*token, reply))
    };
    copies.iter().map(read).collect()
}

/// Counts how often a request is made anew because its collection has changed.
#[derive(Default)]
pub(crate) struct Renewals(usize);

impl Renewals {
    /// Looks at the metadata again; gives up after a few times.
    pub(crate) async fn renew(&mut self, router: &Router) -> Result<(), DocsError> {
        self.0 += 1;
        if self.0 > RENEWALS {
            return Err(DocsError::Busy("the collection keeps changing".to_owned()));
        }
        router.refresh().await.map(drop)
    }
}

/// The node of a holder: `docs.<host>`.
fn node_of(holder: &str) -> Option<HostId> {
    holder.strip_prefix("docs.")?.parse().ok()
}

/// What a reply that does not belong to its command is: a node of another version, perhaps.
pub(crate) fn unexpected() -> DocsError {
    DocsError::Broken("unexpected reply of a token".to_owned())
}
