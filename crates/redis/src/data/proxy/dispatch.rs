//! What is to be done with a command?

use super::link::Remote;
use super::request::Request;
use super::session::{Session, Stall};
use super::waiter::Waiter;
use super::worker::{Taken, Worker, unreachable_reply};

impl Worker {
    pub(super) fn dispatch(&mut self, session: &mut Session, request: &Request<'_>) -> Taken {
        if request.is(0, "PING") && request.len() == 1 {
            session.answer(|writer| writer.simple("PONG"));
            return Taken::Yes;
        }
        let Some(node) = self.node() else {
            session.refuse("CLUSTERDOWN Hash slot not served");
            return Taken::Yes;
        };
        let link = match self.pipeline(&Remote::Node(node), session.protocol) {
            Ok(link) => link,
            Err(down) => {
                let reply = unreachable_reply(&down.0);
                session.answer(|writer| writer.raw(reply.as_bytes()));
                return Taken::Yes;
            }
        };
        if self.is_choked(link) {
            return Taken::Not(Stall::Backlog);
        }
        let sequence = session.replies.owe(true);
        self.send(link, request.raw(), Waiter::Client { session: session.key, sequence, pass: None });
        Taken::Yes
    }
}
