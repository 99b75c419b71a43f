//! `CLIENT`: what does a client set and query about connections?

use capstan_redis_protocol::command::{Command, Objection, printed};
use capstan_redis_protocol::resp::{Request, decimal};

use super::client_list::{ClientAction, Filter, Kind, Roll, line};
use super::pause;
use super::session::{ReplyMode, Session};
use super::worker::{Taken, Worker};

impl Worker {
    pub(super) fn client(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        match command.name() {
            "client|id" => {
                let id = i64::try_from(session.id).unwrap_or(i64::MAX);
                session.answer(|writer| writer.integer(id));
            }
            "client|getname" => {
                let name = session.name.clone();
                session.answer(|writer| if name.is_empty() { writer.null() } else { writer.bulk(&name) });
            }
            "client|setname" => return self.set_name(session, request.argument(2)),
            "client|setinfo" => return self.set_info(session, request),
            "client|info" => {
                let text = line(session, self.local, self.now);
                session.answer(|writer| writer.verbatim(&text));
            }
            "client|reply" => return self.reply_wish(session, request.argument(2)),
            "client|no-evict" | "client|no-touch" => match request.argument(2).to_ascii_lowercase().as_slice() {
                b"on" | b"off" => session.ok(),
                _ => session.refuse("ERR syntax error"),
            },
            "client|getredir" => session.answer(|writer| writer.integer(-1)),
            "client|trackinginfo" => session.answer(|writer| {
                writer.map(3);
                writer.bulk("flags");
                writer.set(1);
                writer.bulk("off");
                writer.bulk("redirect");
                writer.integer(-1);
                writer.bulk("prefixes");
                writer.array(0);
            }),
            "client|caching" => session.refuse(
                "ERR CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode \
                 enabled",
            ),
            "client|list" => return self.list(session, request),
            "client|kill" => return self.kill(session, request),
            "client|unblock" => return self.unblock_client(session, request),
            "client|pause" if request.len() > 4 => {
                return self.object(session, Objection::wrong_form(request, "client").line());
            }
            "client|pause" => match pause::asked(request) {
                Ok((time, what)) => {
                    self.pause(session, time, what);
                    session.ok();
                }
                Err(error) => session.refuse(error),
            },
            "client|unpause" => {
                self.unpause(session);
                session.ok();
            }
            // `client|tracking`, the last of them.
            _ => match parse_tracking(request) {
                Ok(Tracking::Off) => session.ok(),
                // A node would have to track each client, but connections to nodes are shared.
                Ok(Tracking::On) => session.refuse(Objection::NoPermission("client|tracking").line()),
                Err(error) => session.refuse(error),
            },
        }
        Taken::Yes
    }

    fn set_name(&mut self, session: &mut Session, name: &[u8]) -> Taken {
        if !name.iter().all(u8::is_ascii_graphic) {
            let error = "ERR Client names cannot contain spaces, newlines or special characters.";
            return self.object(session, error);
        }
        session.name = String::from_utf8_lossy(name).into_owned();
        session.ok();
        Taken::Yes
    }

    /// `CLIENT SETINFO` was added in 7.2; libraries send it unconditionally.
    fn set_info(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        if request.is(2, "LIB-NAME") || request.is(2, "LIB-VER") {
            session.ok();
        } else {
            let option = String::from_utf8_lossy(request.argument(2)).into_owned();
            session.refuse(format!("ERR Unrecognized option '{option}'"));
        }
        Taken::Yes
    }

    fn reply_wish(&mut self, session: &mut Session, wish: &[u8]) -> Taken {
        match wish.to_ascii_lowercase().as_slice() {
            b"on" => {
                session.reply_mode = ReplyMode::On;
                session.ok();
            }
            b"off" => session.reply_mode = ReplyMode::Off,
            b"skip" if session.reply_mode == ReplyMode::On => session.reply_mode = ReplyMode::SkipNext,
            b"skip" => {}
            _ => session.refuse("ERR syntax error"),
        }
        Taken::Yes
    }

    fn list(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        match list_filter(request) {
            Ok(filter) => self.call_roll(session, filter, ClientAction::List),
            Err(error) => self.object(session, error),
        }
    }

    fn kill(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        match kill_filter(request, session.id) {
            Ok((filter, by_address)) => self.call_roll(session, filter, ClientAction::Kill { by_address }),
            Err(error) => self.object(session, error),
        }
    }

    fn unblock_client(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        if request.len() > 4 {
            return self.object(session, Objection::wrong_form(request, "client").line());
        }
        let how = match request.argument(3).to_ascii_uppercase().as_slice() {
            _ if request.len() == 3 => "TIMEOUT",
            b"TIMEOUT" => "TIMEOUT",
            b"ERROR" => "ERROR",
            _ => return self.object(session, "ERR CLIENT UNBLOCK reason should be TIMEOUT or ERROR"),
        };
        let Some(id) = decimal(request.argument(2)) else {
            return self.object(session, "ERR value is not an integer or out of range");
        };
        // No client has an id below one.
        let filter = Filter { ids: vec![u64::try_from(id).unwrap_or(0)], ..Filter::default() };
        self.call_roll(session, filter, ClientAction::Unblock(how.to_owned()))
    }

    /// Queries all workers. Only clients of the same database are visible, so that databases are isolated.
    fn call_roll(&mut self, session: &mut Session, mut filter: Filter, deed: ClientAction) -> Taken {
        filter.database = session.database_name().map(str::to_owned);
        filter.audience = session.audience();
        let sequence = session.replies.owe(session.wants_reply());
        Roll::call(&self.shared.mailboxes, (self.number, session.key, sequence), filter, deed);
        Taken::Yes
    }

