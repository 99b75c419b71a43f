//! What users ask for: the cluster, databases, collections, indexes, access keys, users.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;

use capstan_control::cron::Cron;
use capstan_meta::json_records;
use capstan_meta::record::Extra;
use serde::{Deserialize, Serialize};

/// The cluster: how many tokens, how many copies. Fixed when it is created.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ClusterSpec {
    /// Hex digits of a token's name: 16 to the power of it is the number of tokens.
    pub token_digits: u8,
    /// Copies of each token.
    pub copies: usize,
    /// Copies on which a write is durable before it is acknowledged.
    pub min_copies: usize,
    /// Whether a node that appears takes part at once, without `capstan docs add`.
    #[serde(default = "yes")]
    pub auto_add: bool,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

fn yes() -> bool {
    true
}

impl Default for ClusterSpec {
    fn default() -> ClusterSpec {
        ClusterSpec { token_digits: 1, copies: 3, min_copies: 2, auto_add: true, extra: Extra::default() }
    }
}

/// A database.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct DatabaseSpec {
    /// When it was created, in seconds since 1970.
    pub created_at: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Tells a collection from every other one, also from an earlier one of the same name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub struct CollectionId(pub u64);

impl fmt::Display for CollectionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:016x}", self.0)
    }
}

impl FromStr for CollectionId {
    type Err = String;

    fn from_str(text: &str) -> Result<CollectionId, String> {
        let number = u64::from_str_radix(text, 16).ok().filter(|_| text.len() == 16);
        number.map(CollectionId).ok_or_else(|| format!("`{text}` is not the id of a collection"))
    }
}

impl From<CollectionId> for String {
    fn from(id: CollectionId) -> String {
        id.to_string()
    }
}

impl TryFrom<String> for CollectionId {
    type Error = String;

    fn try_from(text: String) -> Result<CollectionId, String> {
        text.parse()
    }
}

/// A collection and its indexes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct CollectionSpec {
    /// Which collection of this name it is.
    pub id: CollectionId,
    /// The fields of which a document's id is made; `_id` alone if ids are given or random.
    pub primary_key: Vec<String>,
    /// Its indexes, by field.
    #[serde(default)]
    pub indexes: BTreeMap<String, IndexSpec>,
    /// The number of the next index: numbers are not used again.
    #[serde(default)]
    pub next_index: u32,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

impl CollectionSpec {
    /// A collection without indexes.
    #[must_use]
    pub fn new(id: CollectionId, primary_key: Vec<String>) -> CollectionSpec {
        CollectionSpec { id, primary_key, indexes: BTreeMap::new(), next_index: 0, extra: Extra::default() }
    }

    /// Whether ids are made from the document's fields.
    #[must_use]
    pub fn has_key(&self) -> bool {
        self.primary_key != ["_id"]
    }
}

/// An index on one field, which may be a dotted path.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct IndexSpec {
    /// Its number in the collection.
    pub number: u32,
    /// No two documents of the collection have the same value.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub unique: bool,
    /// Documents are deleted so many seconds after the time in the field.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_after_seconds: Option<u64>,
    /// Documents are deleted at the time in the field.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub expires_at: bool,
    /// The options as they were given, which is how they are listed.
    #[serde(default)]
    pub options: serde_json::Value,
}

/// A key that opens one database, or all.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct AccessKey {
    /// The database; nothing means all of them and the administration.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub database: Option<String>,
    /// What it is for.
    #[serde(default)]
    pub app: String,
    /// SHA-256 of the key, in hex. Keys are random, so a slow hash would add nothing.
    pub hash: String,
    /// When it was made, in seconds since 1970.
    pub created_at: u64,
    /// When it ends, in seconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub expires_at: Option<u64>,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// A user of the administration.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct User {
    /// Salt and repeated SHA-256 of the password.
    pub password: String,
    /// Where to reach the user.
    #[serde(default)]
    pub email: String,
    /// The database that the user works with; `*` for all.
    #[serde(default)]
    pub db: String,
    /// Whether the user may administrate.
    #[serde(default)]
    pub admin: bool,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

/// Which collections are saved.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupScope {
    /// The database; `*` for all of them.
    #[serde(rename = "dbName")]
    pub database: String,
    /// The collection; `*` for all of them.
    #[serde(rename = "collName")]
    pub collection: String,
}

impl Default for BackupScope {
    fn default() -> BackupScope {
        BackupScope { database: "*".to_owned(), collection: "*".to_owned() }
    }
}

impl BackupScope {
    /// Whether a collection is saved.
    #[must_use]
    pub fn has(&self, database: &str, collection: &str) -> bool {
        let is = |wanted: &str, name: &str| wanted == "*" || wanted == name;
        is(&self.database, database) && is(&self.collection, collection)
    }
}

/// How long a backup is kept.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Retention {
    /// A week.
    #[serde(rename = "1w")]
    Week,
    /// 30 days.
    #[serde(rename = "1m")]
    Month,
    /// 90 days.
    #[serde(rename = "3m")]
    Quarter,
    /// 365 days.
    #[serde(rename = "1y")]
    Year,
}

impl Retention {
    /// Seconds for which a backup is kept.
    #[must_use]
    pub fn seconds(self) -> u64 {
        let days = match self {
            Retention::Week => 7,
            Retention::Month => 30,
            Retention::Quarter => 90,
            Retention::Year => 365,
        };
        days * 24 * 60 * 60
    }
}

/// Backups that are made by themselves.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct BackupSchedule {
    /// What is saved.
    #[serde(flatten)]
    pub scope: BackupScope,
    /// The minutes in which a backup begins, in UTC.
    pub schedule: Cron,
    /// How long each backup is kept; nothing means for ever.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub retention: Option<Retention>,
    /// When the last one began, in seconds since 1970.
    #[serde(default)]
    pub last_run: u64,
    /// Fields of newer versions.
    #[serde(flatten)]
    pub extra: Extra,
}

json_records!(ClusterSpec, DatabaseSpec, CollectionSpec, AccessKey, User, BackupSchedule);
