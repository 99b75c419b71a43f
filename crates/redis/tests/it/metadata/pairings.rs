//! Is a move that was cancelled and recorded again another move? Both of its ends see it so, also if one of
//! them missed everything in between.

use capstan_meta::Store;
use capstan_redis::broker;
use capstan_redis::coordinator::Reply;
use capstan_redis::decide::Wish;
use capstan_redis::decide::{Content, Order};
use capstan_redis::nmctl::{Announcement, Flags, Message};
use capstan_redis::{Address, SlotRange};
use capstan_redis_proxy::state::Move;

use super::deeds::{c, scene};
use super::simulation::proxy::SimProxy;
use super::world::{block_on, embedded_store, tree};

/// More than the number of requests until a source releases.
const OFTEN: usize = 10;

/// Pushes the current tree to a proxy.
async fn tell(store: &Store, at: &Address, proxy: &mut SimProxy) -> Content {
    let content = Content::unsettled(&tree(store).await, at).unwrap();
    for message in content.messages(Order::OwnFirst) {
        assert_eq!(proxy.obey(&message), Reply::Done);
    }
    content
}

/// Asks the source to release its move, as coordinators do.
fn ask(source: &mut SimProxy, content: &Content) -> Reply {
    let moves = content.own.iter().filter(|entry| Move::of(entry).is_some());
    let (epoch, flags) = (content.epoch, Flags::default());
    source.obey(&Message::Releasing(Announcement { epoch, flags, entries: moves.cloned().collect() }))
}

#[test]
fn a_source_that_missed_both_changes_has_not_let_go_of_the_second_move() {
    block_on(async {
        let store = embedded_store();
        let scene = scene(&store).await;
        let record = tree(&store).await.clusters[&c()].moves[&scene.id].record.clone();
        let proxy_of = |node: &Address| SimProxy::new([node.clone()]);
        let (mut source, mut target) = (proxy_of(&scene.source), proxy_of(&scene.target));
        tell(&store, &record.target.proxy, &mut target).await;
        let first = tell(&store, &record.source.proxy, &mut source).await;
        assert!((0..OFTEN).any(|_| ask(&mut source, &first) == Reply::Done));

        broker::cancel_move(&store, &c(), scene.id).await.unwrap();
        tell(&store, &record.target.proxy, &mut target).await;
        let range = SlotRange::new(record.start.into(), record.end.into()).unwrap();
        let wish = Wish { range, target: scene.target.clone() };
        broker::begin_move(&store, &c(), &wish, "test").await.unwrap();
        tell(&store, &record.target.proxy, &mut target).await;
        let again = tell(&store, &record.source.proxy, &mut source).await;
        let answer = ask(&mut source, &again);
        assert!(matches!(&answer, Reply::Refused(why) if why.starts_with("MIGRATING")), "{answer:?}");

        // A late request for the first move is refused: it does not exist any more.
        let late = Content { epoch: again.epoch, ..first };
        let answer = ask(&mut source, &late);
        assert!(matches!(&answer, Reply::Refused(why) if why.contains("not migrating")), "{answer:?}");
    });
}
