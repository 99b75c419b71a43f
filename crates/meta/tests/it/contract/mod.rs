//! The store contract: one suite, every rule on every subject. A rule is named after what it says, and a failure names
//! the rule and the subject.

mod compact;
mod delete;
mod lease;
mod lease_time;
mod maintenance;
mod put;
mod range;
mod revisions;
mod sort;
mod txn;
mod txn_compare;
mod txn_rules;
mod watch;
mod watch_from;
mod watch_progress;

/// One test for each rule and subject. A rule that is missing here is dead code, which the build refuses.
macro_rules! suite {
    ($($module:ident { $($rule:ident),* $(,)? })*) => {
        suite!(@subject embedded Embedded $($module { $($rule),* })*);
        suite!(@subject etcd Etcd $($module { $($rule),* })*);
        suite!(@subject wire Wire $($module { $($rule),* })*);
    };
    (@subject $name:ident $subject:ident $($module:ident { $($rule:ident),* })*) => {
        mod $name {
            use crate::subjects::{Subject, run};
            $(mod $module {
                use super::*;
                $(#[test]
                fn $rule() {
                    run(Subject::$subject, crate::contract::$module::$rule);
                })*
            })*
        }
    };
}

suite! {
    revisions {
        a_fresh_store_is_at_one_and_its_first_write_gets_two,
        every_change_is_exactly_one_revision,
        what_changes_nothing_makes_no_revision,
        all_changes_of_a_transaction_share_its_revision,
        a_key_that_comes_back_begins_anew,
        a_deletion_carries_nothing_but_key_and_revision,
        a_read_of_the_past_reports_the_present_revision,
        answers_inside_a_transaction_carry_its_revision,
    }
    range {
        one_key_is_found_or_not,
        every_form_of_range_finds_its_keys,
        an_inverted_range_is_empty,
        no_key_is_refused,
        zero_and_negative_revisions_are_now,
        an_old_revision_shows_the_past,
        a_future_revision_is_refused,
        a_limit_cuts_and_says_so,
        filters_go_by_revision_and_leave_the_count,
        filters_come_before_order_and_limit,
        only_keys_means_empty_values,
        only_the_count_means_no_keys,
        pages_at_one_revision_make_one_picture,
        keys_are_bytes_and_sorted_as_such,
    }
    sort {
        unsorted_is_by_key,
        a_target_without_order_is_ascending,
        every_target_both_ways,
        order_comes_before_limit,
    }
    put {
        the_previous_version_comes_on_request,
        ignore_value_keeps_the_value,
        ignore_lease_keeps_the_lease,
        ignoring_needs_an_existing_key,
        ignoring_and_giving_contradict,
        a_put_without_lease_detaches,
        an_unknown_lease_is_refused,
        no_key_is_refused,
        values_are_any_bytes,
        a_request_beyond_the_limit_is_too_large,
    }
    delete {
        the_deleted_are_counted_and_shown_on_request,
        every_form_of_range_is_deleted,
        deleting_nothing_is_no_error,
        no_key_is_refused,
        a_mass_deletion_is_one_revision_and_one_message,
    }
    txn {
        the_branch_is_chosen_by_all_compares,
        compares_see_the_state_before,
        nested_compares_see_the_state_before_too,
        later_operations_see_earlier_ones,
        an_error_in_the_chosen_branch_undoes_everything,
        the_other_branch_is_not_executed_or_blamed,
        nested_answers_have_the_shape_of_the_request,
        an_empty_transaction_succeeds,
        deletes_inside_show_what_they_deleted,
    }
    txn_compare {
        every_relation_of_every_target_on_a_present_key,
        a_missing_key_counts_as_zero,
        a_value_compare_on_a_missing_key_never_holds,
        a_range_must_hold_for_every_key,
        an_empty_range_is_like_a_missing_key,
        a_range_compare_may_be_open_ended,
    }
    txn_rules {
        one_key_is_written_once_per_branch,
        branches_may_write_the_same_key,
        nested_writes_count_with_their_parents_and_siblings,
        a_put_under_a_deletion_is_a_duplicate,
        overlapping_deletions_are_fine,
        each_list_takes_128,
        nesting_shares_the_limit,
        no_key_is_refused_anywhere,
        contradictory_puts_are_refused_in_either_branch,
        a_large_transaction_is_too_large,
    }
    watch {
        live_events_come_in_order,
        a_transaction_is_one_message,
        every_form_of_range_is_watched,
        no_key_is_the_lowest_one,
        an_empty_range_is_refused,
        previous_versions_come_on_request,
        filters_leave_out_puts_or_deletions,
        two_watches_both_see_everything,
        a_dropped_call_of_next_loses_nothing,
        a_slow_reader_gets_everything,
        a_large_revision_stays_whole,
    }
    watch_from {
        zero_is_after_now,
        the_past_is_replayed_from_the_revision_on,
        a_long_replay_keeps_revisions_whole,
        the_future_is_silent_until_it_comes,
        a_negative_revision_is_refused,
        resuming_behind_the_last_revision_misses_and_repeats_nothing,
        replay_and_live_have_no_seam,
    }
    watch_progress {
        progress_says_where_the_store_is,
        progress_never_overtakes_events,
        progress_of_a_quiet_range_follows_other_writes,
        a_deletion_is_never_passed_over,
    }
    lease {
        the_store_chooses_a_positive_id,
        any_id_may_be_chosen,
        an_id_is_granted_once,
        short_leases_become_two_seconds,
        too_long_a_lease_is_refused,
        revoking_deletes_its_keys_in_one_revision,
        a_missing_lease_is_not_found,
        a_lease_tells_its_keys,
        a_put_moves_a_key_to_another_lease,
        a_deletion_detaches_the_key,
        a_lease_attached_in_a_transaction_holds,
        leases_are_listed_by_expiry,
    }
    lease_time {
        an_expired_lease_takes_its_keys_in_one_revision,
        keeping_alive_keeps_the_keys,
        the_remaining_time_is_rounded_down,
    }
    compact {
        history_before_it_is_gone,
        the_compacted_revision_itself_can_be_read,
        the_newest_version_of_each_key_stays,
        revisions_below_or_equal_are_refused,
        the_future_cannot_be_compacted,
        revision_one_can_be_compacted_once,
        a_watch_from_before_it_is_told_where_history_begins,
        a_watch_from_it_is_legal,
        a_deletion_at_it_is_still_told,
        a_running_watch_is_not_disturbed,
        compacted_previous_versions_are_left_out,
        transactions_cannot_read_before_it,
    }
    maintenance {
        the_status_names_the_store_and_its_revisions,
        a_snapshot_has_content,
        defragmenting_changes_nothing,
    }
}
