//! How do subscriptions reach the nodes, and messages the subscribers?

use std::io;

use capstan_redis_protocol::command::Command;
use capstan_redis_protocol::resp::{Protocol, Request, View, Writer, write_request};
use capstan_redis_protocol::slots::Slot;

use super::arena::Key;
use super::dispatch::unless_drained;
use super::link::{Link, Purpose, Remote};
use super::merge::Merge;
use super::session::Session;
use super::subscriptions::{Push, Subscriptions, Topic};
use super::worker::{Taken, Worker};

impl Worker {
    pub(super) fn pubsub(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        match command.name() {
            "subscribe" => self.subscribe(session, request, Topic::Channel),
            "psubscribe" => self.subscribe(session, request, Topic::Pattern),
            "ssubscribe" => self.subscribe_shard(session, command, request),
            "unsubscribe" => self.unsubscribe(session, request, Topic::Channel),
            "punsubscribe" => self.unsubscribe(session, request, Topic::Pattern),
            "sunsubscribe" => match self.of_one_shard(session, command, request) {
                Ok(()) => self.unsubscribe(session, request, Topic::Shard),
                Err(error) => self.object(session, error),
            },
            "publish" => self.publish(session, request),
            "spublish" => self.send_keyed(session, command, request, Slot::of(request.argument(1))),
            // Every node has every pattern.
            "pubsub|numpat" => self.any_node(session, request),
            "pubsub|numsub" => self.ask_about_channels(session, request, Merge::SumPairs, true),
            "pubsub|shardnumsub" => self.ask_about_channels(session, request, Merge::SumPairs, false),
            "pubsub|shardchannels" => self.ask_about_channels(session, request, Merge::Union, false),
            _ => self.ask_about_channels(session, request, Merge::Union, true),
        }
    }

    /// Publishes at the owner of the channel's slot.
    fn publish(&mut self, session: &mut Session, request: Request<'_>) -> Taken {
        let owner = match self.owner(session, Slot::of(request.argument(1))) {
            Ok(owner) => owner,
            Err(taken) => return taken,
        };
        match self.pipeline(&owner, session.protocol, session.lane) {
            Ok(link) => self.send_client(session, link, request.bytes(), None),
            Err(down) => return self.object(session, down.error()),
        }
        Taken::Yes
    }

    fn ask_about_channels(
        &mut self,
        session: &mut Session,
        request: Request<'_>,
        how: Merge,
        beyond: bool,
    ) -> Taken {
        let remotes = self.everywhere(session, beyond);
        if remotes.is_empty() {
            return self.hold(session, super::route::Hold::Unserved);
        }
        self.ask_all(session, &remotes, request.bytes(), how, Vec::new());
        Taken::Yes
    }

    /// `SSUBSCRIBE`: in cluster mode, its channels must be in one slot.
    fn subscribe_shard(
        &mut self,
        session: &mut Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Taken {
        match self.of_one_shard(session, command, request) {
            Ok(()) => self.subscribe(session, request, Topic::Shard),
            Err(error) => self.object(session, error),
        }
    }

    fn of_one_shard(
        &self,
        session: &Session,
        command: &'static Command,
        request: Request<'_>,
    ) -> Result<(), &'static str> {
        let single = self.database(session).is_some_and(|database| database.is_single());
        match self.slot_of(command, request) {
            Err(error) if !single => Err(error),
            Ok(_) | Err(_) => Ok(()),
        }
    }

    /// `SUBSCRIBE`, `PSUBSCRIBE`, `SSUBSCRIBE`.
    pub(super) fn subscribe(&mut self, session: &mut Session, request: Request<'_>, topic: Topic) -> Taken {
        // A confirmation must not overtake the reply to an earlier command.
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let mut where_to = Vec::with_capacity(request.len() - 1);
        for name in request.from(1) {
            match self.homes(session, topic, name) {
                Ok(homes) => where_to.push(homes),
                Err(taken) => return taken,
            }
        }
        for (name, homes) in request.from(1).zip(where_to) {
            if let Err(error) = self.subscribe_one(session, topic, name, &homes) {
                session.refuse(&error);
                return Taken::Last;
            }
        }
        Taken::Yes
    }

    /// Where a topic is served: by the owner of its slot, or by every node.
    fn homes(&mut self, session: &mut Session, topic: Topic, name: &[u8]) -> Result<Vec<Remote>, Taken> {
        match topic {
            // Every node publishes events of its own keys.
            Topic::Channel if is_about_keys(name) => Ok(self.everywhere(session, true)),
            Topic::Channel => Ok(vec![self.owner(session, Slot::of(name))?]),
            Topic::Shard => Ok(vec![self.shard_owner(session, Slot::of(name))?]),
            Topic::Pattern => Ok(self.everywhere(session, true)),
        }
    }

