//! Which clients are connected? `CLIENT LIST`, `CLIENT KILL` and `CLIENT UNBLOCK` query all workers; the last
//! one to answer sends the reply.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

use super::arena::Key;
use super::mailbox::{Letter, Mailbox};
use super::replies::Sequence;
use super::session::{Audience, Session};

/// Selects clients.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) ids: Vec<u64>,
    pub(super) address: Option<String>,
    pub(super) local_address: Option<String>,
    pub(super) user: Option<String>,
    pub(super) kind: Option<Kind>,
    /// Excludes this client: `CLIENT KILL` skips the caller by default.
    pub(super) except: Option<u64>,
    /// What the requesting client may see.
    pub(super) audience: Audience,
    /// Clients of this database only.
    pub(super) database: Option<String>,
}

/// `TYPE` of a client. Nodes replicate without the proxy, so there are no other types here.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Normal,
    PubSub,
    /// `master`, `replica`: never here.
    Other,
}

/// What to do with the selected clients.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ClientAction {
    /// `CLIENT LIST`
    List,
    /// `CLIENT KILL`; the old form has another reply.
    Kill {
        /// `CLIENT KILL addr`.
        by_address: bool,
    },
    /// `CLIENT UNBLOCK`; the word is `TIMEOUT` or `ERROR`.
    Unblock(String),
}

/// A query to all workers.
#[derive(Debug)]
pub(super) struct Roll {
    pub(super) filter: Filter,
    pub(super) deed: ClientAction,
    /// The worker of the requesting client.
    worker: usize,
    session: Key,
    sequence: Sequence,
    answers: Mutex<Answers>,
}

#[derive(Debug)]
struct Answers {
    missing: usize,
    lines: Vec<(u64, String)>,
    hits: i64,
}

impl Roll {
    /// Queries all workers.
    pub(super) fn call(
        mailboxes: &[Mailbox],
        asker: (usize, Key, Sequence),
        filter: Filter,
        deed: ClientAction,
    ) {
        let (worker, session, sequence) = asker;
        let answers = Mutex::new(Answers { missing: mailboxes.len(), lines: Vec::new(), hits: 0 });
        let roll = Arc::new(Roll { filter, deed, worker, session, sequence, answers });
        mailboxes.iter().for_each(|mailbox| mailbox.post(Letter::Roll(Arc::clone(&roll))));
    }

    /// Adds one worker's result; the last one completes the reply.
    pub(super) fn answer(&self, mailboxes: &[Mailbox], lines: Vec<(u64, String)>, hits: usize) {
        let mut answers = self.answers.lock().unwrap_or_else(PoisonError::into_inner);
        answers.lines.extend(lines);
        answers.hits += i64::try_from(hits).unwrap_or(i64::MAX);
        answers.missing -= 1;
        if answers.missing > 0 {
            return;
        }
        answers.lines.sort_unstable();
        let reply = self.reply(&answers);
        if let Some(mailbox) = mailboxes.get(self.worker) {
            mailbox.post(Letter::Give { session: self.session, sequence: self.sequence, reply });
        }
    }

    fn reply(&self, answers: &Answers) -> Vec<u8> {
        match &self.deed {
            ClientAction::List => {
                let text: String = answers.lines.iter().map(|(_, line)| line.as_str()).collect();
                format!("${}\r\n{text}\r\n", text.len()).into_bytes()
            }
            ClientAction::Kill { by_address: true } if answers.hits == 0 => {
                b"-ERR No such client\r\n".to_vec()
            }
            ClientAction::Kill { by_address: true } => b"+OK\r\n".to_vec(),
            ClientAction::Kill { by_address: false } | ClientAction::Unblock(_) => {
                format!(":{}\r\n", answers.hits).into_bytes()
            }
        }
    }
}

impl Filter {
    /// Whether a client is selected.
    pub(super) fn admits(&self, session: &Session, local: SocketAddr) -> bool {
        let same =
            |wanted: &Option<String>, found: &str| wanted.as_deref().is_none_or(|wanted| wanted == found);
        let kind = if session.subscriptions.is_some() { Kind::PubSub } else { Kind::Normal };
        (self.ids.is_empty() || self.ids.contains(&session.id))
            && same(&self.address, &session.peer.to_string())
            && same(&self.local_address, &local.to_string())
            && same(&self.user, session.user_name())
            && self.kind.is_none_or(|wanted| wanted == kind)
            && self.except != Some(session.id)
            && session.is_visible_to(self.audience)
            && (self.database.is_none() || self.database.as_deref() == session.database_name())
    }
}

/// A client's line of `CLIENT LIST`, without what a proxy does not have (argument memory, redirections).
pub(super) fn line(session: &Session, local: SocketAddr, now: Instant) -> String {
    use super::subscriptions::Topic;
    let subscriptions = |topic| session.subscriptions.as_ref().map_or(0, |all| all.names(topic).len());
    let flags = match (&session.subscriptions, &session.transaction, &session.blocked) {
        (Some(_), ..) => "P",
        (None, Some(_), _) => "x",
        (None, None, Some(_)) => "b",
        (None, None, None) => "N",
    };
    format!(
        "id={} addr={} laddr={local} fd=-1 name={} age={} idle={} flags={flags} db=0 sub={} psub={} ssub={} multi={} \
         qbuf={} qbuf-free=0 argv-mem=0 multi-mem={} rbs={} rbp=0 obl={} oll={} omem={} tot-mem={} events=r cmd={} \
         user={} redir=-1 resp={}\n",
        session.id,
        session.peer,
        session.name,
        now.duration_since(session.since).as_secs(),
        now.duration_since(session.active).as_secs(),
        subscriptions(Topic::Channel),
        subscriptions(Topic::Pattern),
        subscriptions(Topic::Shard),
        session.transaction.as_ref().map_or(-1, |transaction| transaction.len() as i64),
        session.input.len(),
        session.transaction.as_ref().map_or(0, |transaction| transaction.bytes()),
        session.out.len(),
        session.out.len(),
        session.replies.len(),
        session.out.len(),
        session.input.len() + session.out.len() + std::mem::size_of::<Session>(),
        session.last_command,
        session.user_name(),
        session.protocol_number(),
    )
}
