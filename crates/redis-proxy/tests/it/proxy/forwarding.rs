//! Commands that are forwarded to another proxy, also while the slot has no owner for a while.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::mpsc;
use std::time::Duration;

use capstan_redis_proxy::Limits;

use super::{DEADLINE, Setup};

/// A fake proxy for one forwarded command: it accepts the greeting and the command, and replies on request.
struct Peer {
    address: SocketAddr,
    arrived: mpsc::Receiver<()>,
    answer: mpsc::Sender<&'static [u8]>,
}

impl Peer {
    fn start() -> anyhow::Result<Peer> {
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let address = listener.local_addr()?;
        let (arrived, arrival) = mpsc::channel();
        let (answer, answers) = mpsc::channel::<&'static [u8]>();
        std::thread::Builder::new().spawn(move || -> anyhow::Result<()> {
            let (mut socket, _) = listener.accept()?;
            // The greeting and the command arrive together.
            read_until(&mut socket, b"elsewhere")?;
            socket.write_all(b"+OK\r\n")?;
            arrived.send(())?;
            socket.write_all(answers.recv()?)?;
            // Open until the other side closes.
            let _ = socket.read(&mut [0; 64]);
            Ok(())
        })?;
        Ok(Peer { address, arrived: arrival, answer })
    }
}

fn read_until(socket: &mut TcpStream, word: &[u8]) -> anyhow::Result<()> {
    let (mut seen, mut chunk) = (Vec::new(), [0; 256]);
    while !seen.windows(word.len()).any(|window| window == word) {
        let n = socket.read(&mut chunk)?;
        anyhow::ensure!(n > 0, "the connection was closed");
        seen.extend_from_slice(&chunk[..n]);
    }
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn a_forwarded_command_without_an_owner_is_answered_in_time() -> anyhow::Result<()> {
    for answer in [&b"-MOVED 12182 127.0.0.1:1\r\n"[..], b"-TRYAGAIN not now\r\n"] {
        let limits = Limits { hold: Duration::from_millis(200), ..Limits::default() };
        let setup = Setup::with(1, limits, "{\"mode\":\"single\"}").await?;
        let (node, peer) = (setup.nodes[0].address(), Peer::start()?);
        setup.tell(&format!("NMCTL SETDB 2 NOFLAG db {node} 0-8191"))?;
        setup.tell(&format!("NMCTL SETPEER 2 NOFLAG db {} 8192-16383", peer.address))?;
        let mut wire = setup.client()?;
        wire.command(&["SET", "foo", "elsewhere"])?;
        peer.arrived.recv_timeout(DEADLINE)?;
        setup.tell("NMCTL SETPEER 3 NOFLAG")?;
        peer.answer.send(answer)?;
        assert_eq!(String::from_utf8(wire.reply()?)?, "-CLUSTERDOWN Hash slot not served\r\n");
        assert_eq!(wire.say("PING")?, "+PONG\r\n");
    }
    Ok(())
}
