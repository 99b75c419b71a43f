//! How does a coordinator talk to proxies? One request, one reply; a trait, so that a simulation can replace
//! it.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::net::TcpStream;
use tokio::time::timeout;

use crate::address::Address;
use crate::nmctl::Message;
use capstan_redis_protocol::resp::write_request;

/// Longest line and longest text of a reply that a coordinator reads; a proxy's reports are far shorter.
const MAX_REPLY: usize = 4 << 20;
/// Lines of a list of replies.
const MAX_LINES: usize = 100_000;

/// The reply of a proxy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reply {
    /// It accepted the message.
    Done,
    /// It refused, with this error.
    Refused(String),
    /// This text: every part of the reply on a line of its own.
    Text(String),
}

/// No reply was received. The message may have arrived.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unreached(pub String);

/// The proxies, as a coordinator reaches them.
pub trait Proxies: Send + Sync + 'static {
    /// Sends a message to a proxy. Returns within a bounded time; if it returns without a reply, the message
    /// can no longer arrive.
    fn send(
        &self,
        proxy: &Address,
        message: &Message,
    ) -> impl Future<Output = Result<Reply, Unreached>> + Send;
}

impl<P: Proxies> Proxies for Arc<P> {
    fn send(
        &self,
        proxy: &Address,
        message: &Message,
    ) -> impl Future<Output = Result<Reply, Unreached>> + Send {
        P::send(self, proxy, message)
    }
}

/// Proxies over TCP, as user `admin`.
#[derive(Debug)]
pub struct Wire {
    password: Option<String>,
    within: Duration,
    idle: Mutex<HashMap<Address, Vec<Link>>>,
}

/// Idle connections kept to one proxy: one for its watcher, one for moves.
const IDLE_PER_PROXY: usize = 2;

type Link = BufReader<TcpStream>;

impl Wire {
    /// Uses this admin password; a request without a reply for this long has failed.
    #[must_use]
    pub fn new(password: Option<String>, within: Duration) -> Wire {
        Wire { password, within, idle: Mutex::new(HashMap::new()) }
    }

    /// Sends commands to a proxy as a client of a database, on a connection of their own, and returns the
    /// reply to each. All of it within the timeout of one request.
    pub async fn ask_as_client(
        &self,
        proxy: &Address,
        database: &str,
        commands: &[Vec<String>],
    ) -> Result<Vec<Reply>, Unreached> {
        let exchange = async {
            let mut link = self.connect(proxy).await?;
            if let Reply::Refused(why) = ask(&mut link, &["NMCTL", "PEER", database]).await? {
                return Err(Unreached(why));
            }
            let mut replies = Vec::with_capacity(commands.len());
            for command in commands {
                replies.push(ask(&mut link, command).await?);
            }
            Ok(replies)
        };
        let late = |_| Unreached(format!("no reply within {:?}", self.within));
        timeout(self.within, exchange).await.map_err(late)?
    }

    fn take(&self, proxy: &Address) -> Option<Link> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner).get_mut(proxy)?.pop()
    }

    fn keep(&self, proxy: &Address, link: Link) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        let links = idle.entry(proxy.clone()).or_default();
        if links.len() < IDLE_PER_PROXY {
            links.push(link);
        }
    }

    async fn connect(&self, proxy: &Address) -> Result<Link, Unreached> {
        let stream = TcpStream::connect(proxy.as_str()).await.map_err(unreached)?;
        stream.set_nodelay(true).map_err(unreached)?;
        // Unsent data of an abandoned connection must never arrive: close with a reset.
        stream.set_zero_linger().map_err(unreached)?;
        let mut link = BufReader::new(stream);
        if let Some(password) = &self.password {
            match ask(&mut link, &["AUTH", "admin", password]).await? {
                Reply::Done => {}
                Reply::Refused(why) | Reply::Text(why) => {
                    return Err(Unreached(format!("authentication as admin failed: {why}")));
                }
            }
        }
        Ok(link)
    }

    async fn exchange(&self, proxy: &Address, words: &[String]) -> Result<Reply, Unreached> {
        // A kept connection may have been closed by the other side: then another one is tried.
        if let Some(mut link) = self.take(proxy)
            && let Ok(reply) = ask(&mut link, words).await
        {
            self.keep(proxy, link);
            return Ok(reply);
        }
        let mut link = self.connect(proxy).await?;
        let reply = ask(&mut link, words).await?;
        self.keep(proxy, link);
        Ok(reply)
    }
}

