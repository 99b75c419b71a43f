//! What a token is made of, read through one view of the engine.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bson::{Bson, Document};
use bytes::Bytes;
use serde::{Deserialize, Serialize};

use super::index::several_values;
use super::known::{Known, Stamp};
use crate::error::DocsError;
use crate::id::Token;
use crate::language::Path;
use crate::spec::{CollectionId, CollectionSpec, IndexSpec};
use crate::storage::{Change, Engine, Pairs, StorageError, View, layout};

/// What a token knows about a collection: part of the replicated state, so every holder has the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub(super) struct Collection {
    /// The revision of the record that it was taken from.
    pub(super) version: i64,
    pub(super) spec: CollectionSpec,
    /// The numbers of the indexes that have an entry for every document of the token.
    pub(super) ready: BTreeSet<u32>,
    /// Nothing is served any more.
    pub(super) dropped: bool,
}

impl Collection {
    /// Its indexes that are not complete yet.
    pub(super) fn building(&self) -> Option<(&String, &IndexSpec)> {
        self.spec.indexes.iter().find(|(_, index)| !self.ready.contains(&index.number) && !self.dropped)
    }

    /// The index entries of a document.
    pub(super) fn entries(&self, document: &Document) -> BTreeSet<Vec<u8>> {
        let id = document.get("_id").unwrap_or(&Bson::Null);
        let indexes = self.spec.indexes.iter();
        indexes.flat_map(|(field, index)| entries_of(self.spec.id, field, index, document, id)).collect()
    }
}

/// The entries of one index for a document: one for each value and each element of an array, none for a missing field.
/// Several values have one more, by which a range with two bounds finds them.
pub(super) fn entries_of(
    collection: CollectionId,
    field: &str,
    index: &IndexSpec,
    document: &Document,
    id: &Bson,
) -> Vec<Vec<u8>> {
    let Ok(path) = Path::parse(field) else { return Vec::new() };
    let found = path.values(document);
    let several = (found.len() > 1).then(several_values);
    let values = found.iter().flat_map(|value| {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        std::iter::once(*value).chain(items)
    });
    values
        .map(short)
        .chain(several)
        .map(|value| layout::entry(collection, index.number, &value, id))
        .collect()
}

/// Bytes of a text or of binary in an index: longer ones are told apart by the document itself.
const INDEXED_BYTES: usize = 256;

/// A value as it stands in an index.
pub(super) fn short(value: &Bson) -> Bson {
    match value {
        Bson::String(text) | Bson::Symbol(text) if text.len() > INDEXED_BYTES => {
            let end = (0..=INDEXED_BYTES).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
            Bson::String(text.get(..end).unwrap_or_default().to_owned())
        }
        Bson::Symbol(text) => Bson::String(text.clone()),
        // They can be long: they are found by looking at the documents.
        Bson::Document(_) | Bson::Array(_) | Bson::Binary(_) => several_values(),
        other => other.clone(),
    }
}

/// One copy of a token's data at one moment.
pub(super) struct TokenView {
    view: Box<dyn View>,
    prefix: Vec<u8>,
    /// What other views with the same stamp have found; nothing if this one may differ from all others.
    known: Option<(Arc<Known>, Stamp)>,
}

impl TokenView {
    pub(super) fn new(engine: &dyn Engine, token: Token, generation: u32) -> TokenView {
        TokenView { view: engine.snapshot(), prefix: layout::copy_prefix(token, generation), known: None }
    }

    /// The same, with what is known of views with this stamp.
    pub(super) fn knowing(self, known: &Arc<Known>, stamp: Stamp) -> TokenView {
        TokenView { known: Some((Arc::clone(known), stamp)), ..self }
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        self.view.get(&[&self.prefix, key].concat())
    }

    /// The pairs from a key on and before another one; keys without the prefix of the copy.
    pub(super) fn range(&self, from: &[u8], before: &[u8]) -> Pairs {
        let skip = self.prefix.len();
        let pairs = self.view.range(&[&self.prefix, from].concat(), &[&self.prefix, before].concat());
        Box::new(pairs.map(move |pair| pair.map(|(key, value)| (key.slice(skip..), value))))
    }

    pub(super) fn prefixed(&self, prefix: Vec<u8>) -> Pairs {
        let (from, before) = layout::whole(prefix);
        self.range(&from, &before)
    }

