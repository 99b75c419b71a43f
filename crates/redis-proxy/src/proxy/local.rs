//! Which commands does the proxy answer itself? The state of a session here; the rest in `answers`.

use crate::answers::{self, Answer, Context, Hello};
use capstan_redis_protocol::command::Command;
use capstan_redis_protocol::nmctl::PasswordHash;
use capstan_redis_protocol::resp::{Protocol, Request, Writer};

use super::dispatch::unless_drained;
use super::merge::{Merge, merge};
use super::session::{Audience, ReplyMode, Role, Session};
use super::worker::{Taken, Worker};

/// The user with access to `NMCTL`.
const ADMIN: &[u8] = b"admin";

impl Worker {
    pub(super) fn local(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        match command.name() {
            "ping" if request.len() == 1 && session.subscriptions.is_none() => {
                session.answer(|writer| writer.simple("PONG"));
            }
            "auth" => return self.auth(session, request),
            "hello" => return self.hello(session, request),
            "quit" => {
                session.ok();
                return Taken::Last;
            }
            "reset" => return self.reset(session),
            "readonly" => {
                session.content_with_replicas = true;
                session.ok();
            }
            "readwrite" => {
                session.content_with_replicas = false;
                session.ok();
            }
            // Slots are handed over as a whole, so `ASKING` has no effect.
            "asking" | "config|resetstat" => session.ok(),
            "monitor" => self.monitor(session),
            "info" if answers::info_asks_nodes(request) => return self.info(session, request),
            "config|get" => return self.settings(session, request),
            name if name.starts_with("client|") => return self.client(session, command, request),
            _ => return self.answer_locally(session, command, request),
        }
        Taken::Yes
    }

    fn answer_locally(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        let mut reply = Vec::new();
        let answer = self.with_context(session, |context| {
            answers::answer(command, request, context, &mut Writer::new(&mut reply, session.protocol))
        });
        match answer {
            Answer::Written => session.answer(|writer| writer.raw(&reply)),
            Answer::Session => {
                let name = command.name();
                return self.object(session, format!("ERR '{name}' is not served by this proxy"));
            }
            Answer::CountKeysInSlot(slot) => return self.scan_slot(session, slot, None),
            Answer::KeysInSlot(slot, most) => return self.scan_slot(session, slot, Some(most)),
        }
        Taken::Yes
    }

    fn with_context<T>(&self, session: &Session, answer: impl FnOnce(&Context<'_>) -> T) -> T {
        let facts = self.facts();
        answer(&Context {
            facts: &facts,
            database: self.database(session).map(|database| &**database),
            user: session.user_name(),
            subscribed: session.subscriptions.is_some(),
        })
    }

    /// `INFO`: the proxy's own facts, merged with those of its nodes if the session can wait for them.
    fn info(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let own = self.with_context(session, |context| answers::info_text(request, context));
        let nodes = self.everywhere(session, false);
        if nodes.is_empty() || session.executing {
            session.answer(|writer| writer.verbatim(&own));
        } else {
            self.ask_all(session, &nodes, b"*1\r\n$4\r\nINFO\r\n", Merge::Info(own), Vec::new());
        }
        Taken::Yes
    }

    /// `CONFIG GET`: a node's settings, as far as they concern its data, with the proxy's own.
    fn settings(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let own = self.with_context(session, |context| answers::own_settings(request, context));
        let node = self.everywhere(session, false).into_iter().next().filter(|_| !session.executing);
        let asked = node.as_slice();
        if asked.is_empty() {
            let reply = merge(&Merge::Settings(own), &[], session.protocol);
            session.answer(|writer| writer.raw(&reply));
        } else {
            self.ask_all(session, asked, request.bytes(), Merge::Settings(own), Vec::new());
        }
        Taken::Yes
    }

    /// `AUTH [user] password`
    fn auth(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let (user, password) = match request.len() {
            2 => (None, request.argument(1)),
            3 => (Some(request.argument(1)), request.argument(2)),
            _ => return self.object(session, "ERR syntax error"),
        };
        match self.log_in(session, user, password) {
            Ok(()) => session.ok(),
            Err(error) => session.refuse(&error),
        }
        Taken::Yes
    }

    fn log_in(&mut self, session: &mut Session, user: Option<&[u8]>, password: &[u8]) -> Result<(), String> {
        let role = match (&self.shared.admin, user) {
            (Some(admin), Some(ADMIN)) => {
                if !admin.same_as(&PasswordHash::of(password)) {
                    return Err("WRONGPASS invalid username-password pair or user is disabled.".to_owned());
                }
                Role::Admin
            }
            (_, user) => {
                let login = self.routing.log_in(user, password).map_err(|refused| refused.to_string())?;
                Role::Client(Some(login))
            }
        };
        session.role = role;
        session.standing_as_of = 0;
        session.standing = self.standing(&session.role);
        Ok(())
    }

    /// `HELLO [protocol [AUTH user password] [SETNAME name]]`
    fn hello(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        // Another protocol uses another connection to the node: nothing may be in flight.
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let hello = match Hello::parse(request) {
            Ok(hello) => hello,
            Err(refused) => return self.object(session, refused.line()),
        };
        if let Some((user, password)) = hello.auth
            && let Err(error) = self.log_in(session, Some(user), password)
        {
            return self.object(session, &error);
        }
        if session.trust() == capstan_redis_protocol::resp::Trust::Unauthenticated {
            return self.object(
                session,
                "NOAUTH HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH \
                 <user> <pass> option can be used to authenticate the client and select the RESP protocol version at \
                 the same time",
            );
        }
        if let Some(name) = hello.name {
            session.name = String::from_utf8_lossy(name).into_owned();
        }
        session.protocol = hello.protocol.unwrap_or(session.protocol);
        let mut reply = Vec::new();
        let id = i64::try_from(session.id).unwrap_or(i64::MAX);
        self.with_context(session, |context| {
            answers::write_hello(context, id, &mut Writer::new(&mut reply, session.protocol));
        });
        session.answer(|writer| writer.raw(&reply));
        Taken::Yes
    }

    /// `RESET`: as a new connection.
    fn reset(&mut self, session: &mut Session) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        self.discard_silently(session);
        self.end_subscriptions(session);
        self.end_monitor(session);
        session.protocol = Protocol::Resp2;
        session.role = Role::Client(None);
        session.visible_to = Audience::Clients;
        session.standing_as_of = 0;
        session.name.clear();
        session.reply_mode = ReplyMode::On;
        session.content_with_replicas = false;
        session.answer(|writer| writer.simple("RESET"));
        Taken::Yes
    }
}
