//! A simulated disk that tells the truth about durability: what was not synced can be lost, torn or reordered.
//!
//! [`SimDisk`] implements [`capstan_disk::Disk`] in memory. Every changing call (create, write, set size, sync, rename,
//! remove, directory sync) has a number. Three ways to use it:
//!
//! - *Cut the power at every call of one life.* [`SimDisk::film`] keeps the state before each call; afterwards
//!   [`Film::cut`] gives the disk that a power cut at that call leaves, in one of the ways of [`Cut`]. Open the code
//!   under test on it and compare with what had been acknowledged by then ([`SimDisk::calls`] at the acknowledgement).
//! - *Cut the power now*: [`SimDisk::cut`]. The old disk answers every call with an error from then on.
//! - *Break a call*: [`SimDisk::break_call`] with an error, a short write or a panic; [`SimDisk::set_capacity`] fills
//!   the disk; [`SimDisk::flip`] changes a bit at rest.
//!
//! ```
//! use std::path::Path;
//! use capstan_disk::{Disk, DiskExt as _, DiskFileExt as _};
//! use capstan_testkit::disk::{Cut, SimDisk};
//! use capstan_testkit::seed;
//!
//! let disk = SimDisk::new();
//! let file = disk.create(Path::new("/data")).unwrap();
//! file.write_all_at(b"not synced", 0).unwrap();
//! disk.sync_dir(Path::new("/")).unwrap();
//! let after = disk.cut(Cut::Lose, &mut seed::rng(1));
//! assert_eq!(after.read(Path::new("/data")).unwrap(), b"");
//! assert!(file.write_all_at(b"x", 0).is_err(), "the power is off");
//! ```

mod cut;
mod world;

use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use capstan_disk::{Disk, DiskFile, Lock};
use rand::rngs::StdRng;

use world::{Inode, World};

/// What a disk writes atomically.
pub const SECTOR: usize = 512;

/// How a power cut treats unsynced data.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Cut {
    /// All of it is lost.
    Lose,
    /// All of it has reached the disk.
    Keep,
    /// It reached the disk in order up to some call; that call is torn at a sector.
    Torn,
    /// Any subset of sectors and name changes has reached the disk.
    Shuffle,
}

impl Cut {
    /// Every way.
    pub const ALL: [Cut; 4] = [Cut::Lose, Cut::Keep, Cut::Torn, Cut::Shuffle];
}

/// How one call fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The device fails. A failed sync drops what it should have made durable, as operating systems do: data stays
    /// visible and never becomes durable, names of a directory go back.
    Io,
    /// The disk is full.
    Full,
    /// A write writes only this many bytes.
    Short(usize),
    /// The caller panics.
    Panic,
}

/// The kind of a call.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CallKind {
    /// A file is created or truncated.
    Create,
    /// Bytes are written.
    Write,
    /// A file is cut or extended.
    SetSize,
    /// A file is synced.
    Sync,
    /// A file gets another name.
    Rename,
    /// A file is removed.
    Remove,
    /// A directory is created.
    CreateDir,
    /// A directory is synced.
    SyncDir,
}

/// One changing call.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Call {
    /// Its number, from zero.
    pub number: u64,
    /// What it does.
    pub kind: CallKind,
    /// To which path.
    pub path: PathBuf,
}

/// Decides which calls fail.
type Breaker = Box<dyn FnMut(&Call) -> Option<Fault> + Send>;

/// A disk in memory. Clones share it.
#[derive(Clone, Default)]
pub struct SimDisk {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Default)]
struct Inner {
    world: World,
    calls: u64,
    film: Option<Vec<(Call, World)>>,
    breaker: Option<Breaker>,
    off: bool,
}

impl std::fmt::Debug for SimDisk {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SimDisk").field("calls", &self.calls()).finish_non_exhaustive()
    }
}

impl SimDisk {
    /// An empty disk with a root directory.
    #[must_use]
    pub fn new() -> SimDisk {
        SimDisk::default()
    }

