//! Every key of the fleet and the record that it leads to. The only place of this crate with key text.
//!
//! The first part are the keys of the document, under a root that the operator chooses (`/neco/`); behind them stands
//! what Capstan adds beside them.

use capstan_control::epoch::Epoch;
use capstan_meta::election::Ballot;
use capstan_meta::record::{Empty, InvalidName, LeaseHex, Root};
use capstan_meta::{keys, names};

use crate::encoding::Nanos;
use crate::history::HistoryRecord;
use crate::lrn::Lrn;
use crate::outbox::Notice;
use crate::plan::RolloutPlan;
use crate::spec::{Orders, Policy, ReleaseRecord, Target};
use crate::status::{Desired, HostInfo, HostLease, HostStatus, Released, Request, Slots};

/// Where the document puts its keys.
pub const DEFAULT_ROOT: &str = "/neco/";

names! {
    /// Names an installed container image.
    pub struct ContainerName;

    /// Names an installed Debian package.
    pub struct PackageName;

    /// Names a group of hosts that share a policy.
    pub struct GroupName;

    /// The version of a release as a part of a key.
    pub struct ReleaseName;

    /// Names a message that waits to be sent.
    pub struct NoticeId;
}

keys! {
    /// Every key of the fleet.
    pub const CATALOGUE;

    /// A candidate for leading the updaters; the lowest create revision leads. The value is its host's name. The second
    /// slash is what the public updater writes: both kinds stand in one queue.
    pub struct CandidateKey { root: Root, lease: LeaseHex } at "{root}/leader//{lease}" => String {
        writer: "each updater",
        lifetime: Leased,
        prefixes: [
            /// Every candidate.
            pub struct Candidates { root: Root } at "{root}/leader//",
        ],
    }

    /// A host that belongs to the fleet. The value is empty.
    pub struct BootServerKey { root: Root, lrn: Lrn } at "{root}/bootservers/{lrn}" => Empty {
        writer: "whoever lets a host join or leave",
        lifetime: Durable,
        prefixes: [
            /// Every host of the fleet, in the order of the text: sort as numbers.
            pub struct BootServers { root: Root } at "{root}/bootservers/",
        ],
    }

    /// The tag of a container image that is verifiably installed on a host.
    pub struct InstalledContainerKey { root: Root, lrn: Lrn, container: ContainerName }
        at "{root}/install/{lrn}/containers/{container}" => String {
        writer: "the host's worker, in the transaction that reports the step",
        lifetime: Durable,
        prefixes: [
            /// Every image on a host.
            pub struct InstalledContainers { root: Root, lrn: Lrn } at "{root}/install/{lrn}/containers/",
        ],
    }

    /// The version of a Debian package that is verifiably installed on a host.
    pub struct InstalledDebKey { root: Root, lrn: Lrn, package: PackageName }
        at "{root}/install/{lrn}/debs/{package}" => String {
        writer: "the host's worker, in the transaction that reports the step",
        lifetime: Durable,
        prefixes: [
            /// Every package on a host.
            pub struct InstalledDebs { root: Root, lrn: Lrn } at "{root}/install/{lrn}/debs/",
            /// Everything that is installed on a host.
            pub struct InstalledOn { root: Root, lrn: Lrn } at "{root}/install/{lrn}/",
        ],
    }

    /// What the fleet is to be updated to.
    pub struct CurrentKey { root: Root } at "{root}/status/current" => Request {
        writer: "the leading updater; removed by `recover`",
        lifetime: Durable,
    }

    /// The step that hosts may run together.
    pub struct ReleasedKey { root: Root } at "{root}/status/released" => Released {
        writer: "the leading updater; removed by `recover`",
        lifetime: Durable,
    }

    /// How far a host is.
    pub struct HostStatusKey { root: Root, lrn: Lrn } at "{root}/status/bootservers/{lrn}" => HostStatus {
        writer: "the host's worker, guarded by the request that it joined",
        lifetime: Durable,
        prefixes: [
            /// The status of every host.
            pub struct HostStatuses { root: Root } at "{root}/status/bootservers/",
        ],
    }

    /// Where the fleet's events are told: a Slack webhook.
    pub struct SlackKey { root: Root } at "{root}/config/notification/slack" => String {
        writer: "an operator",
        lifetime: Durable,
        secrecy: Secret,
        prefixes: [
            /// The whole configuration.
            pub struct Config { root: Root } at "{root}/config/",
        ],
    }

    /// The proxy through which the outside is reached; never used for the metadata store.
    pub struct ProxyKey { root: Root } at "{root}/config/proxy" => String {
        writer: "an operator",
        lifetime: Durable,
        secrecy: Secret,
    }

    /// How often the source is asked for a newer release, in nanoseconds.
    pub struct CheckIntervalKey { root: Root } at "{root}/config/check-update-interval" => Nanos {
        writer: "an operator",
        lifetime: Durable,
    }

    /// How long workers may take, in nanoseconds.
    pub struct WorkerTimeoutKey { root: Root } at "{root}/config/worker-timeout-duration" => Nanos {
        writer: "an operator",
        lifetime: Durable,
    }

    /// The same under the name that other programs write; read if the document's own is absent, never written.
    pub struct ShortWorkerTimeoutKey { root: Root } at "{root}/config/worker-timeout" => Nanos {
        writer: "nobody here; other programs",
        lifetime: Durable,
    }

    /// Where releases are found: a directory or a base URL.
    pub struct SourceKey { root: Root } at "{root}/config/source" => String {
        writer: "an operator",
        lifetime: Durable,
    }

    /// Whether a newer release at the source is applied without an operator's word: `true` or `false`.
    pub struct AutoUpdateKey { root: Root } at "{root}/config/auto-update" => String {
        writer: "an operator",
        lifetime: Durable,
    }

    /// Unseals a Vault server when it starts.
    pub struct VaultUnsealKey { root: Root } at "{root}/vault-unseal-key" => String {
        writer: "an operator",
        lifetime: Durable,
        secrecy: Secret,
    }

    /// The root token of a Vault server, while it is being set up. Does not exist by default.
    pub struct VaultRootTokenKey { root: Root } at "{root}/vault-root-token" => String {
        writer: "an operator",
        lifetime: Durable,
        secrecy: Secret,
    }

    /// What is known about a host whether it is up or not.
    pub struct HostInfoKey { root: Root, lrn: Lrn } at "{root}/hosts/{lrn}/info" => HostInfo {
        writer: "whoever lets a host join",
        lifetime: Durable,
        prefixes: [
            /// What is known about every host, with leases and wishes.
            pub struct HostInfos { root: Root } at "{root}/hosts/",
            /// Everything about one host.
            pub struct HostKeys { root: Root, lrn: Lrn } at "{root}/hosts/{lrn}/",
        ],
    }

    /// The worker of a host is up.
    pub struct HostLeaseKey { root: Root, lrn: Lrn } at "{root}/hosts/{lrn}/lease" => HostLease {
        writer: "the host's worker",
        lifetime: Leased,
        prefixes: [
            /// Every worker that is up.
            pub struct HostLeases { root: Root } at "{root}/hosts/",
        ],
    }

    /// What the updater wants of one host.
    pub struct DesiredKey { root: Root, lrn: Lrn } at "{root}/hosts/{lrn}/desired" => Desired {
        writer: "the leading updater",
        lifetime: Durable,
        prefixes: [
            /// What is wanted of every host.
            pub struct Desireds { root: Root } at "{root}/hosts/",
        ],
    }

    /// The hosts of a group that may be out of service now.
    pub struct SlotsKey { root: Root, group: GroupName } at "{root}/slots/{group}" => Slots {
        writer: "the leading updater, and FleetLock requests",
        lifetime: Durable,
        prefixes: [
            /// The slots of every group.
            pub struct AllSlots { root: Root } at "{root}/slots/",
        ],
    }

    /// The rules of a group of hosts.
    pub struct PolicyKey { root: Root, group: GroupName } at "{root}/policy/{group}" => Policy {
        writer: "an operator",
        lifetime: Durable,
        prefixes: [
            /// The rules of every group.
            pub struct Policies { root: Root } at "{root}/policy/",
        ],
    }

    /// Which hosts are updated in which wave: made once per request, never changed.
    pub struct PlanKey { root: Root, generation: u64 } at "{root}/plans/{generation}" => RolloutPlan {
        writer: "the leading updater, with the request",
        lifetime: Durable,
        prefixes: [
            /// Every plan.
            pub struct Plans { root: Root } at "{root}/plans/",
        ],
    }

    /// What operators want of a rollout under way.
    pub struct OrdersKey { root: Root, generation: u64 } at "{root}/orders/{generation}" => Orders {
        writer: "operators",
        lifetime: Durable,
        prefixes: [
            /// The orders of every rollout.
            pub struct AllOrders { root: Root } at "{root}/orders/",
        ],
    }

    /// What became of a request.
    pub struct HistoryKey { root: Root, generation: u64 } at "{root}/history/{generation}" => HistoryRecord {
        writer: "the leading updater, with the request and with its end; `recover`",
        lifetime: Durable,
        prefixes: [
            /// Every request that there was.
            pub struct Histories { root: Root } at "{root}/history/",
        ],
    }

    /// A message that waits to be sent. Written with the event that it tells of, removed when it was sent.
    pub struct NoticeKey { root: Root, notice: NoticeId } at "{root}/outbox/{notice}" => Notice {
        writer: "the leading updater",
        lifetime: Durable,
        prefixes: [
            /// Every message that waits.
            pub struct Outbox { root: Root } at "{root}/outbox/",
        ],
    }

    /// The release that the fleet is to have.
    pub struct TargetKey { root: Root } at "{root}/target" => Target {
        writer: "operators, and the leading updater that finds a newer release",
        lifetime: Durable,
    }

    /// What the updater has to know of a release.
    pub struct ReleaseKey { root: Root, version: ReleaseName } at "{root}/releases/{version}" => ReleaseRecord {
        writer: "whoever applies a release, and the leading updater that finds one",
        lifetime: Durable,
        prefixes: [
            /// Every release that was found.
            pub struct Releases { root: Root } at "{root}/releases/",
        ],
    }

    /// How many leaders the updaters have had.
    pub struct TermKey { root: Root } at "{root}/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }
}

