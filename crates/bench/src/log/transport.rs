//! Which transport between hosts is faster: frames on a TCP connection, or a bidirectional tonic call? Raw bytes, sizes
//! and window are the same for both, so that only the transport differs.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::net::tcp::{OwnedReadHalf, OwnedWriteHalf};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tonic::client::Grpc;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::codegen::tokio_stream::{Stream, StreamExt as _};
use tonic::codegen::{Body, BoxFuture, Service, StdError, http};
use tonic::server::{NamedService, StreamingService};
use tonic::transport::server::TcpIncoming;
use tonic::transport::{Channel, Server};
use tonic::{Request, Response, Status, Streaming};

use super::Size;
use crate::load::median;
use crate::{Row, progress};

/// The size of a shipment, and of a single entry.
const LARGE: usize = 64 * 1024;
const SMALL: usize = 1024;
/// Frames in flight: about what the primary of a log allows a follower.
const WINDOW: usize = 16;
/// Large enough that HTTP/2 flow control is not what is measured.
const HTTP2_WINDOW: u32 = 4 * 1024 * 1024;
const PATH: &str = "/capstan.Bench/Stream";

/// Both transports, with shipments and with single entries.
pub(super) async fn rows(size: Size) -> Result<Vec<Row>> {
    let (mut framed, mut tonic) = ((vec![], vec![]), (vec![], vec![]));
    for round in 0..size.rounds {
        progress(&format!("replication stream, round {}", round + 1));
        framed.0.push(drive(Framed::start().await?, LARGE, WINDOW, size.cell).await?);
        tonic.0.push(drive(Tonic::start().await?, LARGE, WINDOW, size.cell).await?);
        framed.1.push(drive(Framed::start().await?, SMALL, 1, size.cell).await?);
        tonic.1.push(drive(Tonic::start().await?, SMALL, 1, size.cell).await?);
    }
    let gigabytes = |rates| median(rates) * LARGE as f64 / 1e9;
    Ok(vec![
        Row::new(
            "Replication stream, frames of 64 KiB, 16 on their way",
            gigabytes(framed.0),
            "tonic",
            gigabytes(tonic.0),
            "GB/s",
        ),
        Row::new(
            "Replication stream, frames of 1 KiB, one at a time",
            median(framed.1),
            "tonic",
            median(tonic.1),
            "frames/s",
        ),
    ])
}

/// One end of a stream whose other end answers every frame with its length.
trait Wire {
    async fn send(&mut self, frame: Bytes) -> Result<()>;
    async fn answer(&mut self) -> Result<u64>;
}

/// Answered frames per second.
async fn drive(mut wire: impl Wire, bytes: usize, window: usize, time: Duration) -> Result<f64> {
    let frame = Bytes::from(vec![7; bytes]);
    let (begin, mut sent, mut answered) = (Instant::now(), 0u64, 0u64);
    while begin.elapsed() < time {
        while sent < answered + window as u64 {
            wire.send(frame.clone()).await?;
            sent += 1;
        }
        if wire.answer().await? != bytes as u64 {
            bail!("a frame arrived with another length");
        }
        answered += 1;
    }
    Ok(answered as f64 / begin.elapsed().as_secs_f64())
}

/// A length, and that many bytes.
struct Framed {
    reader: BufReader<OwnedReadHalf>,
    writer: OwnedWriteHalf,
    _peer: JoinSet<()>,
}

impl Framed {
    async fn start() -> Result<Framed> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let stream = TcpStream::connect(listener.local_addr()?).await?;
        let (peer, _) = listener.accept().await?;
        stream.set_nodelay(true)?;
        peer.set_nodelay(true)?;
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(answer_frames(peer).await) });
        let (reader, writer) = stream.into_split();
        Ok(Framed { reader: BufReader::new(reader), writer, _peer: tasks })
    }
}

async fn answer_frames(stream: TcpStream) -> std::io::Result<()> {
    let (reader, mut writer) = stream.into_split();
    let mut reader = BufReader::with_capacity(256 * 1024, reader);
    loop {
        let length = reader.read_u32_le().await? as usize;
        let mut bytes = BytesMut::zeroed(length);
        reader.read_exact(&mut bytes).await?;
        writer.write_u64_le(bytes.len() as u64).await?;
    }
}