    /// This worker's part of the reply.
    pub(super) fn answer_roll(&mut self, roll: &Roll) {
        let meant = |session: &&Session| roll.filter.admits(session, self.local);
        let meant: Vec<&Session> = self.sessions.iter().filter(meant).collect();
        let mut hits = 0;
        match &roll.deed {
            ClientAction::List => {
                let lines = meant.iter().map(|one| (one.id, line(one, self.local, self.now))).collect();
                return roll.answer(&self.shared.mailboxes, lines, 0);
            }
            ClientAction::Kill { .. } => {
                let keys: Vec<_> = meant.iter().map(|session| session.key).collect();
                hits = keys.len();
                keys.into_iter().for_each(|key| self.kill_session(key));
            }
            ClientAction::Unblock(how) => {
                let blocked: Vec<_> = meant
                    .iter()
                    .filter(|one| one.blocked.is_some())
                    .filter_map(|one| one.borrowed.first().copied())
                    .collect();
                for link in blocked {
                    hits += 1;
                    self.unblock(link, how);
                }
            }
        }
        roll.answer(&self.shared.mailboxes, Vec::new(), hits);
    }
}

fn number_of(word: &[u8]) -> Result<u64, Vec<u8>> {
    let id = decimal(word).ok_or_else(|| b"ERR Invalid client ID".to_vec())?;
    Ok(u64::try_from(id).unwrap_or(0))
}

/// The arguments of `CLIENT TRACKING`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Tracking {
    On,
    Off,
}

/// Parses `CLIENT TRACKING`, with the same errors as Redis.
fn parse_tracking(request: Request<'_>) -> Result<Tracking, &'static str> {
    let (mut broadcast, mut prefix, mut opt_in, mut opt_out) = (false, false, false, false);
    let mut at = 3;
    while at < request.len() {
        let more = at + 1 < request.len();
        match request.argument(at).to_ascii_lowercase().as_slice() {
            b"redirect" if more => {
                at += 1;
                decimal(request.argument(at)).ok_or("ERR value is not an integer or out of range")?;
            }
            b"prefix" if more => {
                at += 1;
                prefix = true;
            }
            b"bcast" => broadcast = true,
            b"optin" => opt_in = true,
            b"optout" => opt_out = true,
            b"noloop" => {}
            _ => return Err("ERR syntax error"),
        }
        at += 1;
    }
    match request.argument(2).to_ascii_lowercase().as_slice() {
        b"off" => Ok(Tracking::Off),
        b"on" if prefix && !broadcast => Err("ERR PREFIX option requires BCAST mode to be enabled"),
        b"on" if broadcast && (opt_in || opt_out) => {
            Err("ERR OPTIN and OPTOUT are not compatible with BCAST")
        }
        b"on" if opt_in && opt_out => Err("ERR You can't specify both OPTIN mode and OPTOUT mode"),
        b"on" => Ok(Tracking::On),
        _ => Err("ERR syntax error"),
    }
}

fn kind_of(word: &[u8]) -> Result<Kind, Vec<u8>> {
    match word.to_ascii_lowercase().as_slice() {
        b"normal" => Ok(Kind::Normal),
        b"pubsub" => Ok(Kind::PubSub),
        b"master" | b"replica" | b"slave" => Ok(Kind::Other),
        _ => Err([&b"ERR Unknown client type '"[..], printed(word), b"'"].concat()),
    }
}

fn list_filter(request: Request<'_>) -> Result<Filter, Vec<u8>> {
    let mut filter = Filter::default();
    if request.len() == 2 {
        return Ok(filter);
    }
    if request.is(2, "TYPE") && request.len() == 4 {
        filter.kind = Some(kind_of(request.argument(3))?);
    } else if request.is(2, "ID") && request.len() > 3 {
        filter.ids = request.from(3).map(number_of).collect::<Result<_, _>>()?;
    } else {
        return Err(b"ERR syntax error".to_vec());
    }
    Ok(filter)
}

/// The clients that `CLIENT KILL` selects, and whether the old form was used.
fn kill_filter(request: Request<'_>, own: u64) -> Result<(Filter, bool), Vec<u8>> {
    let text = |word: &[u8]| String::from_utf8_lossy(word).into_owned();
    if request.len() == 3 {
        return Ok((Filter { address: Some(text(request.argument(2))), ..Filter::default() }, true));
    }
    let mut filter = Filter { except: Some(own), ..Filter::default() };
    for at in (2..request.len()).step_by(2) {
        if at + 1 == request.len() {
            return Err(b"ERR syntax error".to_vec());
        }
        let value = request.argument(at + 1);
        match request.argument(at).to_ascii_uppercase().as_slice() {
            b"ID" => {
                let id = decimal(value).and_then(|id| u64::try_from(id).ok()).filter(|id| *id > 0);
                filter.ids.push(id.ok_or_else(|| b"ERR client-id should be greater than 0".to_vec())?);
            }
            b"ADDR" => filter.address = Some(text(value)),
            b"LADDR" => filter.local_address = Some(text(value)),
            b"USER" => filter.user = Some(text(value)),
            b"TYPE" => filter.kind = Some(kind_of(value)?),
            b"SKIPME" if value.eq_ignore_ascii_case(b"yes") => filter.except = Some(own),
            b"SKIPME" if value.eq_ignore_ascii_case(b"no") => filter.except = None,
            _ => return Err(b"ERR syntax error".to_vec()),
        }
    }
    Ok((filter, false))
}
