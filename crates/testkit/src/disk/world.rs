//! The content of a simulated disk: what is durable, what is visible, and the changes between the two, in order.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Identifies a file's content, independent of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) struct Inode(u64);

/// A change that is not durable yet.
#[derive(Clone, Debug)]
pub(super) enum Change {
    Write { inode: Inode, at: usize, bytes: Arc<[u8]> },
    SetSize { inode: Inode, bytes: usize },
    Link { path: PathBuf, inode: Inode },
    Unlink { path: PathBuf },
    Rename { from: PathBuf, to: PathBuf, inode: Inode },
    MakeDir { path: PathBuf },
}

pub(super) type Contents = HashMap<Inode, Arc<Vec<u8>>>;

/// The whole state. Cheap to clone: contents are shared until they change.
#[derive(Clone, Debug, Default)]
pub(super) struct World {
    pub(super) names: BTreeMap<PathBuf, Inode>,
    pub(super) dirs: BTreeSet<PathBuf>,
    pub(super) contents: Contents,
    pub(super) durable_names: BTreeMap<PathBuf, Inode>,
    pub(super) durable_dirs: BTreeSet<PathBuf>,
    pub(super) durable_contents: Contents,
    /// In the order in which they were made.
    pub(super) unsynced: Vec<Change>,
    pub(super) locks: BTreeSet<PathBuf>,
    pub(super) capacity: Option<u64>,
    next_inode: u64,
}

impl Change {
    fn touches(&self, file: Inode) -> bool {
        match self {
            Change::Write { inode, .. } | Change::SetSize { inode, .. } => *inode == file,
            Change::Link { .. } | Change::Unlink { .. } | Change::Rename { .. } | Change::MakeDir { .. } => {
                false
            }
        }
    }

    /// Whether it is a name change in this directory, whose sync makes it durable.
    fn in_dir(&self, dir: &Path) -> bool {
        match self {
            Change::Write { .. } | Change::SetSize { .. } => false,
            Change::Link { path, .. } | Change::Unlink { path } | Change::MakeDir { path } => {
                path.parent() == Some(dir)
            }
            Change::Rename { to, .. } => to.parent() == Some(dir),
        }
    }
}

impl World {
    pub(super) fn used(&self) -> u64 {
        self.names.values().filter_map(|inode| self.contents.get(inode)).map(|c| c.len() as u64).sum()
    }

    pub(super) fn content(&self, inode: Inode) -> &[u8] {
        self.contents.get(&inode).map_or(&[], |content| content.as_slice())
    }

    pub(super) fn inode(&self, path: &Path) -> io::Result<Inode> {
        self.names.get(path).copied().ok_or_else(|| io::ErrorKind::NotFound.into())
    }

    fn is_dir(&self, dir: &Path) -> bool {
        dir.parent().is_none() || self.dirs.contains(dir)
    }

    /// Whether a power cut leaves this directory. The calls of a disk whose names are durable are the same as ever.
    pub(super) fn has_durable_name(&self, dir: &Path) -> bool {
        dir.parent().is_none() || self.durable_dirs.contains(dir)
    }

    pub(super) fn missing_dirs(&self, dir: &Path) -> Vec<PathBuf> {
        let mut missing: Vec<PathBuf> =
            dir.ancestors().take_while(|dir| !self.is_dir(dir)).map(Path::to_owned).collect();
        missing.reverse();
        missing
    }

    pub(super) fn make_dir(&mut self, dir: &Path) {
        self.dirs.insert(dir.to_owned());
        self.unsynced.push(Change::MakeDir { path: dir.to_owned() });
    }