    fn subscribe_one(
        &mut self,
        session: &mut Session,
        topic: Topic,
        name: &[u8],
        homes: &[Remote],
    ) -> Result<(), String> {
        let mut all = session.subscriptions.take().unwrap_or_default();
        let result = self.add_subscription(session, &mut all, topic, name, homes);
        session.subscriptions = Some(all);
        result
    }

    fn add_subscription(
        &mut self,
        session: &mut Session,
        all: &mut Subscriptions,
        topic: Topic,
        name: &[u8],
        homes: &[Remote],
    ) -> Result<(), String> {
        if all.add(topic, name).is_none() {
            let count = all.count(topic);
            session.answer(|writer| confirmation(writer, topic.subscribe(), Some(name), count));
            return Ok(());
        }
        let sequence = session.replies.owe(true);
        let mut feeds = Vec::with_capacity(homes.len());
        for home in homes {
            let feed = self.feed(session, all, home)?;
            let mut request = Vec::new();
            write_request(&mut request, &[topic.subscribe().as_bytes(), name]);
            self.send_unasked(feed, &request);
            feeds.push(feed);
        }
        all.unconfirmed += 1;
        let count = all.count(topic);
        if let Some(subscription) = all.get_mut(topic, name) {
            subscription.unconfirmed = feeds.len();
            subscription.feeds = feeds;
            subscription.asked_by = Some(sequence);
            subscription.count = count;
        }
        Ok(())
    }

    /// The session's feed from this remote.
    fn feed(&mut self, session: &Session, all: &mut Subscriptions, home: &Remote) -> Result<Key, String> {
        if let Some(feed) = all.feeds.get(home) {
            return Ok(*feed);
        }
        match self.own_link(home, session.protocol, Purpose::Feed(session.key)) {
            Ok(feed) => {
                all.feeds.insert(home.clone(), feed);
                Ok(feed)
            }
            Err(no) => Err(no.error()),
        }
    }

    /// `UNSUBSCRIBE`, `PUNSUBSCRIBE`, `SUNSUBSCRIBE`: in force at once; the nodes are notified.
    pub(super) fn unsubscribe(&mut self, session: &mut Session, request: Request<'_>, topic: Topic) -> Taken {
        if let Err(taken) = unless_drained(session) {
            return taken;
        }
        let mut all = session.subscriptions.take().unwrap_or_default();
        let names: Vec<Box<[u8]>> = match request.len() {
            1 => all.names(topic),
            _ => request.from(1).map(Box::from).collect(),
        };
        if names.is_empty() {
            let count = all.count(topic);
            session.answer(|writer| confirmation(writer, topic.unsubscribe(), None, count));
        }
        for name in names {
            if let Some(gone) = all.remove(topic, &name) {
                let mut request = Vec::new();
                write_request(&mut request, &[topic.unsubscribe().as_bytes(), &name]);
                gone.feeds.iter().for_each(|feed| self.send_unasked(*feed, &request));
            }
            let count = all.count(topic);
            session.answer(|writer| confirmation(writer, topic.unsubscribe(), Some(&name), count));
        }
        if !all.is_empty() {
            session.subscriptions = Some(all);
        } else {
            all.feeds.values().for_each(|feed| self.drop_own_link(*feed));
        }
        Taken::Yes
    }

    /// Ends all subscriptions of a session.
    pub(super) fn end_subscriptions(&mut self, session: &mut Session) {
        let Some(all) = session.subscriptions.take() else { return };
        all.feeds.values().for_each(|feed| self.drop_own_link(*feed));
    }

    /// Handles a push message of a feed.
    pub(super) fn take_push(&mut self, link: &mut Link, push: &[u8]) -> io::Result<()> {
        // Without tracking, a pipelined connection receives no push messages.
        let Purpose::Feed(key) = link.purpose else { return Ok(()) };
        let mut parts = View::of(push).and_then(View::sequence).into_iter().flat_map(|parts| parts.views());
        let word = parts.next().and_then(View::bytes).unwrap_or_default();
        let Some((topic, what)) = Topic::of_push(word) else {
            return self.feed_reply(link, push);
        };
        let name = parts.next().and_then(View::bytes).unwrap_or_default();
        match what {
            Push::Message => self.deliver_message(key, link.key, topic, name, push),
            Push::Confirmed => self.confirm(key, topic, name),
            Push::Ended => {}
        }
        Ok(())
    }