    fn from_world(world: World) -> SimDisk {
        SimDisk { inner: Arc::new(Mutex::new(Inner { world, ..Inner::default() })) }
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The number of changing calls so far.
    #[must_use]
    pub fn calls(&self) -> u64 {
        self.inner().calls
    }

    /// Keeps the state before every call from now on; [`SimDisk::developed`] returns it.
    pub fn film(&self) {
        let mut inner = self.inner();
        inner.film = Some(Vec::new());
    }

    /// The states since [`SimDisk::film`]; the last is the present one.
    #[must_use]
    pub fn developed(&self) -> Film {
        let mut inner = self.inner();
        let mut frames: Vec<_> = inner.film.take().unwrap_or_default();
        let end = Call { number: inner.calls, kind: CallKind::Sync, path: PathBuf::from("(end)") };
        frames.push((end, inner.world.clone()));
        Film { frames }
    }

    /// Cuts the power. This disk fails all calls from now on; the returned one has what is left.
    #[must_use]
    pub fn cut(&self, how: Cut, rng: &mut StdRng) -> SimDisk {
        let mut inner = self.inner();
        inner.off = true;
        SimDisk::from_world(inner.world.after_cut(how, rng))
    }

    /// A process crash without a power cut: all written data is there, open files and locks are gone.
    #[must_use]
    pub fn crash(&self) -> SimDisk {
        let mut inner = self.inner();
        inner.off = true;
        let mut world = inner.world.clone();
        world.locks.clear();
        SimDisk::from_world(world)
    }

    /// Calls `breaker` before every call to decide whether it fails.
    pub fn break_calls(&self, breaker: impl FnMut(&Call) -> Option<Fault> + Send + 'static) {
        self.inner().breaker = Some(Box::new(breaker));
    }

    /// Breaks the call of this number, counted from zero since the disk was new.
    pub fn break_call(&self, number: u64, fault: Fault) {
        self.break_calls(move |call| (call.number == number).then_some(fault));
    }

    /// Stops all failures.
    pub fn repair(&self) {
        self.inner().breaker = None;
    }

    /// The maximum bytes of all files together; `None` for no limit.
    pub fn set_capacity(&self, bytes: Option<u64>) {
        self.inner().world.capacity = bytes;
    }

    /// The bytes of all files together.
    #[must_use]
    pub fn used(&self) -> u64 {
        self.inner().world.used()
    }

    /// Every file and its present size.
    #[must_use]
    pub fn files(&self) -> Vec<(PathBuf, usize)> {
        let inner = self.inner();
        let size = |inode: &Inode| inner.world.contents.get(inode).map_or(0, |content| content.len());
        inner.world.names.iter().map(|(path, inode)| (path.clone(), size(inode))).collect()
    }

    /// Changes one bit of a file at rest; `false` if there is no such bit.
    #[must_use]
    pub fn flip(&self, path: &Path, bit: usize) -> bool {
        self.inner().world.flip(path, bit)
    }

    /// Replaces a file's content at rest, durably and without a call.
    pub fn put(&self, path: &Path, content: &[u8]) {
        self.inner().world.put(path, content);
    }

    /// Removes a file at rest, durably and without a call.
    pub fn lose(&self, path: &Path) {
        self.inner().world.lose(path);
    }

    /// A copy of the disk, without open files and locks.
    #[must_use]
    pub fn copy(&self) -> SimDisk {
        let mut world = self.inner().world.clone();
        world.locks.clear();
        SimDisk::from_world(world)
    }

    fn call<T>(
        &self,
        kind: CallKind,
        path: &Path,
        perform: impl FnOnce(&mut World, Option<Fault>) -> io::Result<T>,
    ) -> io::Result<T> {
        let mut inner = self.inner();
        if inner.off {
            return Err(power_off());
        }
        let call = Call { number: inner.calls, kind, path: path.to_owned() };
        let fault = inner.breaker.as_mut().and_then(|breaker| breaker(&call));
        let before = inner.film.is_some().then(|| inner.world.clone());
        if let (Some(film), Some(before)) = (inner.film.as_mut(), before) {
            film.push((call, before));
        }
        inner.calls += 1;
        match fault {
            Some(Fault::Panic) => {
                drop(inner);
                panic!("simulated panic in a disk call");
            }
            fault => perform(&mut inner.world, fault),
        }
    }

    fn look<T>(&self, look: impl FnOnce(&World) -> io::Result<T>) -> io::Result<T> {
        let inner = self.inner();
        if inner.off { Err(power_off()) } else { look(&inner.world) }
    }
}

fn power_off() -> io::Error {
    io::Error::other("the power is off")
}

/// The error of a fault.
fn error_of(fault: Fault) -> io::Error {
    match fault {
        Fault::Io | Fault::Panic => io::Error::other("simulated input/output error"),
        Fault::Full => io::ErrorKind::StorageFull.into(),
        Fault::Short(_) => io::ErrorKind::WriteZero.into(),
    }
}

fn failing(fault: Option<Fault>) -> io::Result<()> {
    match fault {
        Some(fault @ (Fault::Io | Fault::Full)) => Err(error_of(fault)),
        Some(Fault::Short(_) | Fault::Panic) | None => Ok(()),
    }
}

/// The states of a disk before each of its calls.
#[derive(Debug)]
pub struct Film {
    frames: Vec<(Call, World)>,
}

impl Film {
    /// The number of frames: one per call, and one for the end.
    #[must_use]
    pub fn len(&self) -> usize {
        self.frames.len()
    }

    /// Whether there are no frames.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.frames.is_empty()
    }

    /// The call before which the frame was taken.
    #[must_use]
    pub fn call(&self, frame: usize) -> &Call {
        &self.frames[frame].0
    }

    /// The disk after a crash of the process just before this call, without a power cut.
    #[must_use]
    pub fn crash(&self, frame: usize) -> SimDisk {
        let mut world = self.frames[frame].1.clone();
        world.locks.clear();
        SimDisk::from_world(world)
    }

