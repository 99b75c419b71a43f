//! What does a read find? Pure over one view of a token.

use std::collections::BTreeMap;

use bson::{Bson, Document};
use sha2::{Digest as _, Sha256};

use super::command::{Found, Query, Read, Reply, Target};
use super::index::{Lookup, id_of_entry, lookup};
use super::state::{Collection, TokenView, parse};
use crate::error::DocsError;
use crate::language::{Filter, Projection, Sort, sort_key};
use crate::router::unexpected;
use crate::spec::CollectionId;
use crate::storage::{Pairs, layout};

/// Bytes of documents in one answer; the rest is fetched behind the last one.
const MAX_BYTES: usize = 8 * 1024 * 1024;
/// Documents that a sorted query may look at: they are in memory together.
const MAX_SORTED: usize = 100_000;
/// Different values of one grouping.
const MAX_GROUPS: usize = 10_000;

/// A read that is understood: parsed once, and asked of many tokens.
pub(crate) struct Question<'r> {
    read: &'r Read,
    search: Option<Search>,
}

/// What a query looks for.
struct Search {
    filter: Filter,
    sort: Option<Sort>,
    projection: Projection,
}

impl Question<'_> {
    pub(crate) fn of(read: &Read) -> Result<Question<'_>, DocsError> {
        let search = match read {
            Read::Find(query) => Some(Search::of(query)?),
            Read::Get(_)
            | Read::Count(_)
            | Read::Group { .. }
            | Read::Chunk { .. }
            | Read::Reservation { .. } => None,
        };
        Ok(Question { read, search })
    }
}

impl Search {
    fn of(query: &Query) -> Result<Search, DocsError> {
        let sort = query.sort.as_ref().map(|sort| Sort::parse(&Bson::Document(sort.clone()))).transpose()?;
        let projection = query.projection.as_ref().map(Projection::parse).transpose()?.unwrap_or_default();
        Ok(Search { filter: Filter::parse(&query.filter)?, sort, projection })
    }
}

/// What is left of the bounds of one request, over all tokens that it asks.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Allowance {
    /// Index entries, and the documents that they lead to.
    entries: usize,
    /// Bytes of documents.
    bytes: usize,
}

impl Allowance {
    /// What a task may do without holding up others: half a millisecond or so.
    pub(crate) const LITTLE: Allowance = Allowance { entries: 128, bytes: 256 * 1024 };
    const UNLIMITED: Allowance = Allowance { entries: usize::MAX, bytes: usize::MAX };
}

/// Answers a query through an index that leads to few documents; nothing if it does not.
pub(super) fn read_little(
    view: &TokenView,
    target: &Target,
    question: &Question<'_>,
    left: &mut Allowance,
) -> Result<Option<Reply>, DocsError> {
    let (Read::Find(query), Some(search)) = (question.read, &question.search) else { return Ok(None) };
    let Some(collection) = view.collection(target.spec.id)? else {
        return Ok(Some(nothing(question.read)));
    };
    if collection.dropped {
        return Err(DocsError::Stale);
    }
    match Candidates::of_index(view, &collection, &search.filter, query.after.as_ref(), left.entries)? {
        Some(candidates) => Ok(find(view, candidates, query, search, left)?.map(Reply::Documents)),
        None => Ok(None),
    }
}

/// Answers a read.
pub(super) fn read(view: &TokenView, target: &Target, question: &Question<'_>) -> Result<Reply, DocsError> {
    let (id, read) = (target.spec.id, question.read);
    let Some(collection) = view.collection(id)? else { return Ok(nothing(read)) };
    if collection.dropped {
        return Err(DocsError::Stale);
    }
    match read {
        Read::Get(document) => Ok(Reply::Document(view.document(id, document)?)),
        Read::Find(query) => {
            let search = question.search.as_ref().ok_or_else(unexpected)?;
            let candidates = Candidates::new(view, &collection, &search.filter, query.after.as_ref())?;
            let found = find(view, candidates, query, search, &mut { Allowance::UNLIMITED })?;
            found.map(Reply::Documents).ok_or_else(unexpected)
        }
        Read::Count(filter) => count(view, &collection, filter).map(Reply::Count),
        Read::Group { filter, field } => group(view, &collection, filter, field).map(Reply::Groups),
        Read::Chunk { id: document, file, number } => {
            let bytes = view.get(&layout::chunk(id, document, file, *number))?;
            let binary = bytes.map(|bytes| bson::Binary {
                subtype: bson::spec::BinarySubtype::Generic,
                bytes: bytes.to_vec(),
            });
            Ok(Reply::Bytes(binary))
        }
        Read::Reservation { index, value } => {
            let found = view.get(&layout::reservation(id, *index, value))?;
            let found: Option<Document> = found.as_deref().map(parse).transpose()?;
            Ok(Reply::Reserved(found.and_then(|found| found.get("id").cloned())))
        }
    }
}

