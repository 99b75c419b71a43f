//! A simulated disk: what was written is there until a crash, what was synced is there after it.

use std::hash::{DefaultHasher, Hash, Hasher};

use capstan_log::entry::{Entry, EntryKind, History, Offset};

/// What a log holds, with a running hash, so that two prefixes of any length are compared at once.
#[derive(Clone, Debug, Default)]
pub struct Content {
    /// Hash of everything before `start`.
    base: u64,
    start: u64,
    epochs: History,
    entries: Vec<(Entry, u64)>,
}

/// The hash of a log after one more entry.
pub fn chain(before: u64, entry: &Entry) -> u64 {
    let mut hasher = DefaultHasher::new();
    let kind = matches!(entry.kind, EntryKind::Data);
    (before, entry.epoch, entry.offset, kind, &entry.data[..]).hash(&mut hasher);
    hasher.finish()
}

impl Content {
    pub fn end(&self) -> u64 {
        self.start + self.entries.len() as u64
    }

    pub fn start(&self) -> u64 {
        self.start
    }

    /// Hash of everything before `end`; nothing if that is not here.
    pub fn hash_at(&self, end: u64) -> Option<u64> {
        match end.checked_sub(self.start)? {
            0 => Some(self.base),
            n => self.entries.get(n as usize - 1).map(|(_, hash)| *hash),
        }
    }

    pub fn slice(&self, from: Offset, upto: Offset) -> Option<Vec<Entry>> {
        let (from, upto) =
            (from.0.checked_sub(self.start)? as usize, upto.0.checked_sub(self.start)? as usize);
        Some(self.entries.get(from..upto)?.iter().map(|(entry, _)| entry.clone()).collect())
    }

    pub fn entry(&self, at: u64) -> Option<&Entry> {
        self.entries.get(at.checked_sub(self.start)? as usize).map(|(entry, _)| entry)
    }

    pub fn push(&mut self, entry: Entry) {
        assert_eq!(entry.offset.0, self.end(), "a write leaves a gap");
        assert!(entry.epoch >= self.epochs.newest(), "epochs fall along the log");
        self.push_unchecked(entry);
    }

    fn push_unchecked(&mut self, entry: Entry) {
        self.epochs.extend(entry.epoch, 1);
        let hash = chain(self.hash_at(self.end()).unwrap(), &entry);
        self.entries.push((entry, hash));
    }

    pub fn cut(&mut self, from: u64) {
        self.entries.truncate(from.saturating_sub(self.start) as usize);
        self.epochs.cut(Offset(from));
    }

    pub fn truncate(&mut self, before: u64) {
        self.base = self.hash_at(before).expect("truncated behind the end");
        self.entries.drain(..(before - self.start) as usize);
        self.start = before;
    }

    pub fn history(&self) -> History {
        self.epochs.clone()
    }
}

/// A change of the log on its way to the platter.
#[derive(Clone, Debug)]
pub enum Change {
    Write(Vec<Entry>),
    Cut(u64),
    Truncate(u64),
    Reset(History, u64),
}

/// One log on one disk.
#[derive(Clone, Debug, Default)]
pub struct Disk {
    /// As the running process sees it.
    pub seen: Content,
    /// As it is after a crash.
    pub durable: Content,
    pub unsynced: Vec<Change>,
    /// The planted bug: cuts are forgotten and writes go over what is there.
    pub skips_cuts: bool,
}

impl Disk {
    pub fn change(&mut self, change: Change) {
        apply(&mut self.seen, &change, self.skips_cuts);
        self.unsynced.push(change);
    }

    /// How many changes wait for a sync.
    pub fn waiting(&self) -> usize {
        self.unsynced.len()
    }

    /// Makes the oldest changes durable.
    pub fn sync(&mut self, changes: usize) {
        for change in self.unsynced.drain(..changes) {
            apply(&mut self.durable, &change, self.skips_cuts);
        }
    }

    /// The process is gone: of what was not synced, any number of the oldest changes may have made it.
    pub fn crash(&mut self, kept: usize) {
        self.sync(kept);
        self.unsynced.clear();
        self.seen = self.durable.clone();
    }
}

fn apply(content: &mut Content, change: &Change, skips_cuts: bool) {
    match change {
        Change::Write(entries) => {
            for entry in entries {
                if skips_cuts && entry.offset.0 < content.end() {
                    overwrite(content, entry);
                } else if skips_cuts {
                    content.push_unchecked(entry.clone());
                } else {
                    content.push(entry.clone());
                }
            }
        }
        Change::Cut(_) if skips_cuts => {}
        Change::Cut(from) => content.cut(*from),
        Change::Truncate(before) => content.truncate(*before),
        Change::Reset(history, base) => {
            let start = history.end().0;
            *content = Content { base: *base, start, epochs: history.clone(), entries: Vec::new() };
        }
    }
}

/// Puts an entry over another and leaves what is behind it: what a disk without cuts would do.
fn overwrite(content: &mut Content, entry: &Entry) {
    let behind = content.slice(Offset(entry.offset.0 + 1), Offset(content.end())).unwrap();
    content.cut(entry.offset.0);
    content.push_unchecked(entry.clone());
    behind.into_iter().for_each(|old| content.push_unchecked(old));
}