    /// Handles the reply to the greeting of a feed, or a refused subscription.
    fn feed_reply(&mut self, link: &mut Link, reply: &[u8]) -> io::Result<()> {
        link.waiters.pop_front();
        if reply.first() == Some(&b'-') {
            let text = String::from_utf8_lossy(reply.trim_ascii_end()).into_owned();
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        Ok(())
    }

    fn deliver_message(&mut self, key: Key, feed: Key, topic: Topic, name: &[u8], push: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let Some(all) = &mut session.subscriptions else { return };
        if !all.is_fed_by(topic, name, feed) {
            return;
        }
        if session.streaming || all.unconfirmed > 0 {
            all.deferred.extend_from_slice(push);
        } else {
            session.out.push(push);
        }
        self.mark_session(key);
    }

    fn confirm(&mut self, key: Key, topic: Topic, name: &[u8]) {
        let Some(session) = self.sessions.get_mut(key) else { return };
        let protocol = session.protocol;
        let Some(all) = &mut session.subscriptions else { return };
        let Some(subscription) = all.get_mut(topic, name) else { return };
        subscription.unconfirmed = subscription.unconfirmed.saturating_sub(1);
        if subscription.unconfirmed > 0 {
            return;
        }
        // Without a sequence it is the resubscription after a move, which the client does not see.
        let Some(sequence) = subscription.asked_by.take() else { return };
        let count = subscription.count;
        all.unconfirmed -= 1;
        let mut reply = Vec::new();
        confirmation(&mut Writer::new(&mut reply, protocol), topic.subscribe(), Some(name), count);
        self.give(key, sequence, &reply);
    }

    /// After a routing change: subscribes at the new owners, then unsubscribes at the old ones.
    pub(super) fn resubscribe_all(&mut self) {
        let subscribers: Vec<Key> = self
            .sessions
            .iter()
            .filter(|session| session.subscriptions.is_some())
            .map(|session| session.key)
            .collect();
        for key in subscribers {
            let Some(mut session) = self.sessions.take(key) else { continue };
            let moved = self.resubscribe(&mut session);
            self.sessions.put_back(key, session);
            if moved.is_err() {
                self.close(key);
            }
        }
    }

    fn resubscribe(&mut self, session: &mut Session) -> Result<(), ()> {
        session.standing = self.standing(&session.role);
        session.standing_as_of = self.table_version;
        let Some(mut all) = session.subscriptions.take() else { return Ok(()) };
        let mut result = Ok(());
        for (topic, name) in all.everything() {
            let homes = match topic {
                Topic::Channel if is_about_keys(&name) => self.everywhere(session, true),
                Topic::Channel | Topic::Shard => {
                    self.place_of(session.standing, Slot::of(&name)).into_iter().collect()
                }
                Topic::Pattern => self.everywhere(session, true),
            };
            // A slot without an owner keeps its feeds until it has one.
            if !homes.is_empty() && self.move_subscription(session, &mut all, topic, &name, &homes).is_err() {
                result = Err(());
            }
        }
        all.idle_feeds().into_iter().for_each(|feed| self.drop_own_link(feed));
        session.subscriptions = Some(all);
        result
    }

    fn move_subscription(
        &mut self,
        session: &mut Session,
        all: &mut Subscriptions,
        topic: Topic,
        name: &[u8],
        homes: &[Remote],
    ) -> Result<(), String> {
        let mut feeds = Vec::with_capacity(homes.len());
        for home in homes {
            feeds.push(self.feed(session, all, home)?);
        }
        let Some(subscription) = all.get_mut(topic, name) else { return Ok(()) };
        let before = std::mem::replace(&mut subscription.feeds, feeds.clone());
        let mut request = Vec::new();
        write_request(&mut request, &[topic.subscribe().as_bytes(), name]);
        for feed in feeds.iter().filter(|feed| !before.contains(feed)) {
            self.send_unasked(*feed, &request);
        }
        request.clear();
        write_request(&mut request, &[topic.unsubscribe().as_bytes(), name]);
        for feed in before.iter().filter(|feed| !feeds.contains(feed)) {
            self.send_unasked(*feed, &request);
        }
        Ok(())
    }

    /// A subscriber's feed is lost: closes the subscriber's connection.
    pub(super) fn feed_lost(&mut self, session: Key, feed: Key) {
        let subscribed = self.sessions.get(session).and_then(|session| session.subscriptions.as_ref());
        if subscribed.is_some_and(|all| all.feeds.values().any(|known| *known == feed)) {
            self.close(session);
        }
    }
}

/// Whether this is a channel for keyspace events (`notify-keyspace-events`).
fn is_about_keys(channel: &[u8]) -> bool {
    channel.starts_with(b"__keyspace@0__:") || channel.starts_with(b"__keyevent@0__:")
}

/// `[word, name, count]`, as Redis confirms a subscription.
pub(super) fn confirmation(writer: &mut Writer<'_, Vec<u8>>, word: &str, name: Option<&[u8]>, count: usize) {
    match writer.protocol() {
        Protocol::Resp2 => writer.array(3),
        Protocol::Resp3 => writer.push(3),
    }
    writer.bulk(word);
    match name {
        Some(name) => writer.bulk(name),
        None => writer.null(),
    }
    writer.integer(i64::try_from(count).unwrap_or(i64::MAX));
}