impl Proxies for Wire {
    async fn send(&self, proxy: &Address, message: &Message) -> Result<Reply, Unreached> {
        let words = message.words();
        let late = |_| Unreached(format!("no reply within {:?}", self.within));
        timeout(self.within, self.exchange(proxy, &words)).await.map_err(late)?
    }
}

fn unreached(error: std::io::Error) -> Unreached {
    Unreached(error.to_string())
}

async fn ask(link: &mut Link, words: &[impl AsRef<[u8]>]) -> Result<Reply, Unreached> {
    let mut request = Vec::new();
    write_request(&mut request, words);
    link.get_mut().write_all(&request).await.map_err(unreached)?;
    let mut texts = Vec::new();
    // Outstanding replies: a list adds its members.
    let mut awaited = 1;
    let mut first = None;
    while awaited > 0 {
        awaited -= 1;
        let line = read_line(link).await?;
        let (kind, text) = line.split_at_checked(1).ok_or_else(|| Unreached("empty reply".to_owned()))?;
        first.get_or_insert_with(|| kind.to_owned());
        match kind {
            "+" | ":" => texts.push(text.to_owned()),
            "-" => return Ok(Reply::Refused(text.to_owned())),
            "$" => texts.extend(read_bulk(link, text).await?),
            "*" => awaited += count(text)?,
            other => return Err(Unreached(format!("unknown reply type {other:?}"))),
        }
        if texts.len() > MAX_LINES || awaited > MAX_LINES {
            return Err(Unreached("the reply is too long".to_owned()));
        }
    }
    match (first.as_deref(), texts.as_slice()) {
        (Some("+"), [_]) => Ok(Reply::Done),
        _ => Ok(Reply::Text(texts.join("\n"))),
    }
}

async fn read_line(link: &mut Link) -> Result<String, Unreached> {
    let mut line = Vec::new();
    let mut bounded = link.take(MAX_REPLY as u64);
    bounded.read_until(b'\n', &mut line).await.map_err(unreached)?;
    let text = line.strip_suffix(b"\r\n").ok_or_else(|| Unreached("the connection was closed".to_owned()))?;
    Ok(String::from_utf8_lossy(text).into_owned())
}

async fn read_bulk(link: &mut Link, length: &str) -> Result<Option<String>, Unreached> {
    if length == "-1" {
        return Ok(None);
    }
    let mut bulk = vec![0; count(length)? + 2];
    link.read_exact(&mut bulk).await.map_err(unreached)?;
    bulk.truncate(bulk.len() - 2);
    Ok(Some(String::from_utf8_lossy(&bulk).into_owned()))
}

fn count(text: &str) -> Result<usize, Unreached> {
    let number: Option<usize> = if text == "-1" { Some(0) } else { text.parse().ok() };
    number
        .filter(|number| *number <= MAX_REPLY)
        .ok_or_else(|| Unreached(format!("invalid reply length {text:?}")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::net::TcpListener;

    async fn answering(bytes: &'static [u8]) -> Result<Reply, Unreached> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let proxy: Address = listener.local_addr().unwrap().to_string().parse().unwrap();
        let server = async {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut asked = [0; 64];
            let _ = stream.read(&mut asked).await.unwrap();
            stream.write_all(bytes).await.unwrap();
            stream
        };
        let wire = Wire::new(None, Duration::from_secs(5));
        let (_stream, reply) = tokio::join!(server, wire.send(&proxy, &Message::Info));
        reply
    }

    #[tokio::test]
    async fn replies_are_understood() {
        assert_eq!(answering(b"+OK\r\n").await, Ok(Reply::Done));
        assert_eq!(
            answering(b"-OLD_EPOCH known 7\r\n").await,
            Ok(Reply::Refused("OLD_EPOCH known 7".to_owned()))
        );
        assert_eq!(answering(b"$5\r\na\r\nbc\r\n").await, Ok(Reply::Text("a\r\nbc".to_owned())));
        assert_eq!(answering(b"*3\r\n$1\r\na\r\n:7\r\n$-1\r\n").await, Ok(Reply::Text("a\n7".to_owned())));
        assert!(answering(b"?\r\n").await.is_err());
        assert!(answering(b"$99999999999\r\n").await.is_err());
    }

    #[tokio::test]
    async fn nobody_there_is_unreached() {
        let wire = Wire::new(None, Duration::from_secs(5));
        assert!(wire.send(&"127.0.0.1:1".parse().unwrap(), &Message::Info).await.is_err());
    }
}
