//! How files are written so that a crash leaves the old or the new, and read so that a link leads nowhere else.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Component, Path, PathBuf};

use nix::fcntl::{OFlag, openat};
use nix::sys::stat::Mode;

/// Makes what was created, renamed or removed in a directory durable.
pub fn sync_dir(dir: &Path) -> io::Result<()> {
    File::open(dir)?.sync_all()
}

/// Makes a directory, its parents too, and makes them durable.
pub fn make_dir(dir: &Path) -> io::Result<()> {
    if dir.is_dir() {
        return Ok(());
    }
    std::fs::create_dir_all(dir)?;
    parent(dir).map_or(Ok(()), sync_dir)
}

/// Replaces a file as a whole, durably: a reader or a crash sees the old bytes or the new ones.
pub fn write_atomic(path: &Path, bytes: &[u8]) -> io::Result<()> {
    write_atomic_with_mode(path, bytes, 0o644)
}

/// [`write_atomic`] with the permissions of the new file.
pub fn write_atomic_with_mode(path: &Path, bytes: &[u8], mode: u32) -> io::Result<()> {
    let draft = draft_of(path);
    let written = (|| {
        let mut file = OpenOptions::new().write(true).create_new(true).mode(mode).open(&draft)?;
        file.write_all(bytes)?;
        file.sync_all()?;
        std::fs::rename(&draft, path)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&draft);
    }
    written?;
    parent(path).map_or(Ok(()), sync_dir)
}

/// Puts a file at another place without copying it where the file system allows that, replacing what is there.
pub fn link_or_copy(from: &Path, to: &Path) -> io::Result<()> {
    let draft = draft_of(to);
    match std::fs::hard_link(from, &draft) {
        Ok(()) => {}
        Err(e)
            if matches!(e.raw_os_error(), Some(nix::libc::EXDEV | nix::libc::EPERM | nix::libc::EMLINK)) =>
        {
            std::fs::copy(from, &draft)?;
            File::open(&draft)?.sync_all()?;
        }
        Err(e) => return Err(e),
    }
    let renamed = std::fs::rename(&draft, to);
    // Renaming one name of a file onto another name of it does nothing at all, and leaves the first.
    let _ = std::fs::remove_file(&draft);
    renamed?;
    parent(to).map_or(Ok(()), sync_dir)
}

/// Opens a regular file below a directory. No part of `relative` may be a link, so that nobody who writes into the
/// directory makes us read what lies outside.
pub fn open_beneath(dir: &Path, relative: &Path) -> io::Result<File> {
    let mut at = File::open(dir)?;
    let names: Vec<_> = relative.components().collect();
    for (depth, name) in names.iter().enumerate() {
        let Component::Normal(name) = name else { return Err(outside(relative)) };
        let last = depth + 1 == names.len();
        let kind = if last { OFlag::O_NONBLOCK } else { OFlag::O_DIRECTORY };
        let flags = OFlag::O_RDONLY | OFlag::O_NOFOLLOW | OFlag::O_CLOEXEC | kind;
        at = File::from(openat(&at, *name, flags, Mode::empty()).map_err(|e| match e {
            nix::errno::Errno::ELOOP | nix::errno::Errno::ENOTDIR => a_link(relative),
            e => e.into(),
        })?);
    }
    if at.metadata()?.is_file() { Ok(at) } else { Err(not_a_file(relative)) }
}

/// Reads at most `most` bytes; a longer file is an error of kind `FileTooLarge`.
pub fn read_bounded(file: File, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    file.take(most + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > most {
        return Err(io::Error::new(io::ErrorKind::FileTooLarge, format!("it is longer than {most} bytes")));
    }
    Ok(bytes)
}

fn outside(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} leads out of the directory", path.display()))
}

fn a_link(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is a link or leads through one", path.display()))
}

fn not_a_file(path: &Path) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("{} is not a regular file", path.display()))
}

/// A name beside the file that no two writers share.
fn draft_of(path: &Path) -> PathBuf {
    let name = path.file_name().unwrap_or_default().to_string_lossy();
    path.with_file_name(format!(".{name}.{:016x}.draft", rand::random::<u64>()))
}

/// The directory of a path; of a name alone it is the current one.
fn parent(path: &Path) -> Option<&Path> {
    path.parent().map(|dir| if dir.as_os_str().is_empty() { Path::new(".") } else { dir })
}
