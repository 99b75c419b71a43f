//! Every key of the service and its record type: the only file with key text.

use capstan_control::Epoch;
use capstan_control::keys::HostId;
use capstan_meta::record::LeaseHex;
use capstan_meta::{keys, names};

use crate::spec::Spec;
use crate::status::{Lit, Placement};

names! {
    /// Names a beacon.
    pub struct BeaconName;
}

keys! {
    /// Every key of the service, in path order.
    pub const CATALOGUE;

    /// A candidate for leading the controllers of beacons.
    pub struct CandidateKey { lease: LeaseHex } at "/example/leader/{lease}" => String {
        writer: "each controller",
        lifetime: Leased,
        prefixes: [
            /// Every candidate.
            pub struct Candidates {} at "/example/leader/",
        ],
    }

    /// A beacon that is lit on a host.
    pub struct LitKey { beacon: BeaconName, host: HostId } at "/example/lit/{beacon}/{host}" => Lit {
        writer: "the host's agent",
        lifetime: Leased,
        prefixes: [
            /// Every lit beacon.
            pub struct LitBeacons {} at "/example/lit/",
        ],
    }

    /// The hosts that are to keep a beacon lit.
    pub struct PlacementKey { beacon: BeaconName } at "/example/placement/{beacon}" => Placement {
        writer: "the controller",
        lifetime: Durable,
        prefixes: [
            /// Every placement.
            pub struct Placements {} at "/example/placement/",
        ],
    }

    /// What an operator asks for.
    pub struct SpecKey { beacon: BeaconName } at "/example/spec/{beacon}" => Spec {
        writer: "an operator",
        lifetime: Durable,
        prefixes: [
            /// Every spec.
            pub struct Specs {} at "/example/spec/",
        ],
    }

    /// The number of leaders so far.
    pub struct TermKey {} at "/example/term" => Epoch {
        writer: "each new leader, in its first transaction",
        lifetime: Durable,
    }
}
