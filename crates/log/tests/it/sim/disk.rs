//! A simulated disk: written data is there until a crash, synced data survives it.

use std::hash::{DefaultHasher, Hash, Hasher};

use capstan_log::entry::{Entry, EntryKind, History, Offset};

/// The content of a log with a running hash, so that prefixes of any length are compared at once.
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

    /// Hash of everything before `end`, if it is here.
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
        self.epochs.prune(Offset(before));
    }

    pub fn history(&self) -> History {
        self.epochs.clone()
    }
}

/// A change of the log in flight to the disk.
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
    /// Changes made so far, and how many are durable: a sync makes durable what was there when it began.
    pub made: u64,
    pub synced: u64,
    /// Its durable end when it last lost something.
    pub lost: u64,
    /// The planted bug: cuts are ignored and writes overwrite existing entries.
    pub skips_cuts: bool,
}

impl Disk {
    pub fn change(&mut self, change: Change) {
        apply(&mut self.seen, &change, self.skips_cuts);
        self.unsynced.push(change);
        self.made += 1;
    }

    /// How many changes wait for a sync.
    pub fn waiting(&self) -> usize {
        self.unsynced.len()
    }

    /// Makes the oldest changes durable.
    pub fn sync(&mut self, changes: usize) {
        for change in self.unsynced.drain(..changes) {
            apply(&mut self.durable, &change, self.skips_cuts);
            self.synced += 1;
        }
    }

    /// Makes every change up to this one durable.
    pub fn sync_upto(&mut self, made: u64) {
        self.sync(made.saturating_sub(self.synced) as usize);
    }

    /// Loses everything from this offset on, durable or not: damage, or a disk that lied.
    pub fn lose(&mut self, from: u64) {
        self.crash(0);
        self.lost = self.lost.max(self.durable.end());
        self.durable.cut(from.max(self.durable.start()));
        self.seen = self.durable.clone();
    }

    /// The process crashes: any number of the oldest unsynced changes may have survived.
    pub fn crash(&mut self, kept: usize) {
        self.sync(kept);
        self.synced += self.unsynced.len() as u64;
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

/// Overwrites an entry and keeps what follows, as a disk without cuts would.
fn overwrite(content: &mut Content, entry: &Entry) {
    let behind = content.slice(Offset(entry.offset.0 + 1), Offset(content.end())).unwrap();
    content.cut(entry.offset.0);
    content.push_unchecked(entry.clone());
    behind.into_iter().for_each(|old| content.push_unchecked(old));
}