    /// The disk after a power cut just before (and, for unsynced data, during) this call.
    #[must_use]
    pub fn cut(&self, frame: usize, how: Cut, rng: &mut StdRng) -> SimDisk {
        SimDisk::from_world(self.frames[frame].1.after_cut(how, rng))
    }
}

impl Disk for SimDisk {
    fn create(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.call(CallKind::Create, path, |world, fault| {
            failing(fault)?;
            world.create(path)
        })?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode, path: path.to_owned() }))
    }

    fn open(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        let inode = self.look(|world| world.inode(path))?;
        Ok(Arc::new(SimFile { disk: self.clone(), inode, path: path.to_owned() }))
    }

    fn open_through(&self, path: &Path) -> io::Result<Arc<dyn DiskFile>> {
        Ok(Arc::new(SimThrough(self.open(path)?)))
    }

    fn create_dirs(&self, dir: &Path) -> io::Result<()> {
        let missing = self.look(|world| Ok(world.missing_dirs(dir)))?;
        let deepest = missing.first().map_or(Some(dir), |made| made.parent());
        if let Some(deepest) = deepest.filter(|dir| !self.inner().world.has_durable_name(dir)) {
            self.sync_dir(deepest.parent().unwrap_or(Path::new("/")))?;
        }
        for made in missing {
            self.call(CallKind::CreateDir, &made, |world, fault| {
                failing(fault)?;
                world.make_dir(&made);
                Ok(())
            })?;
            self.sync_dir(made.parent().unwrap_or(Path::new("/")))?;
        }
        Ok(())
    }

    fn list(&self, dir: &Path) -> io::Result<Vec<String>> {
        self.look(|world| world.list(dir))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.call(CallKind::Rename, from, |world, fault| {
            failing(fault)?;
            world.rename(from, to)
        })
    }

    fn remove(&self, path: &Path) -> io::Result<()> {
        self.call(CallKind::Remove, path, |world, fault| {
            failing(fault)?;
            world.remove(path)
        })
    }

    fn sync_dir(&self, dir: &Path) -> io::Result<()> {
        self.call(CallKind::SyncDir, dir, |world, fault| {
            if let Err(error) = failing(fault) {
                world.forget_unsynced_names(dir);
                return Err(error);
            }
            world.sync_dir(dir);
            Ok(())
        })
    }

    fn lock(&self, path: &Path) -> io::Result<Option<Box<dyn Lock>>> {
        let missing = self.look(|world| Ok(world.inode(path).is_err()))?;
        if missing {
            self.create(path)?;
        }
        let mut inner = self.inner();
        if !inner.world.locks.insert(path.to_owned()) {
            return Ok(None);
        }
        Ok(Some(Box::new(SimLock { disk: self.clone(), path: path.to_owned() })))
    }
}

#[derive(Debug)]
struct SimLock {
    disk: SimDisk,
    path: PathBuf,
}

impl Lock for SimLock {}

impl Drop for SimLock {
    fn drop(&mut self) {
        self.disk.inner().world.locks.remove(&self.path);
    }
}

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    inode: Inode,
    path: PathBuf,
}

impl DiskFile for SimFile {
    fn size(&self) -> io::Result<u64> {
        self.disk.look(|world| Ok(world.content(self.inode).len() as u64))
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.disk.look(|world| {
            let content = world.content(self.inode);
            let from = usize::try_from(at).unwrap_or(usize::MAX).min(content.len());
            let some = &content[from..content.len().min(from.saturating_add(buffer.len()))];
            buffer[..some.len()].copy_from_slice(some);
            Ok(some.len())
        })
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        self.disk.call(CallKind::Write, &self.path, |world, fault| {
            failing(fault)?;
            let bytes = match fault {
                Some(Fault::Short(most)) => &bytes[..bytes.len().min(most)],
                _ => bytes,
            };
            world.write(self.inode, bytes, at)
        })
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.disk.call(CallKind::SetSize, &self.path, |world, fault| {
            failing(fault)?;
            world.set_size(self.inode, bytes)
        })
    }

    fn sync(&self) -> io::Result<()> {
        self.disk.call(CallKind::Sync, &self.path, |world, fault| {
            if let Err(error) = failing(fault) {
                world.forget_unsynced(self.inode);
                return Err(error);
            }
            world.sync(self.inode);
            Ok(())
        })
    }
}

/// Every write is a write and a sync: the power can be cut between the two, and either can fail.
#[derive(Debug)]
struct SimThrough(Arc<dyn DiskFile>);

impl DiskFile for SimThrough {
    fn size(&self) -> io::Result<u64> {
        self.0.size()
    }

    fn read_at(&self, buffer: &mut [u8], at: u64) -> io::Result<usize> {
        self.0.read_at(buffer, at)
    }

    fn write_at(&self, bytes: &[u8], at: u64) -> io::Result<usize> {
        let written = self.0.write_at(bytes, at)?;
        self.0.sync()?;
        Ok(written)
    }

    fn set_size(&self, bytes: u64) -> io::Result<()> {
        self.0.set_size(bytes)
    }

    fn sync(&self) -> io::Result<()> {
        self.0.sync()
    }
}
