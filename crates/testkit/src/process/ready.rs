//! When a child process counts as ready.

use std::fmt::{self, Display};
use std::path::PathBuf;

use super::Process;

/// A readiness condition of a child process.
#[derive(Debug, Clone)]
pub enum Ready {
    /// It listens on this loopback port, and the listener is its own.
    Port(u16),
    /// The current run has printed this text.
    LogLine(String),
    /// This file exists and is not empty.
    File(PathBuf),
}

impl Display for Ready {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Port(port) => write!(f, "listens on port {port}"),
            Self::LogLine(text) => write!(f, "prints {text:?}"),
            Self::File(path) => write!(f, "writes {}", path.display()),
        }
    }
}

impl Ready {
    /// One check; `Err` says what is missing.
    pub(super) async fn look(&self, process: &Process) -> Result<(), String> {
        match self {
            Self::Port(port) => match process.owns_port(*port) {
                Ok(true) => Ok(()),
                Ok(false) => Err(missing_listener(*port).await),
                Err(e) => Err(format!("{e:#}")),
            },
            Self::LogLine(text) => {
                process.log_text().contains(text.as_str()).then_some(()).ok_or("not printed yet".to_owned())
            }
            Self::File(path) => match std::fs::metadata(path) {
                Ok(file) if file.len() > 0 => Ok(()),
                Ok(_) => Err("the file is empty".to_owned()),
                Err(e) => Err(e.to_string()),
            },
        }
    }
}

/// Distinguishes no listener from another process's listener, which is hard to diagnose otherwise.
async fn missing_listener(port: u16) -> String {
    match tokio::net::TcpStream::connect(("127.0.0.1", port)).await {
        Ok(_) => format!("another process listens on port {port}"),
        Err(_) => format!("nothing listens on port {port}"),
    }
}
