//! What does a restarted proxy know? What it had obeyed before it answered: one small file, replaced whole.
//!
//! ```text
//! capstan redis proxy 1 <SHA-256 of the rest, in hex>
//! {"told":[["SETDB","3","NOFLAG",...],...],"released":[...],"leased":true,"floor":0}
//! ```
//!
//! The messages are kept in their own words and are read with the parser that read them from the network.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::proxy_state::{Move, ProxyState, Verdict};
use crate::nmctl::{Announcement, Message};

/// The first words of the file, with the version of its format.
const MAGIC: &str = "capstan redis proxy 1";
/// More than the longest messages that are accepted, written out.
const MAX_BYTES: u64 = 64 << 20;

/// The file with the state of a proxy.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// A state that cannot be believed. The proxy does not start with it: half a state could serve slots that it has lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "the proxy's state in {} cannot be used: {why}. Move the file away to start empty; coordinators will tell the proxy \
     everything again",
    path.display()
)]
pub struct DamagedState {
    path: PathBuf,
    why: String,
}

/// What is in the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    told: Vec<Vec<String>>,
    /// Moves that have let go, as the entries of one message.
    released: Vec<String>,
    leased: bool,
    /// The epoch of the last fence; 0 if there was none that matters.
    #[serde(default)]
    floor: u64,
}

impl StateFile {
    /// The file at that path. Its directory exists.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> StateFile {
        StateFile { path: path.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What was kept last; a new state if nothing ever was. Blocks on the disk.
    pub fn load(&self) -> Result<ProxyState, DamagedState> {
        let damaged = |why: String| DamagedState { path: self.path.clone(), why };
        let len = match std::fs::metadata(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(ProxyState::default()),
            Err(error) => return Err(damaged(error.to_string())),
            Ok(metadata) => metadata.len(),
        };
        if len > MAX_BYTES {
            return Err(damaged(format!("it has {len} bytes")));
        }
        let text = std::fs::read_to_string(&self.path).map_err(|error| damaged(error.to_string()))?;
        decode(&text).map_err(damaged)
    }

    /// Keeps a state, durably when this returns. Blocks on the disk.
    pub fn save(&self, state: &ProxyState) -> io::Result<()> {
        let temporary = self.path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(encode(state)?.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, &self.path)?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }
}

fn encode(state: &ProxyState) -> io::Result<String> {
    let released =
        Announcement { entries: state.released().map(Move::entry).collect(), ..state.own().clone() };
    let told = [
        Message::SetDb(state.own().clone()),
        Message::SetPeer(state.peers().clone()),
        Message::SetRepl(state.roles().clone()),
        Message::SetConf(state.conf().clone()),
    ];
    let said = told.iter().filter(|message| epoch_of(message).is_some_and(|epoch| epoch.is_told()));
    let body = Body {
        told: said.map(|message| message.words().split_off(1)).collect(),
        released: Message::Releasing(released).words().split_off(1),
        leased: state.is_under_lease(),
        floor: state.floor().0,
    };
    let body = serde_json::to_string(&body)?;
    Ok(format!("{MAGIC} {}\n{body}\n", checksum(&body)))
}

fn decode(text: &str) -> Result<ProxyState, String> {
    let (head, body) = text.split_once('\n').ok_or("it is cut off")?;
    let sum = head.strip_prefix(MAGIC).ok_or("it is of another kind or version")?.trim();
    let body = body.strip_suffix('\n').ok_or("it is cut off")?;
    if sum != checksum(body) {
        return Err("its checksum is wrong".to_owned());
    }
    let body: Body = serde_json::from_str(body).map_err(|error| error.to_string())?;
    let mut state = ProxyState::default();
    for words in &body.told {
        let message =
            Message::parse(words.iter().map(String::as_bytes)).map_err(|wrong| wrong.to_string())?;
        match state.accept(&message).map_err(|refusal| refusal.to_string())? {
            Verdict::Obey(next) => state = *next,
            Verdict::Known => return Err(format!("{} stands in it twice", message.name())),
        }
    }
    state = state.let_go(released(&state, &body.released)?).fenced(capstan_control::epoch::Epoch(body.floor));
    Ok(if body.leased { state.under_lease() } else { state })
}

fn released(state: &ProxyState, words: &[String]) -> Result<Vec<Move>, String> {
    if !state.own().epoch.is_told() {
        return Ok(Vec::new());
    }
    match Message::parse(words.iter().map(String::as_bytes)) {
        Ok(Message::Releasing(told)) => state.releasing(&told).map_err(|refusal| refusal.to_string()),
        Ok(other) => Err(format!("{} stands where releases should", other.name())),
        Err(wrong) => Err(wrong.to_string()),
    }
}

fn epoch_of(message: &Message) -> Option<capstan_control::epoch::Epoch> {
    match message {
        Message::SetDb(told) | Message::SetPeer(told) | Message::Releasing(told) => Some(told.epoch),
        Message::SetRepl(told) => Some(told.epoch),
        Message::SetConf(told) => Some(told.epoch),
        Message::Import(_)
        | Message::Fence(_)
        | Message::Lease(_)
        | Message::ListDb
        | Message::ClearDb
        | Message::Moves
        | Message::Epoch
        | Message::Info => None,
    }
}

fn checksum(body: &str) -> String {
    Sha256::digest(body.as_bytes()).iter().map(|byte| format!("{byte:02x}")).collect()
}
