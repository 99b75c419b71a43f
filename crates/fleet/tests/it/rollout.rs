//! Whole rollouts, with real workers and updaters on a store in memory.

use capstan_fleet::Lrn;
use capstan_fleet::history::Outcome;
use capstan_fleet::release::StepKind::{Barrier, Once, Rolling, SelfUpdate};

use crate::rig::Rig;

#[tokio::test]
async fn a_release_of_barrier_steps_reaches_every_host() {
    let mut rig = Rig::in_memory();
    rig.join(0..12).await;
    rig.publish("1.1.0", &[Barrier, Barrier, Barrier]).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    for (lrn, host) in &rig.hosts {
        assert_eq!(host.begun(1), [1, 2, 3], "host {lrn}");
        assert_eq!(host.has().as_deref(), Some("1.1.0"));
    }
    let request = rig.request().await.unwrap();
    assert_eq!(request.servers, (0..12).map(Lrn).collect::<Vec<_>>(), "in the order of numbers");
}

#[tokio::test]
async fn all_kinds_of_steps_go_together() {
    let mut rig = Rig::in_memory();
    rig.join(0..4).await;
    rig.publish("1.1.0", &[SelfUpdate, Rolling, Barrier, Once, Rolling]).await;
    let quick = capstan_fleet::spec::Policy {
        min_healthy: capstan_fleet::encoding::Span::secs(0),
        ..Default::default()
    };
    rig.put(&rig.tree.policy(capstan_fleet::keys::default_group()), &quick).await;
    rig.want("1.1.0").await;
    let _updater = rig.start_updater("a");
    assert_eq!(rig.until_ended(1).await.outcome, Some(Outcome::Succeeded));
    let once: Vec<Vec<u32>> = rig.hosts.values().map(|host| host.begun(1)).collect();
    assert_eq!(once, [vec![1, 2, 3, 4, 5], vec![1, 2, 3, 5], vec![1, 2, 3, 5], vec![1, 2, 3, 5]]);
}
