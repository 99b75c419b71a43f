//! What a step is: whom it waits for, what it does on a host, and when the host counts as healthy again.

use std::fmt;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::name::{ArtifactName, StepName};

/// A day: longer than any installation, short enough that a forgotten update ends.
pub(super) const MAX_SECONDS: u32 = 86_400;
/// More actions than this belong into another step.
pub(super) const MAX_ACTIONS: usize = 32;
const MAX_WORDS: usize = 64;
const MAX_WORD_BYTES: usize = 4096;

/// One step of a release.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Step {
    /// For people and journals.
    pub name: StepName,
    /// Whom it waits for.
    pub kind: StepKind,
    /// What it does, in order. A step without actions is only a meeting point.
    #[serde(default)]
    pub actions: Vec<Action>,
    /// How long all actions of the step may take together on one host.
    pub timeout_seconds: u32,
    /// When the host counts as healthy again; without one it does so when the actions are done.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub health: Option<HealthGate>,
}

impl Step {
    /// How long all actions of the step may take together on one host.
    #[must_use]
    pub fn timeout(&self) -> Duration {
        Duration::from_secs(self.timeout_seconds.into())
    }
}

/// Whom a step waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// No host starts it before every listed host announced it.
    Barrier,
    /// Host by host, each drained and healthy again before its slot goes to the next.
    Rolling,
    /// One host does it for the whole fleet.
    Once,
    /// The worker replaces itself, before anything else.
    #[serde(rename = "self")]
    SelfUpdate,
}

impl fmt::Display for StepKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            StepKind::Barrier => "barrier",
            StepKind::Rolling => "rolling",
            StepKind::Once => "once",
            StepKind::SelfUpdate => "self",
        })
    }
}

/// One thing that a step does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Action {
    /// Installs Debian packages, all in one run of dpkg.
    Packages(Vec<ArtifactName>),
    /// Installs container images into the host's OCI layout.
    Images(Vec<ArtifactName>),
    /// Runs a command; restarting a service is one.
    Command {
        /// The program and its arguments; no shell is involved.
        argv: Argv,
        /// What to do about it when the worker crashed while it ran.
        #[serde(default)]
        after_crash: AfterCrash,
    },
}

impl Action {
    /// Where a stop may interrupt it.
    #[must_use]
    pub fn safe_point(&self) -> SafePoint {
        match self {
            Action::Packages(_) => SafePoint::Finished,
            Action::Images(_) | Action::Command { .. } => SafePoint::AtOnce,
        }
    }
}

/// Where a stop may interrupt an action.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SafePoint {
    /// Anywhere: its processes are ended.
    AtOnce,
    /// Only when it is finished or repaired: half a package is worse than either version.
    Finished,
}

/// What to do about a command that ran when the worker crashed: how far it came is unknown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AfterCrash {
    /// Run it again: doing it twice does no harm, as with the restart of a service.
    Rerun,
    /// Fail the step and let a person look. The default: only the author of a command knows better.
    #[default]
    Report,
}

/// A program and its arguments.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "Vec<String>", into = "Vec<String>")]
pub struct Argv(Vec<String>);

/// Why a list of words is no command.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ArgvError {
    /// There is no program.
    #[error("a command needs a program")]
    Empty,
    /// More words than any command needs.
    #[error("a command of {0} words is too long: at most {MAX_WORDS}")]
    TooMany(usize),
    /// A word that no program can be given.
    #[error("word {0} of the command is empty, longer than {MAX_WORD_BYTES} bytes or holds a zero byte")]
    Word(usize),
}

impl Argv {
    /// A command of these words.
    pub fn new(words: Vec<String>) -> Result<Argv, ArgvError> {
        if words.is_empty() {
            return Err(ArgvError::Empty);
        }
        if words.len() > MAX_WORDS {
            return Err(ArgvError::TooMany(words.len()));
        }
        let wrong = |(at, word): (usize, &String)| {
            word.len() > MAX_WORD_BYTES || word.contains('\0') || (at == 0 && word.is_empty())
        };
        match words.iter().enumerate().position(wrong) {
            Some(at) => Err(ArgvError::Word(at + 1)),
            None => Ok(Argv(words)),
        }
    }

    /// The program.
    #[must_use]
    pub fn program(&self) -> &str {
        &self.0[0]
    }

    /// Its arguments.
    #[must_use]
    pub fn arguments(&self) -> &[String] {
        &self.0[1..]
    }
}

impl TryFrom<Vec<String>> for Argv {
    type Error = ArgvError;

    fn try_from(words: Vec<String>) -> Result<Self, ArgvError> {
        Argv::new(words)
    }
}

impl From<Argv> for Vec<String> {
    fn from(argv: Argv) -> Vec<String> {
        argv.0
    }
}

impl fmt::Display for Argv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join(" "))
    }
}

/// When a host counts as healthy after a step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct HealthGate {
    /// How health is seen.
    pub probe: Probe,
    /// How long it has to be seen without a break.
    pub min_healthy_seconds: u32,
    /// After this long without it the step has failed.
    pub deadline_seconds: u32,
}

impl HealthGate {
    /// How long health has to be seen without a break.
    #[must_use]
    pub fn min_healthy(&self) -> Duration {
        Duration::from_secs(self.min_healthy_seconds.into())
    }

    /// After this long without health the step has failed.
    #[must_use]
    pub fn deadline(&self) -> Duration {
        Duration::from_secs(self.deadline_seconds.into())
    }
}

/// How health is seen.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub enum Probe {
    /// A command that exits with 0.
    Command {
        /// The program and its arguments.
        argv: Argv,
    },
    /// A page that answers with a status from 200 to 299.
    Http {
        /// Its address, `http://` or `https://`.
        url: String,
    },
    /// The services on the host say so in the metadata. The runner cannot see that: the worker waits for it.
    Services,
}
