//! How do we talk to a node or to another proxy on our own account? One connection, requests in a row, replies in order.
//!
//! For supervision, moves and pushes; clients' commands travel by [`super::proxy`].

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use super::resp::{BadReply, ReplyScanner, View, write_request};
use crate::address::Address;

/// What a connection reads at once: several replies of a batch, few system calls.
const READ_CHUNK: usize = 64 << 10;
/// Longest error text that is kept.
const MAX_ERROR: usize = 512;

/// Who we are to the other side.
#[derive(Clone, PartialEq, Eq)]
pub struct Credentials {
    /// `None` authenticates as the default user.
    pub user: Option<String>,
    /// Its password.
    pub password: String,
}

impl std::fmt::Debug for Credentials {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Credentials({:?}, ..)", self.user)
    }
}

/// Why a conversation failed.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// No connection, or it broke.
    #[error("no connection to {to}: {source}")]
    Broken {
        /// The other side.
        to: Address,
        /// What the system says.
        source: io::Error,
    },
    /// No answer in time.
    #[error("{to} did not answer within {within:?}")]
    Late {
        /// The other side.
        to: Address,
        /// How long was waited.
        within: Duration,
    },
    /// What came is not RESP.
    #[error("{to} does not speak RESP: {source}")]
    Nonsense {
        /// The other side.
        to: Address,
        /// What is wrong with it.
        source: BadReply,
    },
    /// An error reply.
    #[error("{to} refused: {text}")]
    Refused {
        /// The other side.
        to: Address,
        /// Its words, code first.
        text: String,
    },
    /// A reply of another kind than the request has.
    #[error("{to} gave an answer that {request} does not have")]
    Unexpected {
        /// The other side.
        to: Address,
        /// What was asked.
        request: &'static str,
    },
}

impl TalkError {
    /// Whether the other side answered, with an error whose code is this.
    #[must_use]
    pub fn has_code(&self, code: &str) -> bool {
        matches!(self, TalkError::Refused { text, .. } if text.split(' ').next() == Some(code))
    }
}

/// A connection that we lead.
#[derive(Debug)]
pub struct Conversation {
    to: Address,
    stream: TcpStream,
    out: Vec<u8>,
    input: BytesMut,
    scanner: ReplyScanner,
    within: Duration,
}

impl Conversation {
    /// Connects and authenticates. Every later wait is bounded by `within` too.
    pub async fn open(
        to: &Address,
        credentials: Option<&Credentials>,
        within: Duration,
    ) -> Result<Conversation, TalkError> {
        let late = |_| TalkError::Late { to: to.clone(), within };
        let broken = |source| TalkError::Broken { to: to.clone(), source };
        let connect = TcpStream::connect((to.host(), to.port()));
        let stream = timeout(within, connect).await.map_err(late)?.map_err(broken)?;
        stream.set_nodelay(true).map_err(broken)?;
        let mut talk = Conversation {
            to: to.clone(),
            stream,
            out: Vec::new(),
            input: BytesMut::new(),
            scanner: ReplyScanner::default(),
            within,
        };
        if let Some(credentials) = credentials {
            talk.authenticate(credentials).await?;
        }
        Ok(talk)
    }

    async fn authenticate(&mut self, credentials: &Credentials) -> Result<(), TalkError> {
        let password = credentials.password.as_str();
        match &credentials.user {
            Some(user) => self.ask(&["AUTH", user, password]).await?,
            None => self.ask(&["AUTH", password]).await?,
        };
        Ok(())
    }

    /// The other side.
    #[must_use]
    pub fn to(&self) -> &Address {
        &self.to
    }

    /// One request and its reply; an error reply is an error.
    pub async fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Bytes, TalkError> {
        self.push(arguments);
        self.flush().await?;
        self.answer().await
    }

    /// The same for a request that takes longer than others.
    pub async fn ask_within<A: AsRef<[u8]>>(
        &mut self,
        arguments: &[A],
        within: Duration,
    ) -> Result<Bytes, TalkError> {
        let usual = std::mem::replace(&mut self.within, within);
        let answer = self.ask(arguments).await;
        self.within = usual;
        answer
    }

    /// Puts a request behind those that wait to be sent.
    pub fn push<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        write_request(&mut self.out, arguments);
    }

    /// Where requests wait to be sent, for those who write them themselves.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends what waits.
    pub async fn flush(&mut self) -> Result<(), TalkError> {
        let sent = timeout(self.within, self.stream.write_all(&self.out)).await;
        self.out.clear();
        sent.map_err(|_| self.late())?.map_err(|source| self.broken(source))
    }

    /// The next reply; an error reply is an error.
    pub async fn answer(&mut self) -> Result<Bytes, TalkError> {
        let frame = self.frame().await?;
        match View::of(&frame) {
            Some(View::Error(text)) => Err(self.refused(text)),
            _ => Ok(frame),
        }
    }

    /// The next reply, whatever it says.
    pub async fn frame(&mut self) -> Result<Bytes, TalkError> {
        loop {
            let end = self.scanner.scan(&self.input).map_err(|source| self.nonsense(source))?;
            if let Some(len) = end {
                return Ok(self.input.split_to(len).freeze());
            }
            self.read_more().await?;
        }
    }

    /// Reads until `replies` replies are here whole, and hands out all of them in one piece.
    pub async fn frames(&mut self, replies: usize) -> Result<Bytes, TalkError> {
        let (mut len, mut left) = (0, replies);
        while left > 0 {
            let end = self.scanner.scan(&self.input[len..]).map_err(|source| self.nonsense(source))?;
            match end {
                Some(more) => (len, left) = (len + more, left - 1),
                None => self.read_more().await?,
            }
        }
        Ok(self.input.split_to(len).freeze())
    }

    async fn read_more(&mut self) -> Result<(), TalkError> {
        self.input.reserve(READ_CHUNK);
        let read = timeout(self.within, self.stream.read_buf(&mut self.input)).await;
        match read.map_err(|_| self.late())?.map_err(|source| self.broken(source))? {
            0 => Err(self.broken(io::ErrorKind::UnexpectedEof.into())),
            _ => Ok(()),
        }
    }

    /// The connection itself, for those who go on in their own way. Every reply must have been taken.
    #[must_use]
    pub fn into_stream(self) -> TcpStream {
        self.stream
    }

    fn late(&self) -> TalkError {
        TalkError::Late { to: self.to.clone(), within: self.within }
    }

    fn broken(&self, source: io::Error) -> TalkError {
        TalkError::Broken { to: self.to.clone(), source }
    }

    fn nonsense(&self, source: BadReply) -> TalkError {
        TalkError::Nonsense { to: self.to.clone(), source }
    }

    /// An error reply as an error.
    #[must_use]
    pub fn refused(&self, text: &[u8]) -> TalkError {
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_ERROR)]).into_owned();
        TalkError::Refused { to: self.to.clone(), text }
    }

    /// A reply that does not fit the request.
    #[must_use]
    pub fn unexpected(&self, request: &'static str) -> TalkError {
        TalkError::Unexpected { to: self.to.clone(), request }
    }
}