/// Where a fleet's keys begin, and its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Tree {
    root: Root,
}

impl Default for Tree {
    fn default() -> Tree {
        // The literal is a root; if it were not, the fleet would lie at the top of the tree.
        Tree { root: DEFAULT_ROOT.parse().unwrap_or_default() }
    }
}

/// Makes the keys of one fleet.
macro_rules! of_tree {
    ($($(#[$about:meta])* $name:ident: $key:ident { $($field:ident: $ty:ty),* };)*) => {
        impl Tree {
            $(
                $(#[$about])*
                #[must_use]
                pub fn $name(&self, $($field: $ty),*) -> $key {
                    $key { root: self.root.clone() $(, $field)* }
                }
            )*
        }
    };
}

of_tree! {
    /// Every candidate for leading the updaters.
    candidates: Candidates {};
    /// A host of the fleet.
    boot_server: BootServerKey { lrn: Lrn };
    /// Every host of the fleet.
    boot_servers: BootServers {};
    /// An image on a host.
    installed_container: InstalledContainerKey { lrn: Lrn, container: ContainerName };
    /// Every image on a host.
    installed_containers: InstalledContainers { lrn: Lrn };
    /// A package on a host.
    installed_deb: InstalledDebKey { lrn: Lrn, package: PackageName };
    /// Every package on a host.
    installed_debs: InstalledDebs { lrn: Lrn };
    /// Everything that is installed on a host.
    installed_on: InstalledOn { lrn: Lrn };
    /// The request.
    current: CurrentKey {};
    /// The step that hosts may run together.
    released: ReleasedKey {};
    /// How far a host is.
    host_status: HostStatusKey { lrn: Lrn };
    /// How far every host is.
    host_statuses: HostStatuses {};
    /// The webhook.
    slack: SlackKey {};
    /// The whole configuration.
    config: Config {};
    /// The proxy.
    proxy: ProxyKey {};
    /// How often the source is asked.
    check_interval: CheckIntervalKey {};
    /// How long workers may take.
    worker_timeout: WorkerTimeoutKey {};
    /// The same under the name that other programs write.
    short_worker_timeout: ShortWorkerTimeoutKey {};
    /// Where releases are found.
    source: SourceKey {};
    /// Whether newer releases are applied without an operator's word.
    auto_update: AutoUpdateKey {};
    /// Unseals a Vault server.
    vault_unseal: VaultUnsealKey {};
    /// The root token of a Vault server.
    vault_root_token: VaultRootTokenKey {};
    /// What is known about a host.
    host_info: HostInfoKey { lrn: Lrn };
    /// What is known about every host.
    host_infos: HostInfos {};
    /// Everything about one host.
    host_keys: HostKeys { lrn: Lrn };
    /// The worker of a host is up.
    host_lease: HostLeaseKey { lrn: Lrn };
    /// Every worker that is up.
    host_leases: HostLeases {};
    /// What is wanted of a host.
    desired: DesiredKey { lrn: Lrn };
    /// What is wanted of every host.
    desireds: Desireds {};
    /// The slots of a group.
    slots: SlotsKey { group: GroupName };
    /// The slots of every group.
    all_slots: AllSlots {};
    /// The rules of a group.
    policy: PolicyKey { group: GroupName };
    /// The rules of every group.
    policies: Policies {};
    /// The plan of a request.
    plan: PlanKey { generation: u64 };
    /// Every plan.
    plans: Plans {};
    /// The orders about a request.
    orders: OrdersKey { generation: u64 };
    /// The orders of every rollout.
    all_orders: AllOrders {};
    /// What became of a request.
    history: HistoryKey { generation: u64 };
    /// Every request that there was.
    histories: Histories {};
    /// A message that waits to be sent.
    notice: NoticeKey { notice: NoticeId };
    /// Every message that waits.
    outbox: Outbox {};
    /// The release that the fleet is to have.
    target: TargetKey {};
    /// What is known of a release.
    release: ReleaseKey { version: ReleaseName };
    /// Every release that was found.
    releases: Releases {};
    /// How many leaders there were.
    term: TermKey {};
}

impl Tree {
    /// A fleet whose keys begin with this text, such as `/neco/`.
    pub fn at(root: &str) -> Result<Tree, InvalidName> {
        Ok(Tree { root: root.parse()? })
    }

    /// Where the updaters elect their leader.
    #[must_use]
    pub fn ballot(&self) -> Ballot {
        Ballot::queue(&self.candidates())
    }
}

/// The group of the hosts that no other group takes.
#[must_use]
pub fn default_group() -> GroupName {
    // The literal is a name.
    GroupName::new("default").unwrap_or_else(|_| unreachable!("a literal name"))
}