/// The answer of a token that has never had a document of the collection.
fn nothing(read: &Read) -> Reply {
    match read {
        Read::Get(_) => Reply::Document(None),
        Read::Find(_) => Reply::Documents(Found::default()),
        Read::Count(_) => Reply::Count(0),
        Read::Group { .. } => Reply::Groups(Vec::new()),
        Read::Chunk { .. } => Reply::Bytes(None),
        Read::Reservation { .. } => Reply::Reserved(None),
    }
}

/// The documents of a collection in the order of their ids, from a key on.
pub(super) fn scan(view: &TokenView, collection: CollectionId, from: Option<&[u8]>) -> Pairs {
    let (start, end) = layout::whole(layout::documents(collection));
    view.range(from.unwrap_or(&start), &end)
}

/// The documents of a query; nothing if they are more than is allowed.
fn find(
    view: &TokenView,
    mut candidates: Candidates,
    query: &Query,
    search: &Search,
    left: &mut Allowance,
) -> Result<Option<Found>, DocsError> {
    let Search { filter, sort, projection } = search;
    let limit = usize::try_from(query.limit).unwrap_or(0);
    let mut found = Found { index: candidates.index.clone(), ..Found::default() };
    let mut bytes = 0;
    while let Some((document, size)) = candidates.next(view)? {
        found.looked_at += 1;
        if size > left.bytes || left.entries == 0 {
            return Ok(None);
        }
        left.bytes -= size;
        left.entries -= 1;
        if !filter.matches(&document) {
            continue;
        }
        match sort {
            None if found.documents.len() >= limit || bytes >= MAX_BYTES => {
                found.more = true;
                break;
            }
            Some(_) if found.documents.len() >= MAX_SORTED => {
                return Err(DocsError::refused(format!(
                    "more than {MAX_SORTED} documents of a token would have to be sorted: narrow the filter"
                )));
            }
            None | Some(_) => {}
        }
        bytes += size;
        found.documents.push(document);
    }
    if let Some(sort) = sort {
        found.documents.sort_by(|one, other| sort.compare(one, other));
        found.more = found.documents.len() > limit;
        found.documents.truncate(limit);
    }
    let shown = |document: Document| match query.ids_only {
        true => document.get("_id").map(|id| bson::doc! { "_id": id.clone() }).unwrap_or_default(),
        // What other tokens' documents are merged by must not be missing.
        false if sort.is_some() => document,
        false => projection.apply(document),
    };
    found.documents = found.documents.into_iter().map(shown).collect();
    Ok(Some(found))
}

fn count(view: &TokenView, collection: &Collection, filter: &Document) -> Result<i64, DocsError> {
    let filter = Filter::parse(filter)?;
    if filter == Filter::everything() {
        let mut count = 0;
        for pair in scan(view, collection.spec.id, None) {
            pair?;
            count += 1;
        }
        return Ok(count);
    }
    let mut candidates = Candidates::new(view, collection, &filter, None)?;
    let mut count = 0;
    while let Some((document, _)) = candidates.next(view)? {
        count += i64::from(filter.matches(&document));
    }
    Ok(count)
}

fn group(
    view: &TokenView,
    collection: &Collection,
    filter: &Document,
    field: &str,
) -> Result<Vec<(Bson, i64)>, DocsError> {
    let (filter, path) = (Filter::parse(filter)?, crate::language::Path::parse(field)?);
    let mut candidates = Candidates::new(view, collection, &filter, None)?;
    let mut groups: BTreeMap<Vec<u8>, (Bson, i64)> = BTreeMap::new();
    while let Some((document, _)) = candidates.next(view)? {
        if filter.matches(&document) {
            let value = path.get(&document).cloned().unwrap_or(Bson::Null);
            groups.entry(sort_key(&value)).or_insert((value, 0)).1 += 1;
            if groups.len() > MAX_GROUPS {
                return Err(DocsError::refused(format!("more than {MAX_GROUPS} groups")));
            }
        }
    }
    Ok(groups.into_values().collect())
}

