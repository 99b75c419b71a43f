//! What users ask for.

use capstan_meta::json_records;
use serde::{Deserialize, Serialize};

/// The spec of a beacon.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spec {
    /// The number of hosts on which it must be lit.
    pub copies: usize,
}

json_records!(Spec);
