//! `NMCTL`: who may send it, and how does it reach the owner of the state?

use crate::state::Login;
use capstan_redis_protocol::ClusterName;
use capstan_redis_protocol::nmctl::Message;
use capstan_redis_protocol::resp::Request;

use super::dispatch::unless_drained;
use super::keeper::Order;
use super::session::{Audience, Role, Session};
use super::worker::{Taken, Worker};

impl Worker {
    /// A control message for this proxy.
    pub(super) fn admin(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        if !self.may_steer(session) {
            return self.object(
                session,
                "NOPERM NMCTL needs a connection that is authenticated as user admin: AUTH admin <password>",
            );
        }
        session.visible_to = Audience::Admins;
        if request.is(1, "PEER") && request.len() == 3 {
            return self.become_peer(session, request);
        }
        let message = match Message::parse(request.from(1)) {
            Ok(message) => message,
            Err(wrong) => return self.object(session, wrong.to_string()),
        };
        if let (Message::Import(import), Some(_)) = (&message, &self.shared.moves) {
            // The moves take over this connection.
            if let Err(taken) = unless_drained(session) {
                return taken;
            }
            session.import = Some(Box::new(import.clone()));
            return Taken::Yes;
        }
        let sequence = session.replies.owe(session.wants_reply());
        let order =
            Order { message, received: self.now, worker: self.number, session: session.key, sequence };
        if let Err(error) = self.shared.orders.try_send(order) {
            let text = match error {
                tokio::sync::mpsc::error::TrySendError::Full(_) => {
                    "TRYAGAIN too many control messages queued at this proxy"
                }
                tokio::sync::mpsc::error::TrySendError::Closed(_) => "ERR this proxy is stopping",
            };
            session.replies.give(sequence, format!("-{text}\r\n").as_bytes(), &mut session.out);
        }
        Taken::Yes
    }

    /// Without a password any local connection may; with one, an authenticated one.
    fn may_steer(&self, session: &Session) -> bool {
        match &session.role {
            Role::Admin | Role::Peer(_) => true,
            Role::Client(_) => self.shared.admin.is_none() && session.peer.ip().to_canonical().is_loopback(),
        }
    }

    /// `NMCTL PEER db`: the commands that follow are forwarded by another proxy.
    fn become_peer(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let name = std::str::from_utf8(request.argument(2)).ok().and_then(|name| ClusterName::new(name).ok());
        let Some(database) = name else {
            return self.object(session, "ERR NMCTL PEER needs the name of a database");
        };
        session.role = Role::Peer(Login { database, user: "admin".to_owned() });
        session.standing_as_of = 0;
        session.ok();
        Taken::Yes
    }
}
