//! Random and partly valid bytes from many connections, while a client works.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use capstan_testkit::redis::{Wire, command};
use capstan_testkit::seed::{rng, seeds, soak};
use rand::RngExt;
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;

use crate::clients::Proxies;

/// The parts of the noise: frames that begin validly, and frames with one wrong byte.
const TEMPLATES: [&[u8]; 12] = [
    b"*3\r\n$3\r\nSET\r\n$5\r\nnoise\r\n$1\r\nx\r\n",
    b"*2\r\n$3\r\nGET\r\n$5\r\nnoise\r\n",
    b"*2\r\n$9\r\nSUBSCRIBE\r\n$1\r\nc\r\n",
    b"*1\r\n$5\r\nMULTI\r\n",
    b"*1\r\n$4\r\nEXEC\r\n",
    b"*3\r\n$5\r\nBLPOP\r\n$5\r\nqueue\r\n$1\r\n0\r\n",
    b"*2\r\n$5\r\nHELLO\r\n$1\r\n3\r\n",
    b"*4\r\n$4\r\nEVAL\r\n$8\r\nreturn 1\r\n$1\r\n9\r\n$1\r\na\r\n",
    b"*1000000\r\n$100000000\r\n",
    b"*2\r\n$5\r\nWATCH\r\n$5\r\nnoise\r\n",
    b"PING \"half\r\n",
    b"*3\r\n$5\r\nNMCTL\r\n$5\r\nSETDB\r\n$1\r\n1\r\n",
];

fn noise(rng: &mut StdRng) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..rng.random_range(1..20) {
        let mut frame = TEMPLATES.choose(rng).unwrap().to_vec();
        for _ in 0..rng.random_range(0..3) {
            let at = rng.random_range(0..frame.len());
            frame[at] = rng.random();
        }
        frame.truncate(rng.random_range(frame.len() / 2..=frame.len()));
        bytes.extend(frame);
    }
    bytes
}

/// One connection of noise, in pieces, and the replies; closed by the proxy or by the test.
fn annoy(address: SocketAddr, rng: &mut StdRng) -> anyhow::Result<String> {
    let mut socket = TcpStream::connect(address)?;
    socket.set_read_timeout(Some(Duration::from_millis(1)))?;
    let mut answer = [0; 4096];
    let bytes = noise(rng);
    for piece in bytes.chunks(rng.random_range(1..200)) {
        if socket.write_all(piece).is_err() || matches!(socket.read(&mut answer), Ok(0)) {
            break;
        }
    }
    Ok(bytes.escape_ascii().to_string())
}

fn resident_bytes(wire: &mut Wire) -> anyhow::Result<u64> {
    let text = wire.say("INFO memory")?;
    let line = text.lines().find_map(|line| line.strip_prefix("used_memory_rss:"));
    Ok(line.unwrap_or("0").trim().parse()?)
}

#[tokio::test(flavor = "multi_thread")]
async fn noise_harms_nobody_else() -> anyhow::Result<()> {
    let proxies = Proxies::start(1).await?;
    let address = proxies.addresses()[0];
    let mut wire = Wire::connect(address)?;
    let before = resident_bytes(&mut wire)?;
    seeds(1, |seed| {
        let mut rng = rng(seed);
        for turn in 0..soak(150, 5000) {
            let noise = annoy(address, &mut rng).unwrap();
            let value = turn.to_string();
            let said = String::from_utf8_lossy(&wire.ask(&["SET", "mine", &value]).unwrap()).into_owned();
            assert_eq!(said, "+OK\r\n", "after {noise}");
            let got = wire.ask(&["GET", "mine"]).unwrap();
            assert_eq!(got, format!("${}\r\n{value}\r\n", value.len()).into_bytes());
        }
    });
    let grown = resident_bytes(&mut wire)?.saturating_sub(before);
    assert!(grown < 64 << 20, "memory has grown by {grown} bytes");
    Ok(())
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_announced_costs_nothing_until_it_arrives() -> anyhow::Result<()> {
    let proxies = Proxies::start(1).await?;
    let mut wire = Wire::connect(proxies.addresses()[0])?;
    let before = resident_bytes(&mut wire)?;
    let mut liars = Vec::new();
    for _ in 0..200 {
        let mut liar = Wire::connect(proxies.addresses()[0])?;
        liar.send(b"*1000000\r\n$3\r\nSET\r\n$500000000\r\nabc")?;
        liars.push(liar);
    }
    for number in 0..200 {
        let key = format!("k{number}");
        assert_eq!(wire.ask(&["SET", &key, "v"])?, b"+OK\r\n");
    }
    let grown = resident_bytes(&mut wire)?.saturating_sub(before);
    assert!(grown < 64 << 20, "200 announcements of 500 MB have cost {grown} bytes");
    drop(liars);
    // A request as large as announced is served.
    let value = vec![b'x'; 8 << 20];
    wire.send(&command(&[&b"SET"[..], b"large", &value]))?;
    assert_eq!(wire.reply()?, b"+OK\r\n");
    Ok(())
}
