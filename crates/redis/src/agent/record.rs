//! What does a host remember of a node over restarts? The owner of its data, and its process.

use std::fs::{self, File};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use capstan_redis_proxy::nodes::Data;
use serde::{Deserialize, Serialize};

use super::Incarnation;
use super::aside;
use crate::keys::ClusterName;

/// A process that was started for the node.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ProcessMark {
    /// Its process id.
    pub pid: i32,
    /// When it started, in ticks since the machine did: a reused process id has another start.
    pub started: u64,
}

/// The record of one node, in its directory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The owner of the data in the directory and the process.
    pub owner: Option<(ClusterName, Incarnation)>,
    /// The process, if one was started and not stopped regularly.
    pub process: Option<ProcessMark>,
    /// The server's run id of the last process that was found sound.
    pub run_id: String,
    /// Whether it had keys when it was last observed.
    pub had_keys: bool,
    /// Whether a snapshot in the directory was made by a regular stop: then it is complete.
    pub saved: bool,
    /// How much of its shard's data it held when it was last observed.
    #[serde(default)]
    pub data: Data,
    /// Whether it has had no data of its owner in this directory: neither served nor been linked to a primary. True for
    /// a node that was just assigned, and for one whose disk was lost.
    #[serde(default)]
    pub fresh: bool,
    /// Whether it was a replica then: its primary may have accepted more while it was down.
    #[serde(default)]
    pub followed: bool,
    /// Whether the functions of its cluster were copied to it.
    #[serde(default)]
    pub functions: bool,
    /// The password that a new process starts with.
    pub lock: String,
    /// The password after that.
    pub password: Option<String>,
}

/// A node's directory: record, configuration, log, and `data`, which the server writes.
#[derive(Clone, Debug)]
pub(super) struct Home {
    dir: PathBuf,
}

impl Home {
    /// Creates the directory, readable by this user only: it contains a password.
    pub(super) fn open(dir: PathBuf) -> io::Result<Home> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(dir.join("data"))?;
        Ok(Home { dir })
    }

    pub(super) fn path(&self) -> &Path {
        &self.dir
    }

    pub(super) fn config(&self) -> PathBuf {
        self.dir.join("server.conf")
    }

    /// The record; a new directory has an empty one. An unreadable record is an error: guessing the owner of
    /// the data could serve it to another one.
    pub(super) fn load(&self) -> io::Result<Record> {
        match fs::read(self.dir.join("node.json")) {
            Ok(text) => Ok(serde_json::from_slice(&text)?),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(Record::default()),
            Err(e) => Err(e),
        }
    }

    /// Replaces the record, durably.
    pub(super) fn save(&self, record: &Record) -> io::Result<()> {
        let (path, draft) = (self.dir.join("node.json"), self.dir.join("node.json.new"));
        let mut file = File::options().create(true).write(true).truncate(true).mode(0o600).open(&draft)?;
        file.write_all(&serde_json::to_vec(record)?)?;
        file.sync_all()?;
        fs::rename(&draft, &path)?;
        File::open(&self.dir)?.sync_all()
    }

    pub(super) fn write_config(&self, text: &str) -> io::Result<()> {
        let file = File::options().create(true).write(true).truncate(true).mode(0o600).open(self.config());
        file?.write_all(text.as_bytes())
    }

    /// Sets everything that a server wrote aside.
    pub(super) fn set_aside(&self, whose: &str) -> io::Result<()> {
        aside::set_aside(&self.dir, whose).map(drop)
    }

    /// Keeps a copy of what a running server wrote and will replace.
    pub(super) fn link_aside(&self, whose: &str) -> io::Result<()> {
        aside::link_aside(&self.dir, whose).map(drop)
    }

    /// Restores what was set aside; false if there is nothing.
    pub(super) fn bring_back(&self, whose: &str) -> io::Result<bool> {
        aside::bring_back(&self.dir, whose)
    }

    /// Removes everything that a server wrote.
    pub(super) fn wipe(&self) -> io::Result<()> {
        fs::remove_dir_all(self.dir.join("data"))?;
        fs::create_dir(self.dir.join("data"))
    }

    /// Removes the snapshot of a regular stop once it is loaded: it would be outdated at the next start.
    pub(super) fn drop_snapshot(&self) -> io::Result<()> {
        match fs::remove_file(self.dir.join("data/dump.rdb")) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Bounds the server's log: one old part and the current one. The server reopens it for every line.
    pub(super) fn bound_log(&self, most: u64) -> io::Result<()> {
        let log = self.dir.join("server.log");
        match fs::metadata(&log) {
            Ok(found) if found.len() > most => fs::rename(&log, self.dir.join("server.log.1")),
            Ok(_) => Ok(()),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(e) => Err(e),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_survive_and_broken_ones_are_not_guessed() {
        let dir = capstan_testkit::TempDir::new("node").unwrap();
        let home = Home::open(dir.path().join("n1")).unwrap();
        assert_eq!(home.load().unwrap(), Record::default());
        let owner = Some(("demo".parse().unwrap(), Incarnation(7)));
        let record = Record { owner, had_keys: true, ..Record::default() };
        home.save(&record).unwrap();
        assert_eq!(home.load().unwrap(), record);
        fs::write(home.path().join("node.json"), "{").unwrap();
        assert!(home.load().is_err());
    }

    #[test]
    fn logs_are_bounded() {
        let dir = capstan_testkit::TempDir::new("node").unwrap();
        let home = Home::open(dir.path().to_owned()).unwrap();
        fs::write(home.path().join("server.log"), [b'x'; 100]).unwrap();
        home.bound_log(100).unwrap();
        assert!(home.path().join("server.log").exists());
        home.bound_log(99).unwrap();
        assert!(!home.path().join("server.log").exists() && home.path().join("server.log.1").exists());
    }
}
