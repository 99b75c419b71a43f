//! Every key of the steward and its record type. The only file of this crate with key text.
//!
//! The record of a log itself is declared by `capstan_log::keys`.

use capstan_control::Epoch;
use capstan_log::{HolderId, LogName};
use capstan_meta::keys;
use capstan_meta::record::LeaseHex;

use crate::spec::{Handover, HolderRecord, WantedLog};
use crate::status::HolderStatus;

keys! {
    /// Every key of the steward, in path order.
    pub const CATALOGUE;

    /// A live holder: its address, its free space, the holders that it cannot reach.
    pub struct AliveKey { holder: HolderId } at "/capstan/log/alive/{holder}" => HolderStatus {
        writer: "the holder, under the lease of its host",
        lifetime: Leased,
        prefixes: [
            /// Every holder that runs now.
            pub struct Alive {} at "/capstan/log/alive/",
        ],
    }

    /// A request to the primary of a log to hand over to another holder.
    pub struct HandoverKey { log: LogName } at "/capstan/log/handovers/{log}" => Handover {
        writer: "the steward; removed by it when the log has another epoch",
        lifetime: Durable,
        prefixes: [
            /// Every handover that is asked for.
            pub struct Handovers {} at "/capstan/log/handovers/",
        ],
    }

    /// A holder of logs, up or down: its host, its service, its failure domain, whether it is retiring.
    pub struct HolderKey { holder: HolderId } at "/capstan/log/holders/{holder}" => HolderRecord {
        writer: "the holder at its start; operators (retiring); the steward (down since)",
        lifetime: Durable,
        prefixes: [
            /// Every holder.
            pub struct Holders {} at "/capstan/log/holders/",
        ],
    }

    /// A candidate for leading the stewards; the lowest create revision leads. The value is its host.
    pub struct CandidateKey { lease: LeaseHex } at "/capstan/log/leader/{lease}" => String {
        writer: "each controller process",
        lifetime: Leased,
        prefixes: [
            /// Every candidate.
            pub struct Candidates {} at "/capstan/log/leader/",
        ],
    }

    /// The number of leaders of the stewards so far.
    pub struct TermKey {} at "/capstan/log/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }

    /// A service's spec of a log: the number of copies, and the service whose holders keep them.
    pub struct WantedKey { log: LogName } at "/capstan/log/wanted/{log}" => WantedLog {
        writer: "the service that owns the log",
        lifetime: Durable,
        prefixes: [
            /// Every log that a service asks for.
            pub struct Wanted {} at "/capstan/log/wanted/",
        ],
    }
}
