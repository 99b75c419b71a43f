//! What is asked of a token, and what it answers. Crosses between nodes as BSON.

use bson::{Bson, Document};
use serde::{Deserialize, Serialize};

use crate::spec::{CollectionId, CollectionSpec};

/// Bytes of a document: with its index entries it must fit into one log entry.
pub(crate) const MAX_DOCUMENT: usize = 2 * 1024 * 1024;

/// A collection as the asking node knows it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Target {
    /// The revision of its record.
    pub(crate) version: i64,
    pub(crate) spec: CollectionSpec,
}

/// Something that is asked of one token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Command {
    Write(Target, Write),
    Read(Target, Read),
    /// Count and digest of everything: equal on every holder that has applied the same.
    Digest,
    /// How far the primary has applied its log.
    Position {},
    /// What changed in a collection from an offset of the log on; waits a while for news.
    Changes {
        collection: CollectionId,
        from: i64,
    },
}

/// A change. Ids and times are chosen before it is evaluated or by the primary, never by the state machine.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Write {
    Insert(Document),
    Update {
        select: Select,
        update: Document,
    },
    Replace {
        id: Bson,
        document: Document,
    },
    Delete(Select),
    /// Takes note of the collection's record, and has its indexes built.
    Define,
    /// Deletes every document; no command for this collection is served afterwards.
    Drop,
    Reserve {
        index: u32,
        value: Bson,
        id: Bson,
        instead_of: Option<Box<Bson>>,
        /// The request that reserves it.
        #[serde(default)]
        mark: Option<String>,
    },
    Release {
        index: u32,
        value: Bson,
        id: Bson,
        /// Only if this request was the last one that reserved it.
        #[serde(default)]
        mark: Option<String>,
        /// Only if it was that request that made the reservation, not an earlier one for the same document.
        #[serde(default)]
        if_made: bool,
    },
    Chunk {
        id: Bson,
        file: String,
        number: u32,
        bytes: bson::Binary,
    },
    Attach {
        id: Bson,
        file: String,
        about: Document,
    },
    Detach {
        id: Bson,
        file: String,
    },
    /// Puts documents and pieces of files as they were when they were saved, whatever is there.
    Restore {
        documents: Vec<Document>,
        /// The end of the piece's key, and the piece.
        chunks: Vec<(bson::Binary, bson::Binary)>,
    },
}

/// Which documents of the token.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Select {
    /// Only this one.
    pub(crate) id: Option<Bson>,
    pub(crate) filter: Document,
    /// Only the first one.
    pub(crate) one: bool,
    /// Only a document whose last change has this id: an optimistic update.
    pub(crate) unchanged: Option<String>,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Read {
    Get(Bson),
    Find(Box<Query>),
    Count(Document),
    Group { filter: Document, field: String },
    Chunk { id: Bson, file: String, number: u32 },
    Reservation { index: u32, value: Bson },
}

/// A query of one token.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Query {
    pub(crate) filter: Document,
    pub(crate) sort: Option<Document>,
    pub(crate) projection: Option<Bson>,
    /// The most documents that are wanted.
    pub(crate) limit: i64,
    /// Only ids behind this one.
    pub(crate) after: Option<Bson>,
    pub(crate) ids_only: bool,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) enum Reply {
    /// The ids of the documents that were changed.
    Changed(Vec<Bson>),
    /// As above; some other documents do not admit the change.
    Partly {
        changed: Vec<Bson>,
        refused: i64,
        /// Why the first of them does not.
        reason: String,
    },
    Document(Option<Document>),
    Documents(Found),
    Count(i64),
    Groups(Vec<(Bson, i64)>),
    Bytes(Option<bson::Binary>),
    /// The document that has reserved the value.
    Reserved(Option<Bson>),
    Digest {
        documents: i64,
        digest: String,
        applied: i64,
    },
    Changes {
        changes: Vec<Changed>,
        /// Where to go on.
        next: i64,
    },
}

/// A change of one document.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(crate) struct Changed {
    /// The offset of its log entry.
    pub(crate) offset: i64,
    /// The document as it is now; nothing if it was deleted.
    pub(crate) document: Option<Document>,
    /// Its id; nothing if the whole collection was dropped.
    pub(crate) id: Option<Bson>,
}

/// What a token found.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Found {
    pub(crate) documents: Vec<Document>,
    /// There are more documents behind the last one.
    pub(crate) more: bool,
    /// How they were found: the index, or nothing if all documents were looked at.
    pub(crate) index: Option<String>,
    /// Documents that were looked at.
    pub(crate) looked_at: i64,
}