    pub(super) fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        if !self.is_dir(dir) {
            return Err(io::ErrorKind::NotFound.into());
        }
        let all = self.names.keys().chain(&self.dirs);
        let mut names: Vec<String> = all
            .filter(|path| path.parent() == Some(dir))
            .filter_map(|path| Some(path.file_name()?.to_string_lossy().into_owned()))
            .collect();
        names.sort_unstable();
        Ok(names)
    }

    pub(super) fn create(&mut self, path: &Path) -> io::Result<Inode> {
        if !path.parent().is_some_and(|dir| self.is_dir(dir)) {
            return Err(io::ErrorKind::NotFound.into());
        }
        if let Ok(inode) = self.inode(path) {
            self.set_size(inode, 0)?;
            return Ok(inode);
        }
        self.next_inode += 1;
        let inode = Inode(self.next_inode);
        self.names.insert(path.to_owned(), inode);
        self.contents.insert(inode, Arc::default());
        self.unsynced.push(Change::Link { path: path.to_owned(), inode });
        Ok(inode)
    }

    pub(super) fn rename(&mut self, from: &Path, to: &Path) -> io::Result<()> {
        let inode = self.inode(from)?;
        self.names.remove(from);
        self.names.insert(to.to_owned(), inode);
        self.unsynced.push(Change::Rename { from: from.to_owned(), to: to.to_owned(), inode });
        Ok(())
    }

    pub(super) fn remove(&mut self, path: &Path) -> io::Result<()> {
        self.inode(path)?;
        self.names.remove(path);
        self.unsynced.push(Change::Unlink { path: path.to_owned() });
        Ok(())
    }

    pub(super) fn write(&mut self, inode: Inode, bytes: &[u8], at: u64) -> io::Result<usize> {
        let at = usize::try_from(at).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let size = self.content(inode).len();
        let growth = (at + bytes.len()).saturating_sub(size) as u64;
        let room = self.capacity.map_or(u64::MAX, |most| most.saturating_sub(self.used()));
        let bytes = if growth > room {
            // Writes what fits, as a file system does.
            let fits = bytes.len().saturating_sub(usize::try_from(growth - room).unwrap_or(usize::MAX));
            if fits == 0 {
                return Err(io::ErrorKind::StorageFull.into());
            }
            &bytes[..fits]
        } else {
            bytes
        };
        apply_write(&mut self.contents, inode, at, bytes);
        self.unsynced.push(Change::Write { inode, at, bytes: bytes.into() });
        Ok(bytes.len())
    }

    pub(super) fn set_size(&mut self, inode: Inode, bytes: u64) -> io::Result<()> {
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::FileTooLarge)?;
        let growth = bytes.saturating_sub(self.content(inode).len()) as u64;
        if self.capacity.is_some_and(|most| self.used() + growth > most) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        apply_size(&mut self.contents, inode, bytes);
        self.unsynced.push(Change::SetSize { inode, bytes });
        Ok(())
    }

    pub(super) fn sync(&mut self, inode: Inode) {
        let unsynced = std::mem::take(&mut self.unsynced);
        for change in unsynced {
            if change.touches(inode) { self.settle(&change) } else { self.unsynced.push(change) }
        }
        self.durable_contents.entry(inode).or_default();
    }

    /// After a failed sync: the data stays visible and never becomes durable.
    pub(super) fn forget_unsynced(&mut self, inode: Inode) {
        self.unsynced.retain(|change| !change.touches(inode));
    }

    pub(super) fn sync_dir(&mut self, dir: &Path) {
        let unsynced = std::mem::take(&mut self.unsynced);
        for change in unsynced {
            if change.in_dir(dir) { self.settle(&change) } else { self.unsynced.push(change) }
        }
    }

    /// After a failed directory sync: its names go back to the durable ones, as when the file system is mounted again.
    /// Open files stay open.
    pub(super) fn forget_unsynced_names(&mut self, dir: &Path) {
        self.unsynced.retain(|change| !change.in_dir(dir));
        let within = |path: &Path| path.parent() == Some(dir);
        self.names.retain(|path, _| !within(path));
        self.names
            .extend(self.durable_names.iter().filter(|(path, _)| within(path)).map(|(p, i)| (p.clone(), *i)));
        self.dirs.retain(|path| !within(path));
        self.dirs.extend(self.durable_dirs.iter().filter(|path| within(path)).cloned());
    }

    /// Makes one change durable.
    pub(super) fn settle(&mut self, change: &Change) {
        match change {
            Change::Write { inode, at, bytes } => apply_write(&mut self.durable_contents, *inode, *at, bytes),
            Change::SetSize { inode, bytes } => apply_size(&mut self.durable_contents, *inode, *bytes),
            Change::Link { path, inode } => {
                self.durable_names.insert(path.clone(), *inode);
            }
            Change::Unlink { path } => {
                self.durable_names.remove(path);
            }
            Change::Rename { from, to, inode } => {
                if self.durable_names.get(from) == Some(inode) {
                    self.durable_names.remove(from);
                }
                self.durable_names.insert(to.clone(), *inode);
            }
            Change::MakeDir { path } => {
                self.durable_dirs.insert(path.clone());
            }
        }
    }

    pub(super) fn flip(&mut self, path: &Path, bit: usize) -> bool {
        let Ok(inode) = self.inode(path) else { return false };
        let mut flipped = false;
        for contents in [&mut self.contents, &mut self.durable_contents] {
            if let Some(byte) =
                contents.get_mut(&inode).and_then(|content| Arc::make_mut(content).get_mut(bit / 8))
            {
                *byte ^= 1 << (bit % 8);
                flipped = true;
            }
        }
        flipped
    }

    pub(super) fn put(&mut self, path: &Path, content: &[u8]) {
        self.next_inode += 1;
        let inode = Inode(self.next_inode);
        for names in [&mut self.names, &mut self.durable_names] {
            names.insert(path.to_owned(), inode);
        }
        for contents in [&mut self.contents, &mut self.durable_contents] {
            contents.insert(inode, Arc::new(content.to_vec()));
        }
    }

    pub(super) fn lose(&mut self, path: &Path) {
        self.names.remove(path);
        self.durable_names.remove(path);
    }
}

pub(super) fn apply_write(contents: &mut Contents, inode: Inode, at: usize, bytes: &[u8]) {
    let content = Arc::make_mut(contents.entry(inode).or_default());
    if content.len() < at + bytes.len() {
        content.resize(at + bytes.len(), 0);
    }
    content[at..at + bytes.len()].copy_from_slice(bytes);
}

fn apply_size(contents: &mut Contents, inode: Inode, bytes: usize) {
    Arc::make_mut(contents.entry(inode).or_default()).resize(bytes, 0);
}
