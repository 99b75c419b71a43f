//! The document as fifty checks, each on the embedded store under its own name, and all of them on a real etcd.

mod config;
mod leader;
mod members;
mod request;
mod secrets;
mod status;

use std::collections::BTreeMap;
use std::pin::Pin;
use std::sync::Arc;

use capstan_meta::Store;
use capstan_meta::etcd::{Etcd, EtcdOptions};
use tokio::sync::Semaphore;
use tokio::task::JoinSet;

use crate::rig::Rig;

type Check = fn(Rig) -> Pin<Box<dyn Future<Output = ()>>>;

macro_rules! checks {
    ($($module:ident: [$($check:ident),* $(,)?]),* $(,)?) => {
        $($(
            #[tokio::test]
            async fn $check() {
                $module::$check(Rig::in_memory()).await;
            }
        )*)*

        const ALL: &[(&str, Check)] = &[
            $($((stringify!($check), |rig| Box::pin($module::$check(rig)))),*),*
        ];
    };
}

checks! {
    leader: [
        k01_one_of_many_candidates_leads,
        k02_a_candidate_is_a_leased_key_with_its_name,
        k03_a_killed_leader_is_followed_within_its_lease_and_a_polite_one_at_once,
        k04_a_write_of_a_former_leader_changes_nothing,
        k05_a_new_leader_continues_the_request_unchanged,
        a_public_updater_beside_ours_leaves_one_leader,
    ],
    members: [
        k06_a_host_joins_with_an_empty_value,
        k07_a_host_leaves_with_what_was_installed_on_it,
        k08_a_key_that_names_no_host_is_a_problem_and_no_panic,
        k09_hosts_sort_as_numbers,
        k10_the_registry_has_no_lease_and_the_worker_has,
        k11_what_is_installed_is_plain_text,
        k12_only_a_step_that_worked_is_recorded,
        k13_what_is_done_is_not_done_again,
        k14_host_one_is_not_host_ten,
    ],
    request: [
        k15_only_the_leader_writes_the_request,
        k16_the_request_has_the_documents_fields,
        k17_the_list_of_hosts_is_a_copy,
        k18_a_stop_changes_nothing_else,
        k19_times_are_utc_and_other_offsets_are_kept,
        k20_without_hosts_nothing_begins,
        k21_a_running_request_is_not_written_again,
        k22_only_recover_deletes_it_and_only_when_stopped,
        k23_another_host_list_clears_the_reports_in_one_transaction,
        k24_a_worker_that_is_not_listed_ignores_it,
        k25_a_worker_that_starts_late_finds_it,
    ],
    status: [
        k26_a_host_reports_every_step_itself,
        k27_a_report_has_the_documents_fields,
        k28_an_error_counts_whatever_finished_says,
        k29_steps_count_from_one_and_only_grow,
        k30_an_error_says_why,
        k31_reports_about_other_versions_are_ignored,
        k32_a_restarted_worker_goes_on_by_its_journal,
        k33_recover_and_reconfigure_delete_reports,
    ],
    config: [
        k34_without_a_webhook_nobody_is_told,
        k35_each_event_is_told_once_in_its_colour,
        k36_a_dead_webhook_holds_nothing_up,
        k37_messages_go_through_the_proxy,
        k38_a_proxy_is_an_absolute_url,
        k39_the_store_is_never_reached_through_the_proxy,
        k40_without_a_proxy_messages_go_directly,
        k41_the_interval_is_nanoseconds_and_ten_minutes_by_default,
        k42_another_interval_counts_at_once,
        k43_an_interval_of_nothing_is_refused,
        k44_the_timeout_is_an_hour_by_default_and_read_under_both_names,
        k45_after_the_timeout_everything_stops_and_one_message_is_sent,
        k46_the_deadline_survives_a_change_of_leaders,
    ],
    secrets: [
        k47_without_a_key_unsealing_does_nothing,
        k48_the_key_is_shown_and_removed,
        k49_secrets_are_not_shown_by_accident,
        k50_there_is_no_root_token_by_default,
    ],
}

/// Checks that run at the same time on one etcd: each has a root of its own.
const AT_ONCE: usize = 5;

#[tokio::test]
async fn all_checks_hold_on_etcd() {
    tokio::task::LocalSet::new().run_until(on_etcd()).await;
}

async fn on_etcd() {
    let etcd = capstan_testkit::Etcd::start().await.unwrap();
    let room = Arc::new(Semaphore::new(AT_ONCE));
    let mut running = JoinSet::new();
    let mut names = BTreeMap::new();
    for (name, check) in ALL {
        let room = room.clone();
        let store = Store::new(Etcd::connect(EtcdOptions::new([etcd.endpoint()])).await.unwrap());
        let task = running.spawn_local(async move {
            let _place = room.acquire().await.unwrap();
            check(Rig::on(store)).await;
        });
        names.insert(task.id(), *name);
    }
    let mut failed = Vec::new();
    while let Some(ended) = running.join_next_with_id().await {
        if let Err(error) = ended {
            failed.push(names[&error.id()]);
        }
    }
    assert!(failed.is_empty(), "{failed:#?}");
}
