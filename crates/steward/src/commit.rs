//! How do decisions become transactions? Many changes share one transaction, each nested with its own guards: a record
//! that has changed since is left alone and does not block the other changes.

use capstan_log::keys::LogKey;
use capstan_meta::record::Key;
use capstan_meta::{Op, Txn};

use crate::decide::{Action, Reason};
use crate::keys::{AliveKey, HandoverKey, HolderKey};

/// Changes per transaction: etcd accepts 128 operations, including those of nested transactions.
const PER_TXN: usize = 100;

/// A transaction and its description.
pub(crate) struct Batch {
    pub(crate) what: String,
    pub(crate) txn: Txn,
}

/// The transactions that perform the actions, in order.
pub(crate) fn batches(actions: &[Action]) -> Vec<Batch> {
    actions.chunks(PER_TXN).map(batch).collect()
}

fn batch(actions: &[Action]) -> Batch {
    let what = match actions {
        [first] => first.to_string(),
        [first, ..] => format!("{first}, and {} more", actions.len() - 1),
        [] => String::new(),
    };
    let txn = actions.iter().fold(Txn::new(), |txn, action| txn.then(Op::Txn(guarded(action))));
    Batch { what, txn }
}

/// One change, guarded by the records that it was decided on.
fn guarded(action: &Action) -> Txn {
    match action {
        Action::Reconfigure { log, seen, next, reason } => {
            let key = LogKey { log: log.clone() };
            let txn = Txn::new().when(key.unchanged(seen)).then(key.replace(seen, next));
            match reason {
                // A primary that has come back in between needs no successor.
                Reason::FailOver { from } => txn.when(AliveKey { holder: from.clone() }.absent()),
                Reason::CutOff { .. }
                | Reason::ForcedHandover
                | Reason::Repair
                | Reason::Retire
                | Reason::Evacuate
                | Reason::Balance
                | Reason::Remove { .. }
                | Reason::TakeBack
                | Reason::DropLearner
                | Reason::MinCopies => txn,
            }
        }
        Action::AskHandover { log, seen, handover } => {
            let (config, key) = (LogKey { log: log.clone() }, HandoverKey { log: log.clone() });
            Txn::new().when(config.unchanged(seen)).when(key.absent()).then(key.put(handover))
        }
        Action::ClearHandover { log, seen } => {
            let key = HandoverKey { log: log.clone() };
            Txn::new().when(key.unchanged(seen)).then(key.delete())
        }
        Action::MarkDown { holder, seen, since } => {
            let key = HolderKey { holder: holder.clone() };
            let mut next = seen.record.clone();
            next.down_since = Some(*since);
            let down = AliveKey { holder: holder.clone() }.absent();
            Txn::new().when(key.unchanged(seen)).when(down).then(key.put(&next))
        }
        Action::MarkUp { holder, seen } => {
            let key = HolderKey { holder: holder.clone() };
            let mut next = seen.record.clone();
            next.down_since = None;
            Txn::new().when(key.unchanged(seen)).then(key.put(&next))
        }
        Action::Forget { holder, seen } => {
            let key = HolderKey { holder: holder.clone() };
            let down = AliveKey { holder: holder.clone() }.absent();
            Txn::new().when(key.unchanged(seen)).when(down).then(key.delete())
        }
    }
}
