//! `CLIENT PAUSE`: which clients wait, and until when?

use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::command::Command;
use capstan_redis_protocol::resp::{Request, decimal};

use super::session::{Role, Session};
use super::worker::Worker;

/// Longest pause: what fits into an `Instant`. Redis has no other bound.
const LONGEST: Duration = Duration::from_secs(100 * 365 * 86_400);

/// Which commands wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Paused {
    /// Commands that may write.
    Writes,
    /// All.
    Everything,
}

/// A pause of the clients of one database.
#[derive(Clone, Debug)]
pub(super) struct Pause {
    database: ClusterName,
    until: Instant,
    what: Paused,
}

/// Parses `CLIENT PAUSE`; the error is an error line.
pub(super) fn asked(request: Request<'_>) -> Result<(Duration, Paused), &'static str> {
    let what = match request.argument(3).to_ascii_lowercase().as_slice() {
        _ if request.len() == 3 => Paused::Everything,
        b"write" => Paused::Writes,
        b"all" => Paused::Everything,
        _ => return Err("ERR CLIENT PAUSE mode must be WRITE or ALL"),
    };
    match decimal(request.argument(2)) {
        None => Err("ERR timeout is not an integer or out of range"),
        Some(time) => match u64::try_from(time) {
            Ok(time) => Ok((Duration::from_millis(time).min(LONGEST), what)),
            Err(_) => Err("ERR timeout is negative"),
        },
    }
}

/// Adds a pause: of two for the same database, the longer time and the stricter kind.
fn with(mut pauses: Vec<Pause>, new: Pause, now: Instant) -> Vec<Pause> {
    pauses.retain(|pause| pause.until > now);
    match pauses.iter_mut().find(|pause| pause.database == new.database) {
        Some(known) => {
            known.until = known.until.max(new.until);
            known.what = known.what.max(new.what);
        }
        None => pauses.push(new),
    }
    pauses
}

impl Worker {
    /// Pauses the clients of a session's database, on all workers.
    pub(super) fn pause(&mut self, session: &Session, time: Duration, what: Paused) {
        let Some(database) = self.database(session).map(|database| database.name().clone()) else { return };
        let now = self.now;
        let pause = Pause { database, until: now + time, what };
        self.change_pauses(|pauses| with(pauses, pause, now));
    }

    /// Ends the pause.
    pub(super) fn unpause(&mut self, session: &Session) {
        let Some(database) = self.database(session).map(|database| database.name().clone()) else { return };
        self.change_pauses(|mut pauses| {
            pauses.retain(|pause| pause.database != database);
            pauses
        });
    }

    fn change_pauses(&mut self, change: impl FnOnce(Vec<Pause>) -> Vec<Pause>) {
        let mut pauses = self.shared.pauses.lock().unwrap_or_else(PoisonError::into_inner);
        *pauses = change(std::mem::take(&mut *pauses));
        self.shared.is_paused.store(!pauses.is_empty(), Ordering::Release);
        self.pauses.clone_from(&pauses);
    }

    /// Applies pauses of other workers and drops expired ones; called once per turn.
    pub(super) fn look_at_pauses(&mut self) {
        if !self.shared.is_paused.load(Ordering::Acquire) {
            return self.pauses.clear();
        }
        let now = self.now;
        self.change_pauses(|mut pauses| {
            pauses.retain(|pause| pause.until > now);
            pauses
        });
    }

    /// Whether a command has to wait. Admin connections never do.
    pub(super) fn is_paused(&self, session: &Session, command: &'static Command) -> bool {
        let Some(database) = self.database(session) else { return false };
        let Some(pause) = self.pauses.iter().find(|pause| pause.database == *database.name()) else {
            return false;
        };
        let writes = || {
            command.writes()
                || matches!(command.name(), "publish" | "spublish" | "pfcount")
                || command.name() == "exec" && session.transaction.as_ref().is_some_and(|all| all.writes())
        };
        session.role != Role::Admin
            && command.name() != "nmctl"
            && match pause.what {
                Paused::Everything => true,
                Paused::Writes => writes(),
            }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_two_pauses_the_longer_and_the_stricter_counts() {
        let now = Instant::now();
        let pause = |name: &str, ms, what| Pause {
            database: ClusterName::new(name).unwrap(),
            until: now + Duration::from_millis(ms),
            what,
        };
        let pauses = with(
            vec![pause("a", 50, Paused::Everything), pause("old", 0, Paused::Writes)],
            pause("a", 90, Paused::Writes),
            now,
        );
        let [only] = &pauses[..] else { panic!("{pauses:?}") };
        assert_eq!((only.what, only.until), (Paused::Everything, now + Duration::from_millis(90)));
        assert_eq!(with(pauses, pause("b", 5, Paused::Writes), now).len(), 2);
    }
}
