//! `MONITOR`: which clients monitor a database, and what do they receive?
//!
//! Without monitors, a command costs one check of a flag of its worker.

use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::command::Command;
use capstan_redis_protocol::resp::Request;

use super::mailbox::Letter;
use super::session::Session;
use super::worker::Worker;

/// Lines that a monitoring client has not received yet, because a reply was partly sent.
#[derive(Debug, Default)]
pub(super) struct Monitor {
    pub(super) deferred: Vec<u8>,
}

impl Worker {
    /// Adds the session to the monitors of its database.
    pub(super) fn monitor(&mut self, session: &mut Session) {
        if session.monitor.is_none() {
            session.monitor = Some(Box::default());
            self.shared.monitors.fetch_add(1, Ordering::AcqRel);
            self.is_monitored = true;
        }
        session.ok();
    }

    /// Removes the session from the monitors.
    pub(super) fn end_monitor(&mut self, session: &mut Session) {
        if session.monitor.take().is_some() {
            self.shared.monitors.fetch_sub(1, Ordering::AcqRel);
        }
    }

    /// Sends a command to the monitors on all workers.
    pub(super) fn send_to_monitors(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) {
        if command.is_administrative() {
            return;
        }
        let Some(database) = self.database(session).map(|database| database.name().clone()) else { return };
        let now = capstan_meta::clock::since_epoch();
        let who = format!("+{}.{:06} [0 {}]", now.as_secs(), now.subsec_micros(), session.peer);
        let line: Arc<[u8]> = line(who, command, request).into_bytes().into();
        // The current session is out of the arena.
        if session.monitor.is_some() {
            show(session, &line);
        }
        self.show_to_monitors(&database, &line);
        for (number, mailbox) in self.shared.mailboxes.iter().enumerate() {
            if number != self.number {
                mailbox.post(Letter::Monitor { database: database.clone(), line: Arc::clone(&line) });
            }
        }
    }

    /// Sends a line to the monitors of this worker.
    pub(super) fn show_to_monitors(&mut self, database: &ClusterName, line: &[u8]) {
        let watches = |session: &&Session| {
            session.monitor.is_some() && self.database(session).is_some_and(|own| own.name() == database)
        };
        let keys: Vec<_> = self.sessions.iter().filter(watches).map(|session| session.key).collect();
        for key in keys {
            if let Some(session) = self.sessions.get_mut(key) {
                show(session, line);
                self.mark_session(key);
            }
        }
    }
}

fn show(session: &mut Session, line: &[u8]) {
    match &mut session.monitor {
        Some(monitor) if session.streaming => monitor.deferred.extend_from_slice(line),
        Some(_) | None => session.out.push(line),
    }
}

/// A command as `MONITOR` shows it; passwords are left out.
fn line(mut line: String, command: &'static Command, request: Request<'_>) -> String {
    let mut secrets = if command.name() == "auth" { request.len() } else { 0 };
    for (index, word) in request.from(0).enumerate() {
        if index > 0 && secrets > 0 {
            secrets -= 1;
            line.push_str(" \"(redacted)\"");
            continue;
        }
        if command.name() == "hello" && word.eq_ignore_ascii_case(b"AUTH") {
            secrets = 2;
        }
        line.push_str(" \"");
        quote(&mut line, word);
        line.push('"');
    }
    line.push_str("\r\n");
    line
}

/// Quotes bytes as Redis does: nonprintable ones as escapes.
fn quote(line: &mut String, word: &[u8]) {
    for byte in word {
        match byte {
            b'\\' | b'"' => line.extend(['\\', char::from(*byte)]),
            b'\n' => line.push_str("\\n"),
            b'\r' => line.push_str("\\r"),
            b'\t' => line.push_str("\\t"),
            0x07 => line.push_str("\\a"),
            0x08 => line.push_str("\\b"),
            b' '..=b'~' => line.push(char::from(*byte)),
            // Writing into a string cannot fail.
            other => drop(write!(line, "\\x{other:02x}")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use capstan_redis_protocol::command::find;
    use capstan_redis_protocol::resp::{Limits, RequestParser, Trust, write_request};

    fn shown(words: &[&[u8]]) -> String {
        let mut bytes = Vec::new();
        write_request(&mut bytes, words);
        let mut parser = RequestParser::new(Limits::default());
        parser.parse(&bytes, Trust::Authenticated).unwrap();
        let request = Request::new(&bytes, parser.arguments());
        line("+1".to_owned(), find(request).unwrap(), request)
    }

    #[test]
    fn words_are_quoted_and_passwords_left_out() {
        assert_eq!(
            shown(&[b"SET", b"k", b"a \"\\\n\x01\xff"]),
            "+1 \"SET\" \"k\" \"a \\\"\\\\\\n\\x01\\xff\"\r\n"
        );
        assert_eq!(shown(&[b"AUTH", b"u", b"p"]), "+1 \"AUTH\" \"(redacted)\" \"(redacted)\"\r\n");
        assert_eq!(
            shown(&[b"HELLO", b"3", b"AUTH", b"u", b"p", b"SETNAME", b"n"]),
            "+1 \"HELLO\" \"3\" \"AUTH\" \"(redacted)\" \"(redacted)\" \"SETNAME\" \"n\"\r\n"
        );
    }
}
