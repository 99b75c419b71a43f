//! What does a write change? Evaluated by the primary, one command after the other.

use std::collections::BTreeSet;
use std::sync::Arc;

use bson::{Bson, Document};
use bytes::Bytes;

use super::command::{MAX_DOCUMENT, Reply, Select, Target, Write};
use super::find::scan;
use super::state::{Collection, Draft, encode, entries_of, parse};
use crate::error::DocsError;
use crate::id;
use crate::language::{Filter, Update, check_names, sort_key};
use crate::spec::CollectionId;
use crate::storage::layout;

/// Documents that one step of a command over many changes.
const STEP_DOCUMENTS: usize = 500;
/// Bytes of changes after which a step ends: an entry of the log has room for it and one more document.
const STEP_BYTES: usize = 1024 * 1024;

/// Fields that only the store writes; besides them the time of the last change, which every change sets.
const OWN_FIELDS: [&str; 4] = ["_token", "_txnId", "_cre", "_attachment"];

/// What a command has come to so far.
pub(super) struct Step {
    pub(super) reply: Reply,
    /// Documents that do not admit the change, and why the first of them does not.
    pub(super) refused: Option<(i64, String)>,
    /// Where it goes on, in a batch of its own.
    pub(super) after: Option<Vec<u8>>,
}

impl Step {
    fn done(reply: Reply) -> Step {
        Step { reply, refused: None, after: None }
    }
}

/// Whether a command looks at many keys: it is evaluated on what is committed, not on a draft.
pub(super) fn is_wide(write: &Write) -> bool {
    match write {
        Write::Update { select, .. } | Write::Delete(select) => select.id.is_none(),
        Write::Define | Write::Drop => true,
        Write::Insert(_)
        | Write::Replace { .. }
        | Write::Reserve { .. }
        | Write::Release { .. }
        | Write::Chunk { .. }
        | Write::Attach { .. }
        | Write::Detach { .. }
        | Write::Restore { .. } => false,
    }
}

/// Evaluates one command, or one step of it, into the draft. After an error the draft must be forgotten.
pub(super) fn evaluate(
    draft: &mut Draft<'_>,
    target: &Target,
    write: &Write,
    after: Option<&[u8]>,
    now: i64,
) -> Result<Step, DocsError> {
    if let Write::Drop = write {
        return drop_collection(draft, target);
    }
    let collection = define(draft, target)?;
    let reply = match write {
        Write::Insert(document) => insert(draft, &collection, document, now)?,
        Write::Update { select, update } => {
            let update = Update::parse(update)?;
            return each(draft, &collection, select, after, |draft, document| {
                change(draft, &collection, document, &update, now)
            });
        }
        Write::Delete(select) => {
            return each(draft, &collection, select, after, |draft, document| {
                delete(draft, &collection, document)
            });
        }
        Write::Replace { id, document } => replace(draft, &collection, id, document, now)?,
        Write::Define => Reply::Changed(Vec::new()),
        Write::Drop => return drop_collection(draft, target),
        Write::Reserve { index, value, id, instead_of, mark } => {
            let key = layout::reservation(collection.spec.id, *index, value);
            reserve(draft, key, id, instead_of.as_deref(), mark.as_ref())?
        }
        Write::Release { index, value, id, mark, if_made } => {
            let key = layout::reservation(collection.spec.id, *index, value);
            release(draft, key, id, mark.as_ref(), *if_made)?
        }
        Write::Chunk { id, file, number, bytes } => {
            find_one(draft, collection.spec.id, id)?;
            let key = layout::chunk(collection.spec.id, id, file, *number);
            draft.put(key, Bytes::copy_from_slice(&bytes.bytes));
            Reply::Changed(Vec::new())
        }
        Write::Attach { id, file, about } => attach(draft, &collection, id, file, about, now)?,
        Write::Detach { id, file } => detach(draft, &collection, id, file, now)?,
        Write::Restore { documents, chunks } => restore(draft, &collection, documents, chunks)?,
    };
    Ok(Step::done(reply))
}

/// The collection as the token is to know it: as the command does, if that is newer.
fn define(draft: &mut Draft<'_>, target: &Target) -> Result<Arc<Collection>, DocsError> {
    let key = layout::collection(target.spec.id);
    let next = match draft.collection(target.spec.id)? {
        Some(known) if known.dropped || known.version > target.version => return Err(DocsError::Stale),
        Some(known) if known.version == target.version => return Ok(known),
        Some(known) => redefine(draft, &known, target),
        // There is no document yet, so there is nothing to index.
        None => Collection {
            version: target.version,
            spec: target.spec.clone(),
            ready: target.spec.indexes.values().map(|index| index.number).collect(),
            dropped: false,
        },
    };
    draft.put(key, encode(&next)?);
    Ok(Arc::new(next))
}

