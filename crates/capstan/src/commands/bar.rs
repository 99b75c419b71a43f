//! How far something long is: a bar on a terminal.

use std::io::{IsTerminal as _, Write as _};

/// Characters of a bar.
const BAR: u64 = 20;

/// How far something is, on a terminal; nothing elsewhere.
pub(crate) struct Bar {
    what: &'static str,
    shown: Option<u64>,
    terminal: bool,
}

impl Bar {
    pub(crate) fn new(what: &'static str) -> Bar {
        Bar { what, shown: None, terminal: std::io::stderr().is_terminal() }
    }

    pub(crate) fn show(&mut self, done: u64, all: u64) {
        let percent = (done * 100).checked_div(all).unwrap_or(100).min(100);
        if self.terminal && self.shown != Some(percent) {
            self.shown = Some(percent);
            let _ = write!(std::io::stderr().lock(), "\r{} {done} of {all} {}", bar_of(percent), self.what);
        }
    }

    pub(crate) fn end(self) {
        if self.shown.is_some() {
            let _ = writeln!(std::io::stderr().lock());
        }
    }
}

pub(crate) fn bar_of(percent: u64) -> String {
    let full = usize::try_from(percent * BAR / 100).unwrap_or(0);
    let rest = usize::try_from(BAR).unwrap_or(0).saturating_sub(full);
    format!("[{}{}] {percent:>3} %", "#".repeat(full), "-".repeat(rest))
}
