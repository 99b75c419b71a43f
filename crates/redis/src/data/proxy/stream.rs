//! How do bytes reach a client? Over TCP, plain or inside TLS; either way without ever blocking the worker.

use std::io::{self, Read, Write};
use std::sync::Arc;

use mio::net::TcpStream;
use rustls::{ServerConfig, ServerConnection};

/// A client's connection.
#[derive(Debug)]
pub(super) enum Stream {
    /// As it is.
    Plain(TcpStream),
    /// Encrypted.
    Tls(Box<Tls>),
}

/// A connection and its TLS session.
#[derive(Debug)]
pub(super) struct Tls {
    socket: TcpStream,
    session: ServerConnection,
}

impl Stream {
    /// A connection as the listener gave it, encrypted if the proxy is.
    pub(super) fn new(socket: TcpStream, tls: Option<&Arc<ServerConfig>>) -> Result<Stream, rustls::Error> {
        Ok(match tls {
            None => Stream::Plain(socket),
            Some(config) => {
                let session = ServerConnection::new(Arc::clone(config))?;
                Stream::Tls(Box::new(Tls { socket, session }))
            }
        })
    }

    /// The socket, for registering it.
    pub(super) fn socket(&mut self) -> &mut TcpStream {
        match self {
            Stream::Plain(socket) => socket,
            Stream::Tls(tls) => &mut tls.socket,
        }
    }

    /// Whether the TLS session has something to send of its own (a handshake, an alert) or left over.
    pub(super) fn wants_write(&self) -> bool {
        match self {
            Stream::Plain(_) => false,
            Stream::Tls(tls) => tls.session.wants_write(),
        }
    }
}

impl Read for Stream {
    #[inline]
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.read(buffer),
            Stream::Tls(tls) => tls.read(buffer),
        }
    }
}

impl Write for Stream {
    #[inline]
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Stream::Plain(socket) => socket.write(bytes),
            Stream::Tls(tls) => tls.write(bytes),
        }
    }

    fn flush(&mut self) -> io::Result<()> {
        match self {
            Stream::Plain(_) => Ok(()),
            Stream::Tls(tls) => tls.send(),
        }
    }
}

impl Tls {
    /// Decrypted bytes; reads the socket until there are some, or it has none.
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.session.reader().read(buffer) {
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => {}
                done => return done,
            }
            if self.session.read_tls(&mut self.socket)? == 0 {
                return Ok(0);
            }
            if let Err(e) = self.session.process_new_packets() {
                // The alert that says why, as far as the socket takes it.
                let _ = self.send();
                return Err(io::Error::new(io::ErrorKind::InvalidData, e));
            }
            self.send()?;
        }
    }

    /// Encrypts what fits into the session's bounded buffer and sends it.
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.send()?;
        if self.session.wants_write() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let taken = self.session.writer().write(bytes)?;
        self.send()?;
        if taken == 0 { Err(io::ErrorKind::WouldBlock.into()) } else { Ok(taken) }
    }

    /// Sends records until the socket is full.
    fn send(&mut self) -> io::Result<()> {
        while self.session.wants_write() {
            match self.session.write_tls(&mut self.socket) {
                Ok(_) => {}
                Err(e) if e.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }
}
