//! What holders report while they run.

use std::net::SocketAddr;

use capstan_log::HolderId;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

/// The report of a running holder.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct HolderStatus {
    /// Its address for other holders.
    pub address: SocketAddr,
    /// Free bytes of its disk, rounded: a small change is not worth a write to the metadata.
    pub free_bytes: u64,
    /// Total bytes of its disk.
    pub total_bytes: u64,
    /// Holders of common logs that do not respond although they may be up.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unreachable: Vec<HolderId>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(HolderStatus);

/// The resolution of the reported free space: this fraction of the disk.
const STEPS: u64 = 64;

impl HolderStatus {
    /// A holder at this address on a disk of this size.
    #[must_use]
    pub fn new(address: SocketAddr, free_bytes: u64, total_bytes: u64) -> HolderStatus {
        let step = (total_bytes / STEPS).max(1);
        let free_bytes = free_bytes / step * step;
        HolderStatus { address, free_bytes, total_bytes, unreachable: Vec::new(), extra: Extra::default() }
    }
}
