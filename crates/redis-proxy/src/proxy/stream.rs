//! How do bytes reach a client? Over TCP, plain or with TLS; never blocking the worker.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};

/// The first byte of a TLS handshake, and of no Redis request.
const HANDSHAKE: u8 = 0x16;

/// A client's connection.
#[derive(Debug)]
pub(super) struct Stream {
    socket: TcpStream,
    layer: Layer,
}

/// The layer on top of TCP.
#[derive(Debug)]
enum Layer {
    /// Nothing.
    Plain,
    /// Decided by the client's first byte.
    Undecided(Arc<ServerConfig>),
    /// Encryption.
    Tls(Box<ServerConnection>),
}

impl Stream {
    /// An accepted connection, which may turn out to be encrypted if the proxy supports it.
    pub(super) fn new(socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Stream {
        let layer = tls.map_or(Layer::Plain, |config| Layer::Undecided(Arc::clone(config)));
        Stream { socket, layer }
    }

    /// The socket, for registering it.
    pub(super) fn socket(&mut self) -> &mut TcpStream {
        &mut self.socket
    }

    /// Whether it is encrypted.
    pub(super) fn is_tls(&self) -> bool {
        matches!(self.layer, Layer::Tls(_))
    }

    /// The socket, if it is not encrypted.
    pub(super) fn into_plain(self) -> Option<TcpStream> {
        match self.layer {
            Layer::Plain => Some(self.socket),
            Layer::Undecided(_) | Layer::Tls(_) => None,
        }
    }

    /// Whether the TLS session has data of its own to send (a handshake, an alert) or left over.
    pub(super) fn wants_write(&self) -> bool {
        match &self.layer {
            Layer::Plain | Layer::Undecided(_) => false,
            Layer::Tls(session) => session.wants_write(),
        }
    }

    /// Peeks at the client's first byte. `false`: the stream has ended.
    fn decide(&mut self, config: &Arc<ServerConfig>) -> io::Result<bool> {
        let mut first = [0];
        if self.socket.peek(&mut first)? == 0 {
            return Ok(false);
        }
        self.layer = match first[0] {
            HANDSHAKE => {
                let session = ServerConnection::new(Arc::clone(config));
                Layer::Tls(Box::new(session.map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))?))
            }
            _ => Layer::Plain,
        };
        Ok(true)
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if let Layer::Undecided(config) = &self.layer {
            let config = Arc::clone(config);
            if !self.decide(&config)? {
                return Ok(0);
            }
        }
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => self.socket.read(buffer),
            Layer::Tls(session) => decrypt(session, &mut self.socket, buffer),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => self.socket.write(bytes),
            Layer::Tls(session) => encrypt(session, &mut self.socket, bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match &mut self.layer {
            Layer::Plain | Layer::Undecided(_) => Ok(()),
            Layer::Tls(session) => send(session, &mut self.socket),
        }
    }
}

/// Reads the socket until there are decrypted bytes, or it has no more.
fn decrypt(session: &mut ServerConnection, socket: &mut TcpStream, buffer: &mut [u8]) -> io::Result<usize> {
    loop {
        match session.reader().read(buffer) {
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
            done => return done,
        }
        if session.read_tls(socket)? == 0 {
            return Ok(0);
        }
        if let Err(e) = session.process_new_packets() {
            // The alert with the reason, as far as the socket accepts it.
            let _ = send(session, socket);
            return Err(io::Error::new(io::ErrorKind::InvalidData, e));
        }
        send(session, socket)?;
    }
}

/// Encrypts what fits into the session's bounded buffer and sends it.
fn encrypt(session: &mut ServerConnection, socket: &mut TcpStream, bytes: &[u8]) -> io::Result<usize> {
    send(session, socket)?;
    if session.wants_write() {
        return Err(io::ErrorKind::WouldBlock.into());
    }
    let taken = session.writer().write(bytes)?;
    send(session, socket)?;
    if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
}

/// Sends records until the socket is full.
fn send(session: &mut ServerConnection, socket: &mut TcpStream) -> io::Result<()> {
    while session.wants_write() {
        match session.write_tls(socket) {
            Ok(_) => {}
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
