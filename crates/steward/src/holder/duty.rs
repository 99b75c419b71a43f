//! What must a holder do about one log? Pure: from the records to one duty.

use capstan_log::config::Incarnation;
use capstan_log::keys::LogKey;
use capstan_log::{HolderId, LogEpoch, LogName};
use capstan_meta::view::Snapshot;

use crate::keys::HandoverKey;

/// What a holder must do about a log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Duty {
    /// Keep a copy of this incarnation.
    Keep(Incarnation),
    /// Keep a copy and hand over to another holder.
    HandOver { incarnation: Incarnation, epoch: LogEpoch, to: HolderId },
    /// The record no longer names this holder: the copy can be deleted.
    Discard,
    /// There is no record. The copy stays: the record may be missing because the store was restored from a backup.
    Close,
    /// The record cannot be parsed: change nothing.
    Wait,
}

/// What this holder must do about a log.
pub(super) fn duty(snapshot: &Snapshot, me: &HolderId, log: &LogName) -> Duty {
    let config = match snapshot.get(&LogKey { log: log.clone() }) {
        Ok(Some(config)) => config,
        Ok(None) => return Duty::Close,
        Err(bad) => {
            tracing::error!(%log, %bad, "cannot parse log record");
            return Duty::Wait;
        }
    };
    if !config.record.members().any(|member| member == me) {
        return Duty::Discard;
    }
    let asked = snapshot.get(&HandoverKey { log: log.clone() }).ok().flatten();
    match asked {
        Some(asked)
            if config.record.primary == *me
                && asked.record.epoch == config.record.epoch
                && asked.record.to != *me =>
        {
            let incarnation = config.record.incarnation;
            Duty::HandOver { incarnation, epoch: asked.record.epoch, to: asked.record.to.clone() }
        }
        Some(_) | None => Duty::Keep(config.record.incarnation),
    }
}
