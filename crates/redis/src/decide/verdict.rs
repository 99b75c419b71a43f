//! Which proxies are dead? Those that a majority of the coordinators reports and that cannot serve by grants of the rest.
//!
//! A coordinator that lost the store continues to grant. Such grants count if every coordinator on the proxy's list of
//! registered coordinators gives one. So at least one reporter must be on that list: one whose grant the proxy
//! acknowledged. Otherwise every coordinator that may grant without the store has to report the proxy.

use std::collections::BTreeSet;

use capstan_control::failure::{Quorum, Verdict, verdicts};
use capstan_meta::Compare;
use capstan_meta::record::{Key, Prefix};

use crate::address::Address;
use crate::decide::created_before;
use crate::facts::Tree;
use crate::keys::{AcknowledgedKey, Coordinators, FailureKey, Granters, ReportId};

/// A proxy that serves nothing any more, with the guards of a transaction that acts on it.
#[derive(Clone, Debug)]
pub(crate) struct Dead {
    pub proxy: Address,
    pub guards: Vec<Compare>,
}

/// The dead proxies of a tree.
pub(crate) fn dead(tree: &Tree, quorum: Quorum) -> Vec<Dead> {
    let judged = verdicts(&tree.reports(), &tree.alive(), quorum).into_iter();
    judged.filter(Verdict::is_dead).filter_map(|verdict| conclude(tree, verdict)).collect()
}

/// The same, without guards.
pub(crate) fn dead_addresses(tree: &Tree, quorum: Quorum) -> BTreeSet<Address> {
    dead(tree, quorum).into_iter().map(|dead| dead.proxy).collect()
}

fn conclude(tree: &Tree, verdict: Verdict<FailureKey>) -> Option<Dead> {
    let known = |report: &&FailureKey| {
        tree.acknowledged.contains(&(report.address.clone(), report.report_id.clone()))
    };
    let mut guards = vec![created_before(Prefix::range(&Coordinators {}), tree.revision)];
    if let Some(FailureKey { address, report_id }) = verdict.reports.iter().find(known) {
        let acknowledged = AcknowledgedKey { address: address.clone(), report_id: report_id.clone() };
        guards.push(acknowledged.present());
        guards.extend(verdict.guards());
    } else {
        let reporters: BTreeSet<&ReportId> = verdict.reports.iter().map(|report| &report.report_id).collect();
        let all_report = tree.granters.values().all(|granter| reporters.contains(&granter.record));
        if !all_report || !tree.granters_are_known() {
            return None;
        }
        guards.push(created_before(Prefix::range(&Granters {}), tree.revision));
        guards.extend(verdict.reports.iter().map(Key::present));
    }
    Some(Dead { proxy: verdict.suspect, guards })
}
