//! How are results printed? Data to stdout as a table or as JSON, everything else to stderr.

use std::collections::BTreeMap;
use std::io::{self, IsTerminal as _, Write};

use anyhow::{Context as _, Result, bail};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// The width that every screen fits.
const COLUMNS: usize = 80;

/// The format of the data on stdout.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
}

/// The only place that writes to stdout.
pub(crate) struct Out {
    /// The requested format.
    pub(crate) format: Format,
    stdout: Box<dyn Write + Send>,
}

impl Out {
    /// Writes to the process's stdout.
    pub(crate) fn stdout(format: Format) -> Out {
        Out { format, stdout: Box::new(io::stdout()) }
    }

    /// A line of data.
    pub(crate) fn line(&mut self, text: impl AsRef<str>) -> Result<()> {
        self.bytes(text.as_ref().as_bytes())?;
        self.bytes(b"\n")
    }

    /// The writer, for callers that format themselves.
    pub(crate) fn writer(&mut self) -> &mut dyn Write {
        &mut self.stdout
    }

    /// Writes raw data.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stdout.write_all(bytes).context("cannot write to stdout")
    }

    /// Flushes the output: for commands that keep running.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stdout.flush().context("cannot write to stdout")
    }

    /// A JSON document, indented.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.line(text)
    }

    /// A collection: an object with the items under their plural name, so that it can get more fields.
    pub(crate) fn json_list(&mut self, name: &str, items: &impl Serialize) -> Result<()> {
        self.json(&BTreeMap::from([(name, items)]))
    }

    /// One JSON document on one line, for streams.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(text)?;
        self.flush()
    }

    /// A table without borders; the last column takes the remaining width.
    pub(crate) fn table<const N: usize>(&mut self, header: [&str; N], rows: Vec<[String; N]>) -> Result<()> {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
        table.set_header(header);
        table.add_rows(rows);
        for column in table.column_iter_mut() {
            column.set_padding((0, 2));
        }
        for line in table.lines() {
            self.line(line.trim_end())?;
        }
        Ok(())
    }
}

/// Prints a message for the user on stderr. A closed stderr is ignored.
pub(crate) fn say(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Writes over the last line of the terminal on stderr. What does not fit is left out: a wrapped line could not be
/// written over.
pub(crate) fn rewrite(text: &str) {
    let shown: String = text.chars().take(COLUMNS - 1).collect();
    let _ = write!(io::stderr().lock(), "\r\x1b[2K{shown}");
}

/// Asks for confirmation before data is destroyed: the name must be typed. Without a terminal `--yes` is required.
pub(crate) fn confirm(lost: &str, name: &str, yes: bool) -> Result<()> {
    if yes {
        return Ok(());
    }
    if !io::stdin().is_terminal() {
        bail!("{lost}\nNothing was changed. Add --yes to confirm.");
    }
    say(lost);
    let _ = write!(io::stderr().lock(), "Type {name} to continue: ");
    let mut typed = String::new();
    io::stdin().read_line(&mut typed).context("cannot read the answer")?;
    if typed.trim() != name {
        bail!("nothing was changed");
    }
    Ok(())
}

/// Whether the error only means that the reader of stdout has gone (`capstan ... | head`).
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
