//! Where does data go that a node must not hold any more? It is set aside: renamed, not removed, so that an
//! operator can recover it. The number and age of copies are bounded.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tracing::info;

/// Copies kept per node; the oldest is removed first.
const KEPT: usize = 2;
/// How long they are kept.
const KEPT_FOR: Duration = Duration::from_secs(7 * 24 * 3600);
/// The directory below a node's own.
const ASIDE: &str = "aside";

/// Renames `data` into the node's aside directory, under a name with its time and owner. Returns the path;
/// `None` if there was no data.
pub(super) fn set_aside(home: &Path, whose: &str) -> io::Result<Option<PathBuf>> {
    let data = home.join("data");
    if is_empty(&data)? {
        return Ok(None);
    }
    let place = place(home, whose)?;
    fs::rename(&data, &place)?;
    fs::create_dir(&data)?;
    sync(home)?;
    prune(home)?;
    info!(path = %place.display(), "set node data aside");
    Ok(Some(place))
}

/// The same for a running server: its files are hard-linked before it replaces them.
pub(super) fn link_aside(home: &Path, whose: &str) -> io::Result<Option<PathBuf>> {
    let data = home.join("data");
    if is_empty(&data)? {
        return Ok(None);
    }
    let place = place(home, whose)?;
    link_all(&data, &place)?;
    sync(home)?;
    prune(home)?;
    info!(path = %place.display(), "kept a copy of node data aside");
    Ok(Some(place))
}

/// Restores the newest data of this owner that was set aside as `data`. The present `data` is set aside.
pub(super) fn bring_back(home: &Path, whose: &str) -> io::Result<bool> {
    let suffix = format!("-{whose}");
    let newest = kept(home)?.into_iter().rev().find(|path| name(path).ends_with(&suffix));
    let Some(newest) = newest else { return Ok(false) };
    let taken = home.join("data.back");
    fs::rename(&newest, &taken)?;
    set_aside(home, "before-recovery")?;
    fs::remove_dir(home.join("data"))?;
    fs::rename(&taken, home.join("data"))?;
    sync(home)?;
    info!(path = %newest.display(), "restored data that was set aside");
    Ok(true)
}

fn name(path: &Path) -> String {
    path.file_name().unwrap_or_default().to_string_lossy().into_owned()
}

fn is_empty(dir: &Path) -> io::Result<bool> {
    match fs::read_dir(dir) {
        Ok(mut entries) => Ok(entries.next().is_none()),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
        Err(e) => Err(e),
    }
}

/// A new name that begins with the time, so that names sort by age.
fn place(home: &Path, whose: &str) -> io::Result<PathBuf> {
    fs::create_dir_all(home.join(ASIDE))?;
    let micros = capstan_meta::clock::since_epoch().as_micros();
    Ok(home.join(ASIDE).join(format!("{micros:018}-{whose}")))
}

fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    fs::create_dir(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let target = to.join(entry.file_name());
        if entry.file_type()?.is_dir() {
            link_all(&entry.path(), &target)?;
        } else {
            fs::hard_link(entry.path(), target)?;
        }
    }
    Ok(())
}

/// The kept copies, oldest first.
fn kept(home: &Path) -> io::Result<Vec<PathBuf>> {
    let entries = match fs::read_dir(home.join(ASIDE)) {
        Ok(entries) => entries,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(e) => return Err(e),
    };
    let mut paths = entries.map(|entry| entry.map(|entry| entry.path())).collect::<io::Result<Vec<_>>>()?;
    paths.sort();
    Ok(paths)
}

/// Removes copies beyond the limits of number and age.
pub(super) fn prune(home: &Path) -> io::Result<()> {
    let kept = kept(home)?;
    let surplus = kept.len().saturating_sub(KEPT);
    let now = capstan_meta::clock::since_epoch();
    for (at, path) in kept.iter().enumerate() {
        // By its name: renaming a directory does not change its modification time.
        let since = name(path).split('-').next().and_then(|micros| micros.parse().ok());
        let age = since.map(|since| now.saturating_sub(Duration::from_micros(since)));
        if at < surplus || age.is_some_and(|age| age > KEPT_FOR) {
            info!(path = %path.display(), "removed data that was set aside");
            fs::remove_dir_all(path)?;
        }
    }
    Ok(())
}

fn sync(dir: &Path) -> io::Result<()> {
    fs::File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_renamed_bounded_and_brought_back() {
        let dir = capstan_testkit::TempDir::new("aside").unwrap();
        let home = dir.path();
        let write = |text: &str| {
            fs::create_dir_all(home.join("data/sub")).unwrap();
            fs::write(home.join("data/sub/file"), text).unwrap();
        };
        let read = || fs::read_to_string(home.join("data/sub/file")).unwrap();
        assert_eq!(set_aside(home, "demo-1").unwrap(), None, "there was nothing");
        for at in 0..4 {
            write(&format!("{at}"));
            set_aside(home, "demo-1").unwrap().unwrap();
            assert!(is_empty(&home.join("data")).unwrap());
        }
        assert_eq!(kept(home).unwrap().len(), KEPT);
        fs::create_dir(home.join(ASIDE).join("000000000000000001-demo-1")).unwrap();
        prune(home).unwrap();
        assert!(!name(&kept(home).unwrap()[0]).starts_with("000000000000000001"), "what is too old goes");
        assert!(!bring_back(home, "demo-2").unwrap(), "of another life of the name");
        write("new");
        assert!(bring_back(home, "demo-1").unwrap());
        assert_eq!(read(), "3");
        link_aside(home, "demo-1").unwrap().unwrap();
        assert_eq!(read(), "3", "it stays where it is");
    }
}