impl Wire for Framed {
    async fn send(&mut self, frame: Bytes) -> Result<()> {
        let mut bytes = BytesMut::with_capacity(frame.len() + 4);
        bytes.put_u32_le(frame.len() as u32);
        bytes.put_slice(&frame);
        Ok(self.writer.write_all(&bytes).await?)
    }

    async fn answer(&mut self) -> Result<u64> {
        Ok(self.reader.read_u64_le().await?)
    }
}

/// A bidirectional call.
struct Tonic {
    frames: mpsc::Sender<Bytes>,
    answers: Streaming<Bytes>,
    _peer: JoinSet<()>,
}

impl Tonic {
    async fn start() -> Result<Tonic> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let endpoint = format!("http://{}", listener.local_addr()?);
        let server = Server::builder()
            .tcp_nodelay(true)
            .initial_stream_window_size(HTTP2_WINDOW)
            .initial_connection_window_size(HTTP2_WINDOW)
            .add_service(Answering)
            .serve_with_incoming(TcpIncoming::from(listener).with_nodelay(Some(true)));
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { drop(server.await) });
        let channel = Channel::from_shared(endpoint)?
            .tcp_nodelay(true)
            .initial_stream_window_size(HTTP2_WINDOW)
            .initial_connection_window_size(HTTP2_WINDOW)
            .connect()
            .await?;
        let (frames, queue) = mpsc::channel(WINDOW);
        let mut grpc = Grpc::new(channel);
        grpc.ready().await?;
        let path = http::uri::PathAndQuery::from_static(PATH);
        let answers = grpc.streaming(Request::new(Queue(queue)), path, Raw).await?.into_inner();
        Ok(Tonic { frames, answers, _peer: tasks })
    }
}

impl Wire for Tonic {
    async fn send(&mut self, frame: Bytes) -> Result<()> {
        Ok(self.frames.send(frame).await?)
    }

    async fn answer(&mut self) -> Result<u64> {
        match self.answers.message().await? {
            Some(mut answer) => Ok(answer.try_get_u64_le()?),
            None => bail!("the call ended"),
        }
    }
}

/// Sent messages that were not taken yet, as a stream.
struct Queue(mpsc::Receiver<Bytes>);

impl Stream for Queue {
    type Item = Bytes;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Bytes>> {
        self.0.poll_recv(context)
    }
}

/// Raw messages.
#[derive(Clone, Copy, Debug, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Raw;
    type Decoder = Raw;

    fn encoder(&mut self) -> Raw {
        Raw
    }

    fn decoder(&mut self) -> Raw {
        Raw
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, out: &mut EncodeBuf<'_>) -> Result<(), Status> {
        out.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, bytes: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(bytes.copy_to_bytes(bytes.remaining())))
    }
}

/// Answers every message with its length.
#[derive(Clone, Copy, Debug)]
struct Answering;

impl NamedService for Answering {
    const NAME: &'static str = "capstan.Bench";
}

type Answers = Pin<Box<dyn Stream<Item = Result<Bytes, Status>> + Send>>;

impl StreamingService<Bytes> for Answering {
    type Response = Bytes;
    type ResponseStream = Answers;
    type Future = BoxFuture<Response<Answers>, Status>;

    fn call(&mut self, request: Request<Streaming<Bytes>>) -> Self::Future {
        let answers = request
            .into_inner()
            .map(|frame| frame.map(|frame| Bytes::copy_from_slice(&(frame.len() as u64).to_le_bytes())));
        Box::pin(async move { Ok(Response::new(Box::pin(answers) as Answers)) })
    }
}

impl<B> Service<http::Request<B>> for Answering
where
    B: Body + Send + 'static,
    B::Error: Into<StdError> + Send + 'static,
{
    type Response = http::Response<tonic::body::Body>;
    type Error = std::convert::Infallible;
    type Future = BoxFuture<Self::Response, Self::Error>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<B>) -> Self::Future {
        Box::pin(async move { Ok(tonic::server::Grpc::new(Raw).streaming(Answering, request).await) })
    }
}
