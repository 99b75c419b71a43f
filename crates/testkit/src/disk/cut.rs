//! What does a power cut leave? Everything durable, and of the rest whatever the disk happened to have written.

use std::path::Path;

use rand::RngExt;
use rand::rngs::StdRng;

use super::world::{Change, World};
use super::{Cut, SECTOR};

impl World {
    /// The disk after a power cut.
    pub(super) fn after_cut(&self, how: Cut, rng: &mut StdRng) -> World {
        let mut left = self.clone();
        let unsynced = std::mem::take(&mut left.unsynced);
        match how {
            Cut::Lose => {}
            Cut::Keep => unsynced.iter().for_each(|change| left.settle(change)),
            Cut::Torn => {
                let whole = rng.random_range(0..=unsynced.len());
                unsynced[..whole].iter().for_each(|change| left.settle(change));
                if let Some(torn) = unsynced.get(whole) {
                    let keep = rng.random_range(0..=sectors(torn));
                    left.settle_sectors(torn, |sector| sector < keep);
                }
            }
            Cut::Shuffle => {
                let odds = [0.1, 0.5, 0.9][rng.random_range(0..3)];
                for change in &unsynced {
                    left.settle_sectors(change, |_| rng.random_bool(odds));
                }
            }
        }
        left.forget_lost_dirs();
        left.names = left.durable_names.clone();
        left.dirs = left.durable_dirs.clone();
        left.durable_contents.retain(|inode, _| left.names.values().any(|named| named == inode));
        left.contents = left.durable_contents.clone();
        left.locks.clear();
        left
    }

    /// Makes some sectors of a write durable; any other change completely, if its first sector is kept.
    fn settle_sectors(&mut self, change: &Change, mut keeps: impl FnMut(usize) -> bool) {
        let Change::Write { inode, at, bytes } = change else {
            if keeps(0) {
                self.settle(change);
            }
            return;
        };
        let mut from = 0;
        for sector in 0..sectors(change) {
            // Sectors are aligned on the disk, not relative to the write.
            let end = (((at + from) / SECTOR + 1) * SECTOR - at).min(bytes.len());
            if keeps(sector) {
                let piece = Change::Write { inode: *inode, at: at + from, bytes: bytes[from..end].into() };
                self.settle(&piece);
            }
            from = end;
        }
    }

    /// Removes the content of directories whose own name was never durable.
    fn forget_lost_dirs(&mut self) {
        let dirs = self.durable_dirs.clone();
        let reachable =
            |path: &Path| path.ancestors().skip(1).all(|dir| dir.parent().is_none() || dirs.contains(dir));
        self.durable_names.retain(|path, _| reachable(path));
        self.durable_dirs.retain(|path| reachable(path));
    }
}

fn sectors(change: &Change) -> usize {
    match change {
        Change::Write { at, bytes, .. } if !bytes.is_empty() => {
            (at + bytes.len() - 1) / SECTOR - at / SECTOR + 1
        }
        Change::Write { .. } => 0,
        Change::SetSize { .. }
        | Change::Link { .. }
        | Change::Unlink { .. }
        | Change::Rename { .. }
        | Change::MakeDir { .. } => 1,
    }
}
