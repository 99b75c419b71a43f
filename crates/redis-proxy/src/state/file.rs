//! What does a restarted proxy have? What it accepted before it replied: one small file, replaced atomically.
//!
//! ```text
//! capstan redis proxy 1 <SHA-256 of the rest, in hex>
//! {"told":[["SETDB","3","NOFLAG",...],...],"released":[...],"leased":true,"floor":0}
//! ```
//!
//! The messages are kept in the form in which they were received, and are read with the same parser.

use std::fs::File;
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::proxy_state::{Move, ProxyState, Verdict};
use capstan_redis_protocol::nmctl::{Announcement, Message};

/// The header of the file, with the version of its format.
const MAGIC: &str = "capstan redis proxy 1";
/// More than the longest accepted messages need.
const MAX_BYTES: u64 = 64 << 20;

/// The file with the state of a proxy.
#[derive(Debug)]
pub struct StateFile {
    path: PathBuf,
}

/// A damaged state. The proxy does not start with it: an incomplete state could serve slots that it has lost.
#[derive(Debug, thiserror::Error)]
#[error(
    "the proxy's state in {} cannot be used: {why}. Move the file away to start empty; coordinators will push everything \
     to the proxy again",
    path.display()
)]
pub struct DamagedState {
    path: PathBuf,
    why: String,
}

/// The content of the file.
#[derive(Debug, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Body {
    told: Vec<Vec<String>>,
    /// Released moves, as the entries of one message.
    released: Vec<String>,
    leased: bool,
    /// The epoch of the last fence; 0 if none is in force.
    #[serde(default)]
    floor: u64,
}

impl StateFile {
    /// The file at this path. Its directory must exist.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> StateFile {
        StateFile { path: path.into() }
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The state saved last; a new state if there is none. Blocks on the disk.
    pub fn load(&self) -> Result<ProxyState, DamagedState> {
        let damaged = |path: PathBuf| move |why: String| DamagedState { path, why };
        let state = match self.read(&self.path)? {
            None => ProxyState::default(),
            Some(text) => decode(&text).map_err(damaged(self.path.clone()))?,
        };
        match self.read(&self.in_sync_path())? {
            None => Ok(state),
            Some(text) => with_in_sync(state, &text).map_err(damaged(self.in_sync_path())),
        }
    }

    /// Saves a state durably. Blocks on the disk.
    pub fn save(&self, state: &ProxyState) -> io::Result<()> {
        self.replace(&self.path, &encode(state)?)
    }

    /// Saves which replicas must have a write, in a file of its own: earlier versions do not read it, and can be
    /// returned to.
    pub fn save_in_sync(&self, state: &ProxyState) -> io::Result<()> {
        let told: Vec<_> = state.in_sync().map(|told| Message::SetSync(told).words().split_off(1)).collect();
        self.replace(&self.in_sync_path(), &sealed(&serde_json::to_string(&told)?))
    }

    fn in_sync_path(&self) -> PathBuf {
        self.path.with_extension("in-sync")
    }

    /// The text of a file; `None` if there is none.
    fn read(&self, path: &Path) -> Result<Option<String>, DamagedState> {
        let damaged = |why: String| DamagedState { path: path.to_owned(), why };
        let len = match std::fs::metadata(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(damaged(error.to_string())),
            Ok(metadata) => metadata.len(),
        };
        if len > MAX_BYTES {
            return Err(damaged(format!("it has {len} bytes")));
        }
        std::fs::read_to_string(path).map(Some).map_err(|error| damaged(error.to_string()))
    }

    fn replace(&self, path: &Path, text: &str) -> io::Result<()> {
        let temporary = path.with_extension("new");
        let mut file = File::create(&temporary)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&temporary, path)?;
        let dir = self.path.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        File::open(dir)?.sync_all()
    }
}

fn encode(state: &ProxyState) -> io::Result<String> {
    let released =
        Announcement { entries: state.released().map(Move::entry).collect(), ..state.own().clone() };
    let messages = [
        Message::SetDb(state.own().clone()),
        Message::SetPeer(state.peers().clone()),
        Message::SetRepl(state.roles().clone()),
        Message::SetConf(state.conf().clone()),
    ];
    let accepted = messages.iter().filter(|message| epoch_of(message).is_some_and(|epoch| epoch.is_told()));
    let body = Body {
        told: accepted.map(|message| message.words().split_off(1)).collect(),
        released: Message::Releasing(released).words().split_off(1),
        leased: state.is_under_lease(),
        floor: state.floor().0,
    };
    Ok(sealed(&serde_json::to_string(&body)?))
}

/// A body with its header.
fn sealed(body: &str) -> String {
    format!("{MAGIC} {}\n{body}\n", checksum(body))
}

/// The body of a complete file.
fn unsealed(text: &str) -> Result<&str, String> {
    let (head, body) = text.split_once('\n').ok_or("it is truncated")?;
    let sum = head.strip_prefix(MAGIC).ok_or("unknown format or version")?.trim();
    let body = body.strip_suffix('\n').ok_or("it is truncated")?;
    if sum == checksum(body) { Ok(body) } else { Err("its checksum is wrong".to_owned()) }
}

fn with_in_sync(state: ProxyState, text: &str) -> Result<ProxyState, String> {
    let told: Vec<Vec<String>> = serde_json::from_str(unsealed(text)?).map_err(|error| error.to_string())?;
    replayed(state, &told)
}

/// The state after these messages.
fn replayed(mut state: ProxyState, told: &[Vec<String>]) -> Result<ProxyState, String> {
    for words in told {
        let message =
            Message::parse(words.iter().map(String::as_bytes)).map_err(|wrong| wrong.to_string())?;
        match state.accept(&message).map_err(|refusal| refusal.to_string())? {
            Verdict::Accept(next) => state = *next,
            Verdict::Unchanged => return Err(format!("duplicate {}", message.name())),
        }
    }
    Ok(state)
}

fn decode(text: &str) -> Result<ProxyState, String> {
    let body: Body = serde_json::from_str(unsealed(text)?).map_err(|error| error.to_string())?;
    let mut state = replayed(ProxyState::default(), &body.told)?;
    state = state
        .with_released(released(&state, &body.released)?)
        .fenced(capstan_control::epoch::Epoch(body.floor));
    Ok(if body.leased { state.under_lease() } else { state })
}

fn released(state: &ProxyState, words: &[String]) -> Result<Vec<Move>, String> {
    if !state.own().epoch.is_told() {
        return Ok(Vec::new());
    }
    match Message::parse(words.iter().map(String::as_bytes)) {
        Ok(Message::Releasing(message)) => state.releasing(&message).map_err(|refusal| refusal.to_string()),
        Ok(other) => Err(format!("{} in place of releases", other.name())),
        Err(wrong) => Err(wrong.to_string()),
    }
}

fn epoch_of(message: &Message) -> Option<capstan_control::epoch::Epoch> {
    match message {
        Message::SetDb(message) | Message::SetPeer(message) | Message::Releasing(message) => {
            Some(message.epoch)
        }
        Message::SetRepl(message) => Some(message.epoch),
        Message::SetConf(message) => Some(message.epoch),
        Message::SetSync(message) => Some(message.epoch),
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
