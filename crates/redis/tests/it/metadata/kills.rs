//! Every operation, and every completion by a coordinator, is killed before and after each of its
//! transactions, or loses its request or its reply: the rest is completed, and the tree is consistent. On the
//! embedded store and on a real etcd.

use bytes::Bytes;
use capstan_meta::Store;

use super::deeds::{Deed, Scene, break_things, scene};
use super::tap::{Cut, Tap};
use super::world::*;

/// No operation of the scene has more transactions.
const MOST_COMMITS: u32 = 12;
const CUTS: [Cut; 4] = [Cut::KilledBefore, Cut::KilledAfter, Cut::LostRequest, Cut::LostAnswer];

/// The world before an operation, to begin from repeatedly.
struct Prepared {
    deed: Deed,
    scene: Scene,
    everything: Vec<(Bytes, Bytes)>,
}

impl Prepared {
    async fn before(deed: Deed) -> Prepared {
        let store = embedded_store();
        let scene = scene(&store).await;
        if deed == Deed::Fix {
            break_things(&store).await;
        }
        Prepared { deed, scene, everything: everything(&store).await }
    }

    /// Returns whether the operation reached that transaction.
    async fn cut_at(&self, store: Store, at: u32, cut: Cut) -> bool {
        let deed = self.deed;
        begin_from(&store, &self.everything).await;
        let before = tree(&store).await;
        let tap = Tap::cut(&store, at, cut);
        let done = self.scene.perform(deed, &tap.store()).await;
        let reached = tap.commits() >= at;
        match cut {
            Cut::KilledBefore | Cut::KilledAfter if reached => assert!(done.is_err(), "{deed:?} {cut:?}"),
            _ => assert_eq!(done, Ok(()), "{deed:?}, {cut:?} at transaction {at}"),
        }
        if deed == Deed::Fix {
            capstan_redis::check::fix(&store).await.unwrap();
        } else {
            assert_promises(&before, &tree(&store).await);
        }
        assert_sound(&tree(&store).await);
        assert_promises(&before, &assert_comes_to_rest(&store).await);
        reached
    }

    /// The operation is done, and its completion is cut. Returns whether the completion reached that
    /// transaction.
    async fn completion_cut_at(&self, store: Store, at: u32, cut: Cut) -> bool {
        begin_from(&store, &self.everything).await;
        let before = tree(&store).await;
        self.scene.perform(self.deed, &store).await.unwrap();
        let tap = Tap::cut(&store, at, cut);
        let done = complete_some(&tap.store()).await;
        let reached = tap.commits() >= at;
        let killed = matches!(cut, Cut::KilledBefore | Cut::KilledAfter) && reached;
        assert_eq!(done.is_err(), killed, "{done:?} at transaction {at}");
        assert_sound(&tree(&store).await);
        assert_promises(&before, &assert_comes_to_rest(&store).await);
        reached
    }
}

async fn cut_everywhere(deed: Deed, mut fresh: impl AsyncFnMut() -> Store) {
    let prepared = Prepared::before(deed).await;
    for cut in CUTS {
        let mut at = 1;
        while prepared.cut_at(fresh().await, at, cut).await {
            at += 1;
            assert!(at <= MOST_COMMITS, "{deed:?} does not end");
        }
        assert!(at > 1 || deed == Deed::BumpHosts, "{deed:?} has no transaction");
    }
}

macro_rules! killed {
    ($($name:ident: $deed:ident),* $(,)?) => {
        $(
            #[test]
            fn $name() {
                block_on(cut_everywhere(Deed::$deed, async || embedded_store()));
            }
        )*

        mod on_etcd {
            use super::*;

            $(
                #[test]
                fn $name() {
                    block_on(async {
                        let etcd = capstan_testkit::Etcd::start().await.unwrap();
                        cut_everywhere(Deed::$deed, async || etcd_store(etcd.endpoint()).await).await;
                    });
                }
            )*
        }
    };
}

killed!(
    add_host: AddHost,
    remove_host: RemoveHost,
    create_cluster: CreateCluster,
    create_node: CreateNode,
    replace_node: ReplaceNode,
    delete_node: DeleteNode,
    delete_cluster: DeleteCluster,
    begin_move: BeginMove,
    commit_move: CommitMove,
    cancel_move: CancelMove,
    retarget_move: RetargetMove,
    grow: Grow,
    shrink: Shrink,
    promote_dead: PromoteDead,
    hand_over: HandOver,
    end_quarantine: EndQuarantine,
    bump_hosts: BumpHosts,
    fix: Fix,
);

/// Operations that leave several transactions for coordinators.
const LEFT_TO_COMPLETE: [Deed; 6] = [
    Deed::CreateCluster,
    Deed::DeleteCluster,
    Deed::ReplaceNode,
    Deed::PromoteDead,
    Deed::Grow,
    Deed::Shrink,
];

#[test]
fn whoever_completes_them() {
    block_on(async {
        for deed in LEFT_TO_COMPLETE {
            let prepared = Prepared::before(deed).await;
            for cut in [Cut::KilledBefore, Cut::KilledAfter, Cut::LostAnswer] {
                let mut at = 1;
                while prepared.completion_cut_at(embedded_store(), at, cut).await {
                    at += 1;
                }
                assert!(at > 1, "{deed:?} leaves nothing to complete");
            }
        }
    });
}

/// The first transactions of each; the embedded store runs all of them.
#[test]
fn whoever_completes_them_on_etcd() {
    block_on(async {
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        for (deed, cut) in LEFT_TO_COMPLETE.into_iter().zip(CUTS.into_iter().cycle()) {
            let prepared = Prepared::before(deed).await;
            for at in 1..=2 {
                prepared.completion_cut_at(etcd_store(etcd.endpoint()).await, at, cut).await;
            }
        }
    });
}