/// Documents that may match, in the order of their ids.
struct Candidates {
    /// The field of the index that is used.
    index: Option<String>,
    source: Source,
    collection: CollectionId,
}

enum Source {
    Scan(Pairs),
    /// Encoded ids from an index.
    Ids(std::collections::btree_set::IntoIter<Vec<u8>>),
}

impl Candidates {
    fn new(
        view: &TokenView,
        collection: &Collection,
        filter: &Filter,
        after: Option<&Bson>,
    ) -> Result<Candidates, DocsError> {
        let id = collection.spec.id;
        if let Some(found) = Candidates::of_index(view, collection, filter, after, usize::MAX)? {
            return Ok(found);
        }
        let from = after.map(|after| [&layout::document(id, after)[..], &[0]].concat());
        Ok(Candidates { index: None, source: Source::Scan(scan(view, id, from.as_deref())), collection: id })
    }

    /// Those that an index leads to; nothing without an index, and if it has more than this many entries for them.
    fn of_index(
        view: &TokenView,
        collection: &Collection,
        filter: &Filter,
        after: Option<&Bson>,
        most: usize,
    ) -> Result<Option<Candidates>, DocsError> {
        let id = collection.spec.id;
        let Some(Lookup { field, number, ranges, skip }) = lookup(collection, filter) else {
            return Ok(None);
        };
        let (after, mut entries) = (after.map(sort_key), 0);
        let mut ids = std::collections::BTreeSet::new();
        for keys in ranges {
            let are_of_several_values = keys.are_of_several_values();
            if are_of_several_values && view.is_single(id, number) {
                continue;
            }
            let before = entries;
            for pair in view.range(&keys.from, &keys.before) {
                let (key, _) = pair?;
                entries += 1;
                if entries > most {
                    return Ok(None);
                }
                // The id is behind the value, whose length only its end tells.
                if let Some(id) = id_of_entry(&key, skip) {
                    ids.insert(id);
                }
            }
            if are_of_several_values && entries == before {
                view.note_single(id, number);
            }
        }
        ids.retain(|id| after.as_ref().is_none_or(|after| id > after));
        let source = Source::Ids(ids.into_iter());
        Ok(Some(Candidates { index: Some(field), source, collection: id }))
    }

    fn next(&mut self, view: &TokenView) -> Result<Option<(Document, usize)>, DocsError> {
        let bytes = match &mut self.source {
            Source::Scan(pairs) => pairs.next().transpose()?.map(|(_, value)| value),
            Source::Ids(ids) => loop {
                let Some(id) = ids.next() else { break None };
                let key = [layout::documents(self.collection), id].concat();
                if let Some(value) = view.get(&key)? {
                    break Some(value);
                }
            },
        };
        bytes.map(|bytes| Ok((parse(&bytes)?, bytes.len()))).transpose()
    }
}

/// The number of documents, and a digest of everything that the token has.
pub(super) fn digest(view: &TokenView) -> Result<(i64, String), DocsError> {
    let (mut documents, mut hash) = (0, Sha256::new());
    for pair in view.range(&[], &[u8::MAX; 2]) {
        let (key, value) = pair?;
        documents += i64::from(key.first() == Some(&b'd'));
        hash.update((key.len() as u64).to_be_bytes());
        hash.update(&key);
        hash.update(&value);
    }
    Ok((documents, hash.finalize().iter().map(|byte| format!("{byte:02x}")).collect()))
}

/// Documents of a copy, and the bytes of all its keys and values.
pub(super) fn weigh(view: &TokenView) -> Result<(u64, u64), DocsError> {
    let (mut documents, mut bytes) = (0, 0);
    for pair in view.range(&[], &[u8::MAX; 2]) {
        let (key, value) = pair?;
        documents += u64::from(key.first() == Some(&b'd'));
        bytes += (key.len() + value.len()) as u64;
    }
    Ok((documents, bytes))
}
