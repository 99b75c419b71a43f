//! The simulated disk keeps exactly what was synced, and behaves like the real one.

use std::path::{Path, PathBuf};

use capstan_disk::{Disk, DiskExt as _, DiskFileExt as _, Os};
use capstan_testkit::disk::{CallKind, Cut, Fault, SECTOR, SimDisk};
use capstan_testkit::{TempDir, seed};

fn root() -> &'static Path {
    Path::new("/")
}

fn path(name: &str) -> PathBuf {
    root().join(name)
}

/// A disk with one durable file.
fn with_durable(content: &[u8]) -> SimDisk {
    let disk = SimDisk::new();
    disk.replace(root(), "a", content).unwrap();
    disk
}

#[test]
fn the_simulated_disk_answers_like_the_real_one() {
    let dir = TempDir::new("disk").unwrap();
    let sim = SimDisk::new();
    sim.create_dirs(dir.path()).unwrap();
    let disks: [&dyn Disk; 2] = [&Os, &sim];
    for disk in disks {
        let deep = dir.join("x/y");
        disk.create_dirs(&deep).unwrap();
        let file = disk.create(&deep.join("f")).unwrap();
        file.write_all_at(b"world", 6).unwrap();
        file.write_all_at(b"hello ", 0).unwrap();
        assert_eq!(disk.read(&deep.join("f")).unwrap(), b"hello world");
        file.set_size(5).unwrap();
        file.sync().unwrap();
        let mut some = [9; 8];
        assert_eq!((file.read_at(&mut some, 3).unwrap(), file.size().unwrap()), (2, 5));
        assert!(file.read_exact_at(&mut some, 0).is_err(), "only five bytes");
        disk.replace(&deep, "f", b"new").unwrap();
        assert_eq!(disk.read(&deep.join("f")).unwrap(), b"new");
        assert_eq!(disk.list(&deep).unwrap(), ["f"]);
        assert_eq!(disk.open(&deep.join("g")).unwrap_err().kind(), std::io::ErrorKind::NotFound);
        let held = disk.lock(&deep.join("lock")).unwrap().unwrap();
        assert!(disk.lock(&deep.join("lock")).unwrap().is_none());
        drop(held);
        assert!(disk.lock(&deep.join("lock")).unwrap().is_some());
        disk.remove(&deep.join("f")).unwrap();
        assert!(disk.remove(&deep.join("f")).is_err());
    }
}

#[test]
fn what_was_synced_survives_every_cut() {
    for how in Cut::ALL {
        let left = with_durable(b"synced").cut(how, &mut seed::rng(1));
        assert_eq!(left.read(&path("a")).unwrap(), b"synced", "{how:?}");
    }
}

#[test]
fn what_was_not_synced_is_lost_kept_or_torn_at_sectors() {
    let content = |how: Cut, n: u64| {
        let disk = with_durable(&[0; 4 * SECTOR]);
        let file = disk.open(&path("a")).unwrap();
        file.write_all_at(&[1; 4 * SECTOR], 0).unwrap();
        disk.cut(how, &mut seed::rng(n)).read(&path("a")).unwrap()
    };
    assert_eq!(content(Cut::Lose, 0), [0; 4 * SECTOR]);
    assert_eq!(content(Cut::Keep, 0), [1; 4 * SECTOR]);
    for how in [Cut::Torn, Cut::Shuffle] {
        let seen: Vec<Vec<u8>> = (0..50).map(|n| content(how, n)).collect();
        assert!(
            seen.iter()
                .flat_map(|bytes| bytes.chunks(SECTOR))
                .all(|sector| { sector.iter().all(|byte| *byte == sector[0]) })
        );
        assert!(seen.iter().any(|bytes| bytes[0] == 1 && bytes[3 * SECTOR] == 0), "{how:?} never tears");
        let reordered = seen.iter().any(|bytes| bytes[0] == 0 && bytes[3 * SECTOR] == 1);
        assert_eq!(reordered, how == Cut::Shuffle, "{how:?}");
    }
}

#[test]
fn names_go_back_unless_their_directory_was_synced() {
    let disk = with_durable(b"old");
    let draft = disk.create(&path("b")).unwrap();
    draft.write_all_at(b"new", 0).unwrap();
    draft.sync().unwrap();
    disk.rename(&path("b"), &path("a")).unwrap();
    assert_eq!(disk.read(&path("a")).unwrap(), b"new");
    disk.film();
    disk.sync_dir(root()).unwrap();
    let film = disk.developed();
    let mut rng = seed::rng(1);
    assert_eq!(film.call(0).kind, CallKind::SyncDir);
    assert_eq!(film.cut(0, Cut::Lose, &mut rng).read(&path("a")).unwrap(), b"old");
    assert_eq!(film.cut(1, Cut::Lose, &mut rng).read(&path("a")).unwrap(), b"new");
}

#[test]
fn a_failed_sync_forgets_what_it_should_have_kept() {
    let disk = with_durable(b"old");
    let file = disk.open(&path("a")).unwrap();
    file.write_all_at(b"new", 0).unwrap();
    disk.break_call(disk.calls(), Fault::Io);
    assert!(file.sync().is_err());
    disk.repair();
    file.sync().unwrap();
    assert_eq!(disk.read(&path("a")).unwrap(), b"new", "the page cache still has it");
    assert_eq!(disk.crash().read(&path("a")).unwrap(), b"new");
    let left = disk.cut(Cut::Keep, &mut seed::rng(1));
    assert_eq!(left.read(&path("a")).unwrap(), b"old");
    assert!(file.sync().is_err(), "the power is off");
}

#[test]
fn a_failed_directory_sync_undoes_its_names() {
    let disk = with_durable(b"old");
    disk.create(&path("b")).unwrap().sync().unwrap();
    disk.rename(&path("b"), &path("a")).unwrap();
    let open = disk.create(&path("c")).unwrap();
    disk.break_call(disk.calls(), Fault::Io);
    assert!(disk.sync_dir(root()).is_err());
    disk.repair();
    assert_eq!(disk.list(root()).unwrap(), ["a"]);
    assert_eq!(disk.read(&path("a")).unwrap(), b"old");
    open.write_all_at(b"x", 0).unwrap();
    disk.sync_dir(root()).unwrap();
    assert_eq!(disk.cut(Cut::Keep, &mut seed::rng(1)).list(root()).unwrap(), ["a"]);
}

#[test]
fn a_full_disk_writes_what_fits() {
    let disk = with_durable(b"1234");
    disk.set_capacity(Some(10));
    let file = disk.create(&path("b")).unwrap();
    assert_eq!(file.write_at(b"12345678", 0).unwrap(), 6);
    let full = file.write_all_at(b"78", 6).unwrap_err();
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    disk.remove(&path("a")).unwrap();
    file.write_all_at(b"78", 6).unwrap();
}

#[test]
fn a_lock_is_free_once_dropped_even_while_children_are_started() {
    let dir = TempDir::new("lock").unwrap();
    let held = std::thread::scope(|scope| {
        let children = scope.spawn(|| {
            for _ in 0..200 {
                std::process::Command::new("true").status().unwrap();
            }
        });
        let mut held = 0;
        while !children.is_finished() {
            held += usize::from(Os.lock(&dir.join("lock")).unwrap().is_none());
        }
        held
    });
    assert_eq!(held, 0, "a child that was just started held the lock of its parent");
}