    pub(super) fn document(
        &self,
        collection: CollectionId,
        id: &Bson,
    ) -> Result<Option<Document>, DocsError> {
        self.get(&layout::document(collection, id))?.as_deref().map(parse).transpose()
    }

    pub(super) fn collection(&self, id: CollectionId) -> Result<Option<Arc<Collection>>, DocsError> {
        if let Some(found) = self.known.as_ref().and_then(|(known, stamp)| known.collection(*stamp, id)) {
            return Ok(found);
        }
        let found = self.get(&layout::collection(id))?.as_deref().map(parse).transpose()?.map(Arc::new);
        if let Some((known, stamp)) = &self.known {
            known.note_collection(*stamp, id, found.clone());
        }
        Ok(found)
    }

    /// Whether it is known that no document has several values in the field of an index.
    pub(super) fn is_single(&self, id: CollectionId, index: u32) -> bool {
        self.known.as_ref().is_some_and(|(known, stamp)| known.is_single(*stamp, id, index))
    }

    /// Notes that no document has.
    pub(super) fn note_single(&self, id: CollectionId, index: u32) {
        if let Some((known, stamp)) = &self.known {
            known.note_single(*stamp, id, index);
        }
    }
}

pub(super) fn parse<T: serde::de::DeserializeOwned>(bytes: &[u8]) -> Result<T, DocsError> {
    bson::deserialize_from_slice(bytes).map_err(|error| DocsError::Broken(format!("damaged value: {error}")))
}

pub(super) fn encode<T: Serialize>(value: &T) -> Result<Bytes, DocsError> {
    let bytes = bson::serialize_to_vec(value);
    bytes.map(Bytes::from).map_err(|error| DocsError::Refused(format!("cannot be stored: {error}")))
}

/// A view with changes on top of it that are not committed yet.
pub(super) struct Draft<'v> {
    view: &'v TokenView,
    /// What the changes of earlier commands of the batch make of single keys.
    above: BTreeMap<Vec<u8>, Option<Bytes>>,
    /// The changes of the present command.
    changes: Vec<Change>,
}

impl<'v> Draft<'v> {
    pub(super) fn new(view: &'v TokenView) -> Draft<'v> {
        Draft { view, above: BTreeMap::new(), changes: Vec::new() }
    }

    pub(super) fn view(&self) -> &'v TokenView {
        self.view
    }

    pub(super) fn get(&self, key: &[u8]) -> Result<Option<Bytes>, StorageError> {
        match self.changed(key) {
            Some(value) => Ok(value),
            None => self.view.get(key),
        }
    }

    /// What the record of a collection is.
    pub(super) fn collection(&self, id: CollectionId) -> Result<Option<Arc<Collection>>, DocsError> {
        match self.changed(&layout::collection(id)) {
            Some(value) => Ok(value.as_deref().map(parse).transpose()?.map(Arc::new)),
            None => self.view.collection(id),
        }
    }

    /// What the changes make of a key, if they change it.
    fn changed(&self, key: &[u8]) -> Option<Option<Bytes>> {
        let own = self.changes.iter().rev().find_map(|change| match change {
            Change::Put(known, value) if known == key => Some(Some(value.clone())),
            Change::Delete(known) if known == key => Some(None),
            _ => None,
        });
        own.or_else(|| self.above.get(key).cloned())
    }

    pub(super) fn put(&mut self, key: Vec<u8>, value: Bytes) {
        self.changes.push(Change::Put(key.into(), value));
    }

    pub(super) fn delete(&mut self, key: Vec<u8>) {
        self.changes.push(Change::Delete(key.into()));
    }

    pub(super) fn delete_prefix(&mut self, prefix: Vec<u8>) {
        self.changes.push(Change::DeletePrefix(prefix.into()));
    }

    /// Bytes of the present command's changes.
    pub(super) fn size(&self) -> usize {
        super::entry::size(&self.changes)
    }

    /// Takes the changes of the present command: later ones see them.
    pub(super) fn take(&mut self) -> Vec<Change> {
        let changes = std::mem::take(&mut self.changes);
        for change in &changes {
            match change {
                Change::Put(key, value) => drop(self.above.insert(key.to_vec(), Some(value.clone()))),
                Change::Delete(key) => drop(self.above.insert(key.to_vec(), None)),
                Change::DeletePrefix(_) => {}
            }
        }
        changes
    }

    /// Forgets the changes of the present command.
    pub(super) fn forget(&mut self) {
        self.changes.clear();
    }
}
