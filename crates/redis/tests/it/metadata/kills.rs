//! Every operation is killed before and after each of its transactions, or loses its request or its answer: what is
//! left is completed, and then nothing is wrong.

use capstan_meta::Store;
use capstan_testkit::seed::soak;

use super::deeds::{Deed, Scene, break_things, scene};
use super::tap::{Cut, Tap};
use super::world::*;

/// No operation of the scene has more transactions.
const MOST_COMMITS: u32 = 12;

async fn prepare(store: &Store, deed: Deed) -> Scene {
    let scene = scene(store).await;
    if deed == Deed::Fix {
        break_things(store).await;
    }
    scene
}

/// Returns whether the operation got as far as that transaction.
async fn cut_at(store: Store, deed: Deed, at: u32, cut: Cut) -> bool {
    let scene = prepare(&store, deed).await;
    let tap = Tap::cut(&store, at, cut);
    let done = scene.perform(deed, &tap.store()).await;
    let reached = tap.commits() >= at;
    match cut {
        Cut::KilledBefore | Cut::KilledAfter if reached => assert!(done.is_err(), "{deed:?} {cut:?}"),
        _ => assert_eq!(done, Ok(()), "{deed:?}, {cut:?} at transaction {at}"),
    }
    if deed == Deed::Fix {
        capstan_redis::check::fix(&store).await.unwrap();
    }
    assert_sound(&tree(&store).await);
    assert_comes_to_rest(&store).await;
    reached
}

async fn cut_everywhere(deed: Deed, mut fresh: impl AsyncFnMut() -> Store) {
    for cut in [Cut::KilledBefore, Cut::KilledAfter, Cut::LostRequest, Cut::LostAnswer] {
        let mut at = 1;
        while cut_at(fresh().await, deed, at, cut).await {
            at += 1;
            assert!(at <= MOST_COMMITS, "{deed:?} does not end");
        }
        assert!(at > 1 || deed == Deed::BumpHosts, "{deed:?} has no transaction");
    }
}

macro_rules! killed {
    ($($name:ident: $deed:ident),* $(,)?) => {$(
        #[test]
        fn $name() {
            block_on(cut_everywhere(Deed::$deed, async || embedded_store()));
        }
    )*};
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

/// On a real etcd each operation is cut once in each way, at its first or second transaction; the short form lets half
/// of the ways out.
#[test]
fn all_of_them_on_etcd() {
    let all = [
        (1, Cut::KilledAfter),
        (2, Cut::LostAnswer),
        (2, Cut::KilledBefore),
        (1, Cut::LostRequest),
        (1, Cut::LostAnswer),
    ];
    block_on(async {
        let etcd = capstan_testkit::Etcd::start().await.unwrap();
        for deed in Deed::ALL {
            for (at, cut) in all.into_iter().take(soak(2, all.len())) {
                cut_at(etcd_store(etcd.endpoint()).await, deed, at, cut).await;
            }
        }
    });
}
