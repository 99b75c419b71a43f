//! Every key under `/capstan/` and its record type. The only file of this crate with key text.

use capstan_meta::record::LeaseHex;
use capstan_meta::{keys, names};

use crate::drain::{DrainAnswer, DrainRecord};
use crate::epoch::Epoch;
use crate::events::Event;
use crate::hosts::{HostRecord, KnownHost};
use crate::incidents::Incident;
use crate::report::{LiveReport, SelfCheck};

names! {
    /// Names a host; chosen by its operator and kept for the host's lifetime.
    pub struct HostId;

    /// Names a service that runs on hosts and answers drains: `redis`, `topics`, `docs`, `fleet`.
    pub struct ServiceName;

    /// Names a role of a host's daemon: a service, or `controller`, `console`, `meta`.
    pub struct Role;

    /// Names an event: the milliseconds since 1970 in 13 digits, a hyphen, and a random number.
    pub struct EventId;

    /// The code of a finding as a part of a key.
    pub struct IncidentCode;

    /// Names one incident of a code.
    pub struct IncidentId;
}

keys! {
    /// Every key of the control kernel, in path order.
    pub const CATALOGUE;

    /// The request to drain a host, or to return it to service. It exists until every service has taken up work again.
    pub struct DrainKey { host: HostId } at "/capstan/drains/{host}" => DrainRecord {
        writer: "the requester (operator, fleet updater); removed by the kernel's controller",
        lifetime: Durable,
        prefixes: [
            /// Every drain, with the answers.
            pub struct Drains {} at "/capstan/drains/",
        ],
    }

    /// One service's answer to a drain. Each service has its own key, so that concurrent answers do not conflict and
    /// each is guarded by the drain that it answers.
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

    /// A decision of a controller or an action of an operator. The oldest are removed when there are too many.
    pub struct EventKey { event: EventId } at "/capstan/events/{event}" => Event {
        writer: "the process that decided or acted; trimmed by the kernel's controller",
        lifetime: Durable,
        prefixes: [
            /// Every event, oldest first.
            pub struct Events {} at "/capstan/events/",
        ],
    }

    /// A host that is up: its services and addresses.
    pub struct HostKey { host: HostId } at "/capstan/hosts/{host}" => HostRecord {
        writer: "the host's daemon",
        lifetime: Leased,
        prefixes: [
            /// Every host that is up.
            pub struct Hosts {} at "/capstan/hosts/",
        ],
    }

    /// An incident that stays visible after it is over, such as data loss. A finding until an operator acknowledges it
    /// with `capstan status ack`.
    pub struct IncidentKey { code: IncidentCode, id: IncidentId } at "/capstan/incidents/{code}/{id}" => Incident {
        writer: "the process that decided, in the transaction of the decision; removed by `capstan status ack`",
        lifetime: Durable,
        prefixes: [
            /// Every incident.
            pub struct Incidents {} at "/capstan/incidents/",
            /// Every incident of one code.
            pub struct IncidentsOf { code: IncidentCode } at "/capstan/incidents/{code}/",
        ],
    }

    /// A host that was seen, whether it is up or not: its last registration, and since when it is down.
    pub struct KnownHostKey { host: HostId } at "/capstan/known/{host}" => KnownHost {
        writer: "the kernel's controller; removed by `capstan hosts remove`",
        lifetime: Durable,
        prefixes: [
            /// Every host that was seen.
            pub struct KnownHosts {} at "/capstan/known/",
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

    /// The findings of a process that last probed a service, and the time of the probe.
    pub struct LiveReportKey { service: ServiceName, reporter: HostId }
        at "/capstan/reports/{service}/{reporter}" => LiveReport {
        writer: "each controller and each host, about every second",
        lifetime: Leased,
        prefixes: [
            /// Every report.
            pub struct LiveReports {} at "/capstan/reports/",
            /// Every report about one service.
            pub struct LiveReportsOf { service: ServiceName } at "/capstan/reports/{service}/",
        ],
    }

    /// What a process finds wrong with its own machine: a full disk, an expired certificate. Written when it changes.
    pub struct SelfCheckKey { process: HostId } at "/capstan/selfchecks/{process}" => SelfCheck {
        writer: "each host and each controller, when what it finds changes",
        lifetime: Leased,
        prefixes: [
            /// Every process's.
            pub struct SelfChecks {} at "/capstan/selfchecks/",
        ],
    }

    /// The number of leaders of the kernel's controllers so far. Hosts store it and reject earlier leaders.
    pub struct TermKey {} at "/capstan/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }
}
