//! How does Capstan itself talk to a node or to another proxy? One connection, pipelined requests, replies in
//! order.
//!
//! Used by supervision, moves and pushes; clients' commands go through `proxy`.

use std::io;
use std::time::Duration;

use bytes::{Bytes, BytesMut};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;

use capstan_redis_protocol::address::Address;
use capstan_redis_protocol::resp::{BadReply, ReplyScanner, View, write_request};

/// The read size: several replies of a batch in few system calls.
const READ_CHUNK: usize = 64 << 10;
/// Longest error text that is kept.
const MAX_ERROR: usize = 512;

/// How to authenticate at the other side.
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

/// Why a request on a connection failed.
#[derive(Debug, thiserror::Error)]
pub enum TalkError {
    /// The connection could not be opened, or broke.
    #[error("connection to {to} failed: {source}")]
    Broken {
        /// The other side.
        to: Address,
        /// The system's error.
        source: io::Error,
    },
    /// No reply in time.
    #[error("{to} did not reply within {within:?}")]
    Late {
        /// The other side.
        to: Address,
        /// The timeout.
        within: Duration,
    },
    /// The received bytes are not RESP.
    #[error("{to} does not speak RESP: {source}")]
    Nonsense {
        /// The other side.
        to: Address,
        /// The protocol error.
        source: BadReply,
    },
    /// An error reply.
    #[error("{to} refused: {text}")]
    Refused {
        /// The other side.
        to: Address,
        /// The error text, code first.
        text: String,
    },
    /// A reply of a type that the request does not have.
    #[error("unexpected reply to {request} from {to}")]
    Unexpected {
        /// The other side.
        to: Address,
        /// The request.
        request: &'static str,
    },
}

impl TalkError {
    /// Whether the other side replied with an error with this code.
    #[must_use]
    pub fn has_code(&self, code: &str) -> bool {
        matches!(self, TalkError::Refused { text, .. } if text.split(' ').next() == Some(code))
    }
}

/// A client connection that Capstan itself uses.
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
    /// Connects and authenticates. `within` bounds every later wait too.
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

    /// Sends one request and returns its reply; an error reply is an error.
    pub async fn ask<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Result<Bytes, TalkError> {
        self.push(arguments);
        self.flush().await?;
        self.answer().await
    }

    /// The same, with another timeout.
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

    /// Queues a request.
    pub fn push<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        write_request(&mut self.out, arguments);
    }

    /// The buffer of queued requests, for callers that write requests themselves.
    pub fn outbox(&mut self) -> &mut Vec<u8> {
        &mut self.out
    }

    /// Sends the queued requests.
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

    /// The next reply, also if it is an error.
    pub async fn frame(&mut self) -> Result<Bytes, TalkError> {
        loop {
            let end = self.scanner.scan(&self.input).map_err(|source| self.nonsense(source))?;
            if let Some(len) = end {
                return Ok(self.input.split_to(len).freeze());
            }
            self.read_more().await?;
        }
    }

    /// Reads until `replies` replies are complete, and returns them in one buffer.
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

    /// The underlying connection, for another use. Every reply must have been read.
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

    /// The error for an error reply.
    #[must_use]
    pub fn refused(&self, text: &[u8]) -> TalkError {
        let text = String::from_utf8_lossy(&text[..text.len().min(MAX_ERROR)]).into_owned();
        TalkError::Refused { to: self.to.clone(), text }
    }

    /// The error for a reply that does not fit the request.
    #[must_use]
    pub fn unexpected(&self, request: &'static str) -> TalkError {
        TalkError::Unexpected { to: self.to.clone(), request }
    }
}
