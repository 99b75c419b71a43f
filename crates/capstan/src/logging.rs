//! How does the process log? One line per message, as text or JSON, to stderr or to a rotated file.

use std::fs::{File, OpenOptions};
use std::io::{self, IsTerminal as _, Write};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};

use anyhow::{Context as _, Result};
use tracing_subscriber::EnvFilter;
use tracing_subscriber::fmt::MakeWriter;
use tracing_subscriber::fmt::writer::BoxMakeWriter;

use crate::config::{Layers, Value};

/// Libraries whose lifecycle is not ours to report at the default level.
const QUIET: &str = "fjall=warn,lsm_tree=warn";

/// The format of log lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum LogFormat {
    Text,
    Json,
}

/// The destination of log lines.
#[derive(Clone, Debug)]
pub(crate) enum Sink {
    /// To stderr, for service managers and scripts.
    Stderr,
    /// To this file; see [`Rotated`].
    File(PathBuf),
}

/// Starts logging to stderr according to the settings.
pub(crate) fn begin(layers: &Layers) -> Result<()> {
    begin_to(layers, &Sink::Stderr)
}

/// Starts logging according to the settings.
pub(crate) fn begin_to(layers: &Layers, sink: &Sink) -> Result<()> {
    let text = |path: &str| match layers.settings.get(path).map(|setting| &setting.value) {
        Some(Value::Text(text)) => text.clone(),
        Some(_) | None => String::new(),
    };
    let level = text("log.level");
    let filter = if level == "info" { format!("info,{QUIET}") } else { level.clone() };
    let filter =
        EnvFilter::try_new(filter).with_context(|| format!("log.level: \"{level}\" is not a filter"))?;
    let wanted = std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let (writer, colour) = match sink {
        Sink::Stderr => (BoxMakeWriter::new(io::stderr), io::stderr().is_terminal() && wanted),
        Sink::File(path) => (BoxMakeWriter::new(Rotated::open(path)?), false),
    };
    let builder = tracing_subscriber::fmt().with_env_filter(filter).with_writer(writer).with_ansi(colour);
    let started = match text("log.format").as_str() {
        "json" => builder.json().flatten_event(true).try_init(),
        _ => builder.with_target(false).try_init(),
    };
    started.map_err(|error| anyhow::anyhow!("cannot start logging: {error}"))
}

/// The maximum bytes of one file.
const FILE_BYTES: u64 = 16 << 20;
/// Rotated files that are kept; `.1` is the newest.
const KEPT_FILES: u32 = 3;

/// A log file that is rotated when it is full. Clones share it.
#[derive(Clone, Debug)]
struct Rotated {
    inner: Arc<Mutex<Inner>>,
}

#[derive(Debug)]
struct Inner {
    path: PathBuf,
    file: File,
    bytes: u64,
}

impl Rotated {
    fn open(path: &Path) -> Result<Rotated> {
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).with_context(|| format!("cannot create {}", dir.display()))?;
        }
        let file = append(path).with_context(|| format!("cannot open {}", path.display()))?;
        let bytes = file.metadata()?.len();
        Ok(Rotated { inner: Arc::new(Mutex::new(Inner { path: path.to_owned(), file, bytes })) })
    }
}

fn append(path: &Path) -> io::Result<File> {
    OpenOptions::new().create(true).append(true).open(path)
}

impl Inner {
    fn rotate(&mut self) -> io::Result<()> {
        let aside = |number: u32| self.path.with_added_extension(number.to_string());
        for number in (1..KEPT_FILES).rev() {
            match std::fs::rename(aside(number), aside(number + 1)) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                Ok(()) | Err(_) => {}
            }
        }
        std::fs::rename(&self.path, aside(1))?;
        self.file = append(&self.path)?;
        self.bytes = 0;
        Ok(())
    }
}

impl Write for Rotated {
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        let mut inner = self.inner.lock().unwrap_or_else(PoisonError::into_inner);
        if inner.bytes >= FILE_BYTES {
            inner.rotate()?;
        }
        inner.file.write_all(line)?;
        inner.bytes += line.len() as u64;
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl<'w> MakeWriter<'w> for Rotated {
    type Writer = Rotated;

    fn make_writer(&'w self) -> Rotated {
        self.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_file_is_set_aside_and_only_a_few_are_kept() {
        let dir = capstan_testkit::TempDir::new("rotated").unwrap();
        let path = dir.join("log/capstan.log");
        let mut log = Rotated::open(&path).unwrap();
        for number in 0..6u8 {
            log.write_all(&[b'0' + number]).unwrap();
            log.inner.lock().unwrap().bytes = FILE_BYTES;
        }
        let text = |name: &str| std::fs::read_to_string(dir.join("log").join(name)).unwrap();
        let names = ["capstan.log", "capstan.log.1", "capstan.log.2", "capstan.log.3"];
        assert_eq!(names.map(text), ["5", "4", "3", "2"]);
        assert_eq!(std::fs::read_dir(dir.join("log")).unwrap().count(), 4);
    }
}