fn redefine(draft: &mut Draft<'_>, known: &Collection, target: &Target) -> Collection {
    let numbers: BTreeSet<u32> = target.spec.indexes.values().map(|index| index.number).collect();
    for index in known.spec.indexes.values().filter(|index| !numbers.contains(&index.number)) {
        draft.delete_prefix(layout::index(known.spec.id, index.number));
        draft.delete_prefix(layout::reservations(known.spec.id, index.number));
    }
    let ready = known.ready.intersection(&numbers).copied().collect();
    Collection { version: target.version, spec: target.spec.clone(), ready, dropped: false }
}

fn drop_collection(draft: &mut Draft<'_>, target: &Target) -> Result<Step, DocsError> {
    let id = target.spec.id;
    let mut gone = CollectionSpecOf(target).without_indexes();
    gone.version = target.version;
    draft.put(layout::collection(id), encode(&gone)?);
    layout::everything_of(id).for_each(|prefix| draft.delete_prefix(prefix));
    Ok(Step::done(Reply::Changed(Vec::new())))
}

/// What stays of a collection that was dropped: enough to refuse late commands.
struct CollectionSpecOf<'t>(&'t Target);

impl CollectionSpecOf<'_> {
    fn without_indexes(&self) -> Collection {
        let mut spec = self.0.spec.clone();
        spec.indexes.clear();
        Collection { version: self.0.version, spec, ready: BTreeSet::new(), dropped: true }
    }
}

fn insert(
    draft: &mut Draft<'_>,
    collection: &Collection,
    document: &Document,
    now: i64,
) -> Result<Reply, DocsError> {
    let id = document.get("_id").cloned().ok_or_else(|| DocsError::refused("the document has no _id"))?;
    if draft.get(&layout::document(collection.spec.id, &id))?.is_some() {
        return Err(DocsError::Duplicate(format!("a document with the id {id} is there already")));
    }
    let mut document = document.clone();
    document.insert("_cre", now);
    document.insert("_chg", now);
    put(draft, collection, None, &document)?;
    Ok(Reply::Changed(vec![id]))
}

/// Writes a document with its index entries.
fn put(
    draft: &mut Draft<'_>,
    collection: &Collection,
    before: Option<&Document>,
    document: &Document,
) -> Result<(), DocsError> {
    let id = document.get("_id").unwrap_or(&Bson::Null);
    let bytes = encode(document)?;
    if bytes.len() > MAX_DOCUMENT {
        return Err(DocsError::TooLarge(format!("a document has at most {MAX_DOCUMENT} bytes")));
    }
    let (old, new) = (before.map(|before| collection.entries(before)), collection.entries(document));
    let old = old.unwrap_or_default();
    old.difference(&new).for_each(|entry| draft.delete(entry.clone()));
    new.difference(&old).for_each(|entry| draft.put(entry.clone(), Bytes::new()));
    draft.put(layout::document(collection.spec.id, id), bytes);
    Ok(())
}

fn find_one(draft: &Draft<'_>, collection: CollectionId, id: &Bson) -> Result<Document, DocsError> {
    let found = draft.get(&layout::document(collection, id))?;
    found.as_deref().map(parse).transpose()?.ok_or_else(|| DocsError::NotFound("Not found".to_owned()))
}

