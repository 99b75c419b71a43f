//! Every key under `/capstan/` and the record that it leads to. The only place of this crate with key text.

use capstan_meta::record::LeaseHex;
use capstan_meta::{keys, names};

use crate::drain::{DrainAnswer, DrainRecord};
use crate::epoch::Epoch;
use crate::hosts::HostRecord;

names! {
    /// Names a host, chosen by its operator and kept for the host's life.
    pub struct HostId;

    /// Names a service that runs on hosts and answers drains: `redis`, `topics`, `docs`, `fleet`.
    pub struct ServiceName;

    /// Names a role of a host's daemon: a service, or `controller`, `console`, `meta`.
    pub struct Role;
}

keys! {
    /// Every key of the control kernel, in the order of the path.
    pub const CATALOGUE;

    /// The wish to empty a host, or to bring it back. Present from the moment that somebody asks until every service
    /// has taken up work again.
    pub struct DrainKey { host: HostId } at "/capstan/drains/{host}" => DrainRecord {
        writer: "whoever asks (operator, fleet updater); removed by the kernel's controller",
        lifetime: Durable,
        prefixes: [
            /// Every drain, with the answers.
            pub struct Drains {} at "/capstan/drains/",
        ],
    }

    /// One service's answer to a drain. A key of its own, so that services that answer at the same time do not
    /// conflict, and each can be guarded by the drain that it answers.
    pub struct AnswerKey { host: HostId, service: ServiceName }
        at "/capstan/drains/{host}/services/{service}" => DrainAnswer {
        writer: "the service; removed with the drain",
        lifetime: Durable,
        prefixes: [
            /// Every answer to every drain, with the drains.
            pub struct Answers {} at "/capstan/drains/",
            /// Every service's answer to one drain.
            pub struct AnswersOf { host: HostId } at "/capstan/drains/{host}/services/",
        ],
    }

    /// A host that is up: what runs there and where it listens.
    pub struct HostKey { host: HostId } at "/capstan/hosts/{host}" => HostRecord {
        writer: "the host's daemon",
        lifetime: Leased,
        prefixes: [
            /// Every host that is up.
            pub struct Hosts {} at "/capstan/hosts/",
        ],
    }

    /// A candidate for leading the kernel's controllers; the lowest create revision leads. The value is its host.
    pub struct CandidateKey { lease: LeaseHex } at "/capstan/leader/{lease}" => String {
        writer: "each controller process",
        lifetime: Leased,
        prefixes: [
            /// Every candidate.
            pub struct Candidates {} at "/capstan/leader/",
        ],
    }

    /// How many leaders the kernel's controllers have had. Hosts remember it and refuse a leader from the past.
    pub struct TermKey {} at "/capstan/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }
}
