use std::time::Duration;

use capstan_testkit::eventually;
use capstan_testkit::proxy::{Direction, Flow, Proxy};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

use crate::DEADLINE;

/// How long a test verifies that nothing happens.
const QUIET: Duration = Duration::from_millis(60);

/// An echo server behind a proxy.
struct Echo {
    proxy: Proxy,
    _server: JoinSet<()>,
}

async fn echo() -> Echo {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let addr = listener.local_addr().unwrap();
    let mut server = JoinSet::new();
    server.spawn(async move {
        let mut connections = JoinSet::new();
        loop {
            let (stream, _) = listener.accept().await.unwrap();
            connections.spawn(async move {
                let (mut from, mut to) = stream.into_split();
                let _ = tokio::io::copy(&mut from, &mut to).await;
            });
        }
    });
    Echo { proxy: Proxy::start(addr).await.unwrap(), _server: server }
}

impl Echo {
    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.proxy.addr()).await.unwrap()
    }
}

async fn says_back(stream: &mut TcpStream, text: &str) {
    stream.write_all(text.as_bytes()).await.unwrap();
    assert_eq!(hears(stream, text.len()).await.unwrap(), text);
}

async fn hears(stream: &mut TcpStream, length: usize) -> std::io::Result<String> {
    let mut bytes = vec![0; length];
    tokio::time::timeout(DEADLINE, stream.read_exact(&mut bytes)).await.unwrap()?;
    Ok(String::from_utf8(bytes).unwrap())
}

/// Checks that nothing arrives and the connection stays open.
async fn is_silent(stream: &mut TcpStream) {
    let mut byte = [0];
    let heard = tokio::time::timeout(QUIET, stream.read(&mut byte)).await;
    assert!(heard.is_err(), "heard {heard:?}");
}

async fn is_closed(stream: &mut TcpStream) {
    let mut byte = [0];
    let heard = tokio::time::timeout(DEADLINE, stream.read(&mut byte)).await.unwrap();
    assert!(matches!(heard, Ok(0) | Err(_)), "heard {heard:?}");
}

#[tokio::test]
async fn passes_and_counts_bytes_and_the_end_of_a_stream() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    says_back(&mut stream, "hello").await;
    stream.shutdown().await.unwrap();
    is_closed(&mut stream).await;
    let traffic = echo.proxy.traffic();
    assert_eq!((traffic.connections, traffic.to_upstream, traffic.to_client), (1, 5, 5));
}

#[tokio::test]
async fn passes_large_streams_whole() {
    let echo = echo().await;
    let stream = echo.connect().await;
    let sent: Vec<u8> = (0..8 << 20).map(|n: u32| (n % 251) as u8).collect();
    let (mut from, mut to) = stream.into_split();
    let mut heard = vec![0; sent.len()];
    let (written, read) = tokio::join!(to.write_all(&sent), from.read_exact(&mut heard));
    written.unwrap();
    read.unwrap();
    assert!(sent == heard);
}

#[tokio::test]
async fn a_cut_closes_what_is_open_and_refuses_what_is_new_until_healed() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    says_back(&mut stream, "a").await;
    echo.proxy.cut().await;
    is_closed(&mut stream).await;
    let refused = TcpStream::connect(echo.proxy.addr()).await.unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    echo.proxy.heal().await;
    says_back(&mut echo.connect().await, "b").await;
}

#[tokio::test]
async fn connections_can_be_closed_without_refusing_new_ones() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    says_back(&mut stream, "a").await;
    echo.proxy.close_connections().await;
    is_closed(&mut stream).await;
    says_back(&mut echo.connect().await, "b").await;
}

#[tokio::test]
async fn held_bytes_arrive_after_the_heal() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    echo.proxy.set_both(Flow::Hold);
    stream.write_all(b"late").await.unwrap();
    is_silent(&mut stream).await;
    echo.proxy.heal().await;
    assert_eq!(hears(&mut stream, 4).await.unwrap(), "late");
}

#[tokio::test]
async fn swallowed_bytes_are_gone_and_the_torn_stream_is_closed_by_the_heal() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    says_back(&mut stream, "a").await;
    echo.proxy.set_both(Flow::Swallow);
    stream.write_all(b"lost").await.unwrap();
    is_silent(&mut stream).await;
    eventually("the proxy has swallowed it", DEADLINE, async || match echo.proxy.traffic().swallowed {
        4 => Ok(()),
        other => Err(other),
    })
    .await;
    echo.proxy.heal().await;
    is_closed(&mut stream).await;
    says_back(&mut echo.connect().await, "b").await;
}

#[tokio::test]
async fn the_end_of_a_stream_is_swallowed_too() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    says_back(&mut stream, "a").await;
    echo.proxy.set(Direction::ToClient, Flow::Swallow);
    stream.shutdown().await.unwrap();
    is_silent(&mut stream).await;
    echo.proxy.heal().await;
    is_closed(&mut stream).await;
}

#[tokio::test]
async fn one_direction_alone_can_be_lost() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    echo.proxy.set(Direction::ToClient, Flow::Swallow);
    stream.write_all(b"done, but unanswered").await.unwrap();
    eventually("the request has arrived and the answer is lost", DEADLINE, async || {
        let traffic = echo.proxy.traffic();
        if (traffic.to_upstream, traffic.swallowed) == (20, 20) {
            Ok(())
        } else {
            Err(format!("{traffic:?}"))
        }
    })
    .await;
    is_silent(&mut stream).await;
}

#[tokio::test]
async fn a_delay_is_one_of_latency_not_of_rate() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    let delay = Duration::from_millis(80);
    echo.proxy.set(Direction::ToUpstream, Flow::Delay(delay));
    let began = tokio::time::Instant::now();
    for _ in 0..50 {
        stream.write_all(b"x").await.unwrap();
        tokio::task::yield_now().await;
    }
    hears(&mut stream, 50).await.unwrap();
    assert!(began.elapsed() >= delay);
    assert!(began.elapsed() < delay * 49, "{:?}", began.elapsed());
}

#[tokio::test]
async fn a_stream_is_cut_at_exactly_the_byte_and_the_next_one_passes() {
    let echo = echo().await;
    let mut stream = echo.connect().await;
    echo.proxy.set(Direction::ToClient, Flow::CutAfter(3));
    stream.write_all(b"abcdef").await.unwrap();
    assert_eq!(hears(&mut stream, 3).await.unwrap(), "abc");
    is_closed(&mut stream).await;
    says_back(&mut echo.connect().await, "whole").await;
}
