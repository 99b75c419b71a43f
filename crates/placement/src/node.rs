//! What is a node, and what may it hold?

use std::fmt;
use std::sync::Arc;

use serde::{Deserialize, Serialize};

use crate::error::PlacementError;

/// The maximum length of a name, in bytes: fits any host name label and keeps keys short.
const MAX_NAME_BYTES: usize = 128;

/// The name of a node in assignments, plans and commands.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct NodeName(Arc<str>);

impl NodeName {
    /// A name that is valid in keys, lists and commands.
    pub fn new(text: impl AsRef<str>) -> Result<Self, PlacementError> {
        checked(text.as_ref()).map(|text| Self(Arc::from(text)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Failure domain of a node (rack, zone, power feed): copies of a shard are spread over domains.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Domain(Arc<str>);

impl Domain {
    /// A domain name under the same rules as a node name.
    pub fn new(text: impl AsRef<str>) -> Result<Self, PlacementError> {
        checked(text.as_ref()).map(|text| Self(Arc::from(text)))
    }

    /// The name as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

fn checked(text: &str) -> Result<&str, PlacementError> {
    let bad = |reason| Err(PlacementError::BadName { name: text.chars().take(140).collect(), reason });
    if text.is_empty() {
        return bad("it is empty");
    }
    if text.len() > MAX_NAME_BYTES {
        return bad("it is too long");
    }
    if !text.chars().all(|c| c.is_ascii_alphanumeric() || "._-:/@".contains(c)) {
        return bad("it contains another character");
    }
    Ok(text)
}

macro_rules! name_conversions {
    ($($name:ident),*) => {$(
        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.pad(&self.0)
            }
        }
        impl TryFrom<String> for $name {
            type Error = PlacementError;
            fn try_from(text: String) -> Result<Self, PlacementError> {
                Self::new(text)
            }
        }
        impl From<$name> for String {
            fn from(name: $name) -> String {
                name.0.to_string()
            }
        }
    )*};
}
name_conversions!(NodeName, Domain);

/// Relative size of a node: one of weight 2 gets twice the copies of one of weight 1.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "u64", into = "u64")]
pub struct Weight(u32);

impl Weight {
    /// Machines of one cluster do not differ by more; a larger number is a typing error.
    pub const MAX: u32 = 10_000;
    /// The default weight.
    pub const ONE: Weight = Weight(1);

    /// A weight in `1..=Weight::MAX`.
    pub fn new(weight: u64) -> Result<Self, PlacementError> {
        match u32::try_from(weight) {
            Ok(w) if (1..=Self::MAX).contains(&w) => Ok(Self(w)),
            Ok(_) | Err(_) => Err(PlacementError::BadWeight { weight, max: Self::MAX }),
        }
    }

    /// The weight as a number.
    pub fn get(self) -> u32 {
        self.0
    }
}

impl TryFrom<u64> for Weight {
    type Error = PlacementError;
    fn try_from(weight: u64) -> Result<Self, PlacementError> {
        Self::new(weight)
    }
}

impl From<Weight> for u64 {
    fn from(weight: Weight) -> u64 {
        u64::from(weight.0)
    }
}

/// The state of a node, from the operator and the failure detector.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeState {
    /// Holds copies and takes more.
    Serving,
    /// Serves its copies until they are elsewhere; takes no more.
    Retiring,
    /// Its copies are lost.
    Gone,
}

/// A node as input of the planner.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Node {
    /// Its name.
    pub name: NodeName,
    /// Relative size.
    pub weight: Weight,
    /// Failure domain; a node without one is its own domain.
    pub domain: Option<Domain>,
    /// Its state.
    pub state: NodeState,
}

impl Node {
    /// A serving node of weight one in its own domain.
    pub fn new(name: NodeName) -> Self {
        Self { name, weight: Weight::ONE, domain: None, state: NodeState::Serving }
    }

    /// The same node with another weight.
    pub fn weighing(self, weight: Weight) -> Self {
        Self { weight, ..self }
    }

    /// The same node in a failure domain.
    pub fn within(self, domain: Domain) -> Self {
        Self { domain: Some(domain), ..self }
    }

    /// The same node in another state.
    pub fn being(self, state: NodeState) -> Self {
        Self { state, ..self }
    }
}
