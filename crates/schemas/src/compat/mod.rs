//! Which changes of a schema break a reader? Pure; every refusal says where and why.

mod avro;
mod danube;
mod json;
mod protobuf;

use std::fmt;
use std::str::FromStr;

use crate::error::SchemaError;
use crate::format::{Definition, Parsed};

/// How a new version must relate to the versions before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Mode {
    /// Any new version is accepted.
    None,
    /// The new version reads what was written with the latest one.
    #[default]
    Backward,
    /// The new version reads what was written with any earlier one.
    BackwardTransitive,
    /// The latest version reads what is written with the new one.
    Forward,
    /// Every earlier version reads what is written with the new one.
    ForwardTransitive,
    /// Backward and forward.
    Full,
    /// Backward and forward, over all earlier versions.
    FullTransitive,
}

/// Every mode with its name on the wire and its name in the metadata.
const MODES: [(Mode, &str, &str); 7] = [
    (Mode::None, "none", "None"),
    (Mode::Backward, "backward", "Backward"),
    (Mode::BackwardTransitive, "backward_transitive", "BackwardTransitive"),
    (Mode::Forward, "forward", "Forward"),
    (Mode::ForwardTransitive, "forward_transitive", "ForwardTransitive"),
    (Mode::Full, "full", "Full"),
    (Mode::FullTransitive, "full_transitive", "FullTransitive"),
];

impl Mode {
    /// The name on the wire: `backward_transitive`.
    #[must_use]
    pub fn name(self) -> &'static str {
        self.names().0
    }

    /// The name in the metadata: `BackwardTransitive`.
    #[must_use]
    pub fn capitalised(self) -> &'static str {
        self.names().1
    }

    fn names(self) -> (&'static str, &'static str) {
        let found = MODES.iter().find(|(mode, ..)| *mode == self);
        found.map_or(("none", "None"), |(_, wire, stored)| (wire, stored))
    }

    /// Whether the new version must read earlier data.
    fn is_backward(self) -> bool {
        match self {
            Mode::Backward | Mode::BackwardTransitive | Mode::Full | Mode::FullTransitive => true,
            Mode::None | Mode::Forward | Mode::ForwardTransitive => false,
        }
    }

    /// Whether earlier versions must read new data.
    fn is_forward(self) -> bool {
        match self {
            Mode::Forward | Mode::ForwardTransitive | Mode::Full | Mode::FullTransitive => true,
            Mode::None | Mode::Backward | Mode::BackwardTransitive => false,
        }
    }

    /// Whether all earlier versions count, and not the latest alone.
    #[must_use]
    pub fn is_transitive(self) -> bool {
        match self {
            Mode::BackwardTransitive | Mode::ForwardTransitive | Mode::FullTransitive => true,
            Mode::None | Mode::Backward | Mode::Forward | Mode::Full => false,
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Mode {
    type Err = SchemaError;

    fn from_str(text: &str) -> Result<Mode, SchemaError> {
        let plain = text.to_ascii_lowercase().replace('_', "");
        let found = MODES.iter().find(|(_, _, stored)| stored.to_ascii_lowercase() == plain);
        found.map(|(mode, ..)| *mode).ok_or_else(|| SchemaError::UnknownMode(text.chars().take(64).collect()))
    }
}

/// Which changes of a JSON Schema count as breaking. All other formats have one set of rules.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Rules {
    /// What a reader cannot read.
    #[default]
    Readers,
    /// What the public Danube broker refuses: its clients expect the same answers on its wire.
    Danube,
}

/// A reason why a reader would fail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The place in the schema: `/items/price`; empty for the whole.
    pub path: String,
    /// What breaks there.
    pub reason: String,
}

impl Problem {
    pub(crate) fn new(path: &str, reason: impl Into<String>) -> Problem {
        Problem { path: path.to_owned(), reason: reason.into() }
    }
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let path = if self.path.is_empty() { "/" } else { &self.path };
        write!(f, "{path}: {}", self.reason)
    }
}

/// Why `new` must not follow the `earlier` versions (oldest first) in this mode. Empty: it may.
#[must_use]
pub fn problems(mode: Mode, new: &Definition, earlier: &[(u32, Definition)]) -> Vec<Problem> {
    problems_by(Rules::Readers, mode, new, earlier)
}

/// The same by other rules.
#[must_use]
pub fn problems_by(
    rules: Rules,
    mode: Mode,
    new: &Definition,
    earlier: &[(u32, Definition)],
) -> Vec<Problem> {
    let checked = if mode.is_transitive() { earlier } else { &earlier[earlier.len().saturating_sub(1)..] };
    let mut problems = Vec::new();
    for (version, old) in checked {
        if let (Rules::Danube, Parsed::Json(old), Parsed::Json(new)) = (rules, &old.parsed, &new.parsed) {
            if mode.is_backward() {
                problems.extend(danube::backward(old, new));
            }
            if mode.is_forward() {
                problems.extend(danube::forward(old, new));
            }
            continue;
        }
        if mode.is_backward() {
            let found = cannot_read(old, new).into_iter();
            problems.extend(found.map(|found| in_words(found, "the new version", "version", *version)));
        }
        if mode.is_forward() {
            let found = cannot_read(new, old).into_iter();
            problems.extend(found.map(|found| in_words(found, "version", "the new version", *version)));
        }
    }
    problems
}

fn in_words(found: Problem, reader: &str, writer: &str, version: u32) -> Problem {
    let name = |role: &str| if role == "version" { format!("version {version}") } else { role.to_owned() };
    let reason = format!("{} ({} reading data of {})", found.reason, name(reader), name(writer));
    Problem { path: found.path, reason }
}

/// Why a reader with one schema fails on data written with another.
fn cannot_read(writer: &Definition, reader: &Definition) -> Vec<Problem> {
    match (&writer.parsed, &reader.parsed) {
        (Parsed::Primitive(written), Parsed::Primitive(read)) if written == read => Vec::new(),
        (Parsed::Avro(writer), Parsed::Avro(reader)) => avro::cannot_read(writer, reader),
        (Parsed::Json(writer), Parsed::Json(reader)) => json::cannot_read(writer, reader),
        (Parsed::Protobuf(writer), Parsed::Protobuf(reader)) => protobuf::cannot_read(writer, reader),
        (
            Parsed::Primitive(_) | Parsed::Avro(_) | Parsed::Json(_) | Parsed::Protobuf(_),
            Parsed::Primitive(_) | Parsed::Avro(_) | Parsed::Json(_) | Parsed::Protobuf(_),
        ) => {
            let (from, to) = (writer.schema_type(), reader.schema_type());
            vec![Problem::new("", format!("the schema type is {to} where the data is {from}"))]
        }
    }
}
