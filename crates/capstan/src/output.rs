//! Where results go: data to stdout as a table or as JSON, everything else to stderr.

use std::io::{self, Write};

use anyhow::{Context as _, Result};
use clap::ValueEnum;
use comfy_table::{ContentArrangement, Table, presets};
use serde::Serialize;

/// Form of the data on stdout: for people or for programs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum)]
pub(crate) enum Format {
    #[default]
    Table,
    Json,
}

/// The one place that writes to stdout.
pub(crate) struct Out {
    /// What the user asked for.
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

    /// For whoever writes by itself.
    pub(crate) fn writer(&mut self) -> &mut dyn Write {
        &mut self.stdout
    }

    /// Data as it is.
    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.stdout.write_all(bytes).context("cannot write to stdout")
    }

    /// Makes what was written visible: for commands that go on afterwards.
    pub(crate) fn flush(&mut self) -> Result<()> {
        self.stdout.flush().context("cannot write to stdout")
    }

    /// A JSON document, indented.
    pub(crate) fn json(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string_pretty(value)?;
        self.line(text)
    }

    /// One JSON document on one line, for streams.
    pub(crate) fn json_line(&mut self, value: &impl Serialize) -> Result<()> {
        let text = serde_json::to_string(value)?;
        self.line(text)?;
        self.flush()
    }

    /// A table without lines; the last column takes what room is left.
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

/// Talk for people, on stderr. A closed stderr is nobody's problem.
pub(crate) fn say(text: impl AsRef<str>) {
    let _ = writeln!(io::stderr().lock(), "{}", text.as_ref());
}

/// Whether the error only says that the reader of our stdout has gone away (`capstan ... | head`).
pub(crate) fn is_broken_pipe(error: &anyhow::Error) -> bool {
    error
        .chain()
        .filter_map(|cause| cause.downcast_ref::<io::Error>())
        .any(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
}