/// Does something with each document that is selected; over many, in steps.
fn each(
    draft: &mut Draft<'_>,
    collection: &Collection,
    select: &Select,
    after: Option<&[u8]>,
    mut act: impl FnMut(&mut Draft<'_>, &Document) -> Result<(), DocsError>,
) -> Result<Step, DocsError> {
    let filter = Filter::parse(&select.filter)?;
    let mut changed = Vec::new();
    if let Some(id) = &select.id {
        let found = draft.get(&layout::document(collection.spec.id, id))?;
        let found: Option<Document> = found.as_deref().map(parse).transpose()?;
        if let Some(document) = found.filter(|found| filter.matches(found) && is_unchanged(found, select)) {
            act(draft, &document)?;
            changed.push(id.clone());
        }
        return Ok(Step::done(Reply::Changed(changed)));
    }
    let view = draft.view();
    let (start, end) = layout::whole(layout::documents(collection.spec.id));
    let from = after.map_or(start, <[u8]>::to_vec);
    let mut refused: Option<(i64, String)> = None;
    for pair in view.range(&from, &end) {
        let (key, value) = pair?;
        let document: Document = parse(&value)?;
        if !filter.matches(&document) {
            continue;
        }
        match act(draft, &document) {
            Ok(()) => changed.push(document.get("_id").cloned().unwrap_or(Bson::Null)),
            // Nothing of it is in the draft; the other documents are changed all the same.
            Err(error @ (DocsError::Refused(_) | DocsError::TooLarge(_))) if !select.one => {
                refused.get_or_insert_with(|| (0, error.to_string())).0 += 1;
            }
            Err(error) => return Err(error),
        }
        if select.one {
            break;
        }
        if changed.len() >= STEP_DOCUMENTS || draft.size() >= STEP_BYTES {
            let after = [&key[..], &[0]].concat();
            return Ok(Step { reply: Reply::Changed(changed), refused, after: Some(after) });
        }
    }
    Ok(Step { reply: Reply::Changed(changed), refused, after: None })
}

fn is_unchanged(document: &Document, select: &Select) -> bool {
    select.unchanged.as_ref().is_none_or(|wanted| change_of(document) == *wanted)
}

/// What tells one version of a document from another.
pub(crate) fn change_of(document: &Document) -> String {
    let field = |name: &str| document.get(name).map(ToString::to_string).unwrap_or_default();
    format!("{}/{}", field("_txnId"), field("_chg"))
}

fn change(
    draft: &mut Draft<'_>,
    collection: &Collection,
    document: &Document,
    update: &Update,
    now: i64,
) -> Result<(), DocsError> {
    let mut next = update.apply(document)?;
    check_key(collection, document, &next)?;
    check_stored(document, &next)?;
    touch(&mut next, document, now);
    put(draft, collection, Some(document), &next)
}

/// Notes the time of a change. It always grows, so that it tells versions of a document apart.
fn touch(next: &mut Document, before: &Document, now: i64) {
    let earlier = before.get("_chg").and_then(Bson::as_i64).unwrap_or(0);
    next.insert("_chg", now.max(earlier + 1));
}

/// The id and the fields of the primary key stay as they are.
fn check_key(collection: &Collection, before: &Document, after: &Document) -> Result<(), DocsError> {
    let same_id = before.get("_id") == after.get("_id");
    let key = &collection.spec.primary_key;
    let same_key = !collection.spec.has_key() || id::of_key(after, key).ok().as_ref() == after.get("_id");
    if same_id && same_key {
        return Ok(());
    }
    Err(DocsError::refused("id validation failed: the fields of the primary key cannot be changed"))
}

/// An update leaves the store's own fields as they are, and a document that can be stored.
fn check_stored(before: &Document, after: &Document) -> Result<(), DocsError> {
    let value = |document: &Document, field: &str| document.get(field).map(sort_key);
    if let Some(field) = OWN_FIELDS.iter().find(|field| value(before, field) != value(after, field)) {
        return Err(DocsError::refused(format!("`{field}` is written by the store and cannot be changed")));
    }
    // Files may have names that fields may not.
    let mut rest = after.clone();
    rest.remove("_attachment");
    Ok(check_names(&rest)?)
}

fn replace(
    draft: &mut Draft<'_>,
    collection: &Collection,
    id: &Bson,
    document: &Document,
    now: i64,
) -> Result<Reply, DocsError> {
    let before = find_one(draft, collection.spec.id, id)?;
    let mut next = document.clone();
    // The id stays as it is stored: a number may have come as one of another size.
    for field in std::iter::once("_id").chain(OWN_FIELDS) {
        match before.get(field) {
            Some(value) => drop(next.insert(field, value.clone())),
            None => drop(next.remove(field)),
        }
    }
    touch(&mut next, &before, now);
    check_key(collection, &before, &next)?;
    put(draft, collection, Some(&before), &next)?;
    Ok(Reply::Changed(vec![id.clone()]))
}

fn delete(draft: &mut Draft<'_>, collection: &Collection, document: &Document) -> Result<(), DocsError> {
    let id = document.get("_id").unwrap_or(&Bson::Null);
    collection.entries(document).into_iter().for_each(|entry| draft.delete(entry));
    draft.delete(layout::document(collection.spec.id, id));
    if document.contains_key("_attachment") {
        for pair in draft.view().prefixed(layout::attachments(collection.spec.id, id)) {
            let (key, _) = pair?;
            draft.delete(key.to_vec());
        }
    }
    Ok(())
}

/// A value belongs to one document. Another one gets it only in place of the owner that it names. A reservation has the
/// mark of the request that asked for it last.
fn reserve(
    draft: &mut Draft<'_>,
    key: Vec<u8>,
    id: &Bson,
    instead_of: Option<&Bson>,
    mark: Option<&String>,
) -> Result<Reply, DocsError> {
    let known: Option<Document> = draft.get(&key)?.as_deref().map(parse).transpose()?;
    let owner = known.as_ref().and_then(|known| known.get("id"));
    let is_own = owner == Some(id);
    if !(owner.is_none() || is_own || owner == instead_of) {
        return Ok(Reply::Reserved(owner.cloned()));
    }
    if !is_own || mark.is_some() {
        let record = bson::doc! { "id": id.clone(), "mark": mark.cloned(), "made": !is_own };
        draft.put(key, encode(&record)?);
    }
    Ok(Reply::Reserved(Some(id.clone())))
}

fn release(
    draft: &mut Draft<'_>,
    key: Vec<u8>,
    id: &Bson,
    mark: Option<&String>,
    if_made: bool,
) -> Result<Reply, DocsError> {
    let known: Option<Document> = draft.get(&key)?.as_deref().map(parse).transpose()?;
    let known = known.unwrap_or_default();
    let is_last = mark.is_none_or(|mark| known.get_str("mark").is_ok_and(|last| last == mark));
    let is_made = !if_made || known.get_bool("made").unwrap_or(true);
    if known.get("id") == Some(id) && is_last && is_made {
        draft.delete(key);
    }
    Ok(Reply::Reserved(None))
}

fn attach(
    draft: &mut Draft<'_>,
    collection: &Collection,
    id: &Bson,
    file: &str,
    about: &Document,
    now: i64,
) -> Result<Reply, DocsError> {
    let before = find_one(draft, collection.spec.id, id)?;
    let mut next = before.clone();
    let mut files = next.get("_attachment").and_then(Bson::as_document).cloned().unwrap_or_default();
    let replaced = files.insert(file, about.clone());
    next.insert("_attachment", files);
    touch(&mut next, &before, now);
    put(draft, collection, Some(&before), &next)?;
    delete_chunks(draft, collection.spec.id, id, replaced.as_ref())?;
    Ok(Reply::Changed(vec![id.clone()]))
}

fn detach(
    draft: &mut Draft<'_>,
    collection: &Collection,
    id: &Bson,
    file: &str,
    now: i64,
) -> Result<Reply, DocsError> {
    let before = find_one(draft, collection.spec.id, id)?;
    let mut next = before.clone();
    let mut files = next.get("_attachment").and_then(Bson::as_document).cloned().unwrap_or_default();
    let Some(removed) = files.remove(file) else {
        return Err(DocsError::NotFound("Attachment not found".to_owned()));
    };
    if files.is_empty() {
        next.remove("_attachment")
    } else {
        next.insert("_attachment", files)
    };
    touch(&mut next, &before, now);
    put(draft, collection, Some(&before), &next)?;
    delete_chunks(draft, collection.spec.id, id, Some(&removed))?;
    Ok(Reply::Changed(vec![id.clone()]))
}

fn restore(
    draft: &mut Draft<'_>,
    collection: &Collection,
    documents: &[Document],
    chunks: &[(bson::Binary, bson::Binary)],
) -> Result<Reply, DocsError> {
    let mut ids = Vec::with_capacity(documents.len());
    for document in documents {
        let id = document.get("_id").cloned().ok_or_else(|| DocsError::refused("a document has no _id"))?;
        let before = draft.get(&layout::document(collection.spec.id, &id))?;
        let before: Option<Document> = before.as_deref().map(parse).transpose()?;
        put(draft, collection, before.as_ref(), document)?;
        ids.push(id);
    }
    for (key, bytes) in chunks {
        let key = [layout::files(collection.spec.id), key.bytes.clone()].concat();
        draft.put(key, Bytes::copy_from_slice(&bytes.bytes));
    }
    Ok(Reply::Changed(ids))
}

/// Deletes the pieces of a file that was replaced or removed; they are stored under the name of their upload.
fn delete_chunks(
    draft: &mut Draft<'_>,
    collection: CollectionId,
    id: &Bson,
    about: Option<&Bson>,
) -> Result<(), DocsError> {
    let upload = about.and_then(Bson::as_document).and_then(|about| about.get_str("_upload").ok());
    let Some(upload) = upload else { return Ok(()) };
    for pair in draft.view().prefixed(layout::attachment(collection, id, upload)) {
        let (key, _) = pair?;
        draft.delete(key.to_vec());
    }
    Ok(())
}

/// One step of building an index. Returns where to go on; nothing when the index is complete.
pub(super) fn build(
    draft: &mut Draft<'_>,
    collection: &Collection,
    after: Option<&[u8]>,
) -> Result<Option<Vec<u8>>, DocsError> {
    let Some((field, index)) = collection.building() else { return Ok(None) };
    let id = collection.spec.id;
    for (count, pair) in scan(draft.view(), id, after).enumerate() {
        let (key, value) = pair?;
        if count >= STEP_DOCUMENTS || draft.size() >= STEP_BYTES {
            return Ok(Some(key.to_vec()));
        }
        let document: Document = parse(&value)?;
        let document_id = document.get("_id").unwrap_or(&Bson::Null);
        for entry in entries_of(id, field, index, &document, document_id) {
            draft.put(entry, Bytes::new());
        }
    }
    let mut complete = collection.clone();
    complete.ready.insert(index.number);
    draft.put(layout::collection(id), encode(&complete)?);
    Ok(None)
}
