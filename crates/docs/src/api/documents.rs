//! What is done with documents: the router's commands, and the answers that clients expect.

use std::cmp::Ordering;

use bson::{Bson, Document};
use serde::Serialize;
use serde_json::Value;

use super::unique::{self, Because, Mark};
use crate::data::command::{Command, Found, Query, Read, Reply, Select, Target, Write};
use crate::error::DocsError;
use crate::id;
use crate::language::json::{Shown, ShownValue};
use crate::language::{Filter, Projection, Sort, Update, check_names, sort_key, to_json};
use crate::router::{Concern, Router, unexpected};

/// Documents of one answer if the client names no number; there is a cursor for more.
pub(super) const DEFAULT_LIMIT: usize = 10_000;
/// The most documents of one answer, with those that are skipped.
const MAX_LIMIT: usize = 100_000;
/// Documents of one insert.
pub(super) const MAX_INSERT: usize = 10_000;
/// Writes of one request that are under way at a time.
const AT_ONCE: usize = 64;
/// Times that an update is made anew because another one came first.
const RACES: usize = 64;

/// Fields that the store itself writes.
const SYSTEM: [&str; 5] = ["_token", "_txnId", "_cre", "_chg", "_attachment"];

/// The documents of one collection.
pub(crate) struct Documents<'r> {
    pub(crate) router: &'r Router,
    pub(crate) target: Target,
}

/// How a find answers.
#[derive(Clone, Debug, Default)]
pub(super) struct FindOptions {
    pub(super) limit: Option<usize>,
    pub(super) skip: usize,
    pub(super) one: bool,
    pub(super) ids_only: bool,
    pub(super) sort: Option<Document>,
    pub(super) projection: Option<Bson>,
    pub(super) after: Option<Bson>,
    pub(super) available: bool,
}

/// What was found, over all tokens.
pub(super) struct FoundAll {
    pub(super) documents: Vec<Document>,
    /// The id behind which there are more.
    pub(super) cursor: Option<Bson>,
    pub(super) index: Option<String>,
    pub(super) looked_at: i64,
    /// It was looked for by its id: at most one.
    pub(super) by_id: bool,
}

/// A document that was not inserted.
pub(super) struct NotInserted {
    pub(super) error: DocsError,
    /// The id that it would have, if a document has it.
    pub(super) there: Option<Bson>,
}

impl<E: Into<DocsError>> From<E> for NotInserted {
    fn from(error: E) -> NotInserted {
        NotInserted { error: error.into(), there: None }
    }
}

/// What was done to many documents.
#[derive(Default)]
pub(super) struct ChangedMany {
    pub(super) ids: Vec<Bson>,
    /// Documents that do not admit the change.
    pub(super) refused: i64,
    /// Why the first of them does not.
    pub(super) error: Option<DocsError>,
}

impl ChangedMany {
    fn of(reply: Reply) -> Result<ChangedMany, DocsError> {
        match reply {
            Reply::Changed(ids) => Ok(ChangedMany { ids, ..ChangedMany::default() }),
            Reply::Partly { changed, refused, reason } => {
                Ok(ChangedMany { ids: changed, refused, error: Some(DocsError::Refused(reason)) })
            }
            _ => Err(unexpected()),
        }
    }

    fn refuse(&mut self, error: DocsError) {
        self.refused += 1;
        self.error.get_or_insert(error);
    }
}

impl Documents<'_> {
    async fn write(&self, id: &Bson, write: Write) -> Result<Vec<Bson>, DocsError> {
        let command = Command::Write(self.target.clone(), write);
        match self.router.ask(self.router.token_of(id), command).await? {
            Reply::Changed(ids) => Ok(ids),
            _ => Err(unexpected()),
        }
    }

    /// Inserts documents; one outcome for each.
    pub(super) async fn insert(&self, documents: Vec<Document>) -> Vec<Result<Bson, NotInserted>> {
        let mut outcomes = Vec::with_capacity(documents.len());
        let mut documents = documents.into_iter();
        loop {
            let some: Vec<_> =
                documents.by_ref().take(AT_ONCE).map(|document| self.insert_one(document)).collect();
            if some.is_empty() {
                return outcomes;
            }
            outcomes.extend(futures_util::future::join_all(some).await);
        }
    }

    async fn insert_one(&self, document: Document) -> Result<Bson, NotInserted> {
        let document = self.prepare(document)?;
        let id = document.get("_id").cloned().unwrap_or(Bson::Null);
        let (claims, mark) = (unique::claims(&self.target, &document)?, Mark::new());
        unique::reserve(self.router, &self.target, &id, &claims, &mark).await?;
        let Err(error) = self.write(&id, Write::Insert(document)).await else { return Ok(id) };
        // A value stays reserved if the document may be there.
        if !matches!(error, DocsError::Unknown(_)) {
            unique::release(self.router, &self.target, &id, &claims, &mark, Because::NotWritten).await;
        }
        let there = matches!(error, DocsError::Duplicate(_)).then_some(id);
        Err(NotInserted { error, there })
    }

    /// Gives a document its id and the fields that the store writes.
    fn prepare(&self, mut document: Document) -> Result<Document, DocsError> {
        SYSTEM.iter().for_each(|field| drop(document.remove(field)));
        check_names(&document)?;
        let given = document.remove("_id");
        let id = match given {
            _ if self.target.spec.has_key() => id::of_key(&document, &self.target.spec.primary_key)?,
            None | Some(Bson::Null) => id::random(),
            Some(Bson::String(text)) if text.is_empty() => id::random(),
            Some(
                id
                @ (Bson::String(_) | Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::ObjectId(_)),
            ) => id,
            Some(_) => return Err(DocsError::refused("_id is a text or a number")),
        };
        let mut prepared = Document::new();
        prepared.insert("_token", self.router.token_of(&id).to_string());
        prepared.insert("_id", id);
        prepared.insert("_txnId", format!("{:032x}", rand::random::<u128>()));
        prepared.extend(document);
        Ok(prepared)
    }

    /// The id that a filter names, directly or by the whole primary key. The text of a query string has no type, so it
    /// may name two: a text, and a number.
    fn ids_of(&self, filter: &Filter) -> Option<Vec<Bson>> {
        if let Some(id) = filter.equal_to("_id") {
            return match id {
                Bson::Symbol(text) => Some(ids_of_text(text)),
                Bson::Document(_) | Bson::Array(_) => None,
                other => Some(vec![other.clone()]),
            };
        }
        let key = &self.target.spec.primary_key;
        if !self.target.spec.has_key() {
            return None;
        }
        let mut fields = Document::new();
        for field in key {
            fields.insert(field.clone(), filter.equal_to(field)?.clone());
        }
        id::of_key(&fields, key).ok().map(|id| vec![id])
    }

    /// The first of some ids that a document has; the first one if none has.
    pub(super) async fn existing(&self, ids: Vec<Bson>) -> Result<Bson, DocsError> {
        if let [first, others @ ..] = &ids[..]
            && !others.is_empty()
        {
            for id in &ids {
                if self.get(id, Concern::Linearizable).await?.is_some() {
                    return Ok(id.clone());
                }
            }
            return Ok(first.clone());
        }
        Ok(ids.into_iter().next().unwrap_or(Bson::Null))
    }

    pub(super) async fn get(&self, id: &Bson, concern: Concern) -> Result<Option<Document>, DocsError> {
        let read = Read::Get(id.clone());
        match self.router.read(self.router.token_of(id), &self.target, read, concern).await? {
            Reply::Document(document) => Ok(document),
            _ => Err(unexpected()),
        }
    }

    pub(super) async fn find(&self, filter: &Document, options: &FindOptions) -> Result<FoundAll, DocsError> {
        let parsed = Filter::parse(filter)?;
        let projection = options.projection.as_ref().map(Projection::parse).transpose()?.unwrap_or_default();
        let concern = if options.available { Concern::Available } else { Concern::Linearizable };
        if let Some(ids) = self.ids_of(&parsed) {
            let id = self.existing(ids).await?;
            let found = self.get(&id, concern).await?.filter(|found| parsed.matches(found));
            let documents =
                found.map(|found| projection.apply(found)).into_iter().skip(options.skip).collect();
            return Ok(FoundAll {
                documents,
                cursor: None,
                index: Some("_id".into()),
                looked_at: 1,
                by_id: true,
            });
        }
        let limit = if options.one { 1 } else { options.limit.unwrap_or(DEFAULT_LIMIT) };
        let wanted = limit.saturating_add(options.skip);
        if wanted > MAX_LIMIT {
            return Err(DocsError::refused(format!("limit and skip together are at most {MAX_LIMIT}")));
        }
        let sort =
            options.sort.as_ref().map(|sort| Sort::parse(&Bson::Document(sort.clone()))).transpose()?;
        let query = Query {
            filter: filter.clone(),
            sort: options.sort.clone(),
            projection: options.projection.clone(),
            limit: i64::try_from(wanted).unwrap_or(i64::MAX),
            after: options.after.clone(),
            ids_only: options.ids_only,
        };
        let replies = self.router.read_all(&self.target, &Read::Find(Box::new(query)), concern).await?;
        let found = replies
            .into_iter()
            .map(|reply| if let Reply::Documents(found) = reply { Ok(found) } else { Err(unexpected()) })
            .collect::<Result<Vec<_>, _>>()?;
        let mut all = merge(found, sort.as_ref(), wanted);
        all.documents.drain(..options.skip.min(all.documents.len()));
        if sort.is_some() {
            all.documents = all.documents.into_iter().map(|document| projection.apply(document)).collect();
        }
        Ok(all)
    }

    pub(super) async fn count(&self, filter: &Document) -> Result<i64, DocsError> {
        let parsed = Filter::parse(filter)?;
        if let Some(ids) = self.ids_of(&parsed) {
            let id = self.existing(ids).await?;
            let found = self.get(&id, Concern::Linearizable).await?;
            return Ok(i64::from(found.is_some_and(|found| parsed.matches(&found))));
        }
        let read = Read::Count(filter.clone());
        let replies = self.router.read_all(&self.target, &read, Concern::Linearizable).await?;
        let counts = replies.into_iter().map(|reply| match reply {
            Reply::Count(count) => Ok(count),
            _ => Err(unexpected()),
        });
        counts.sum()
    }

    /// How many documents there are for each value of a field.
    pub(super) async fn group(&self, filter: &Document, field: &str) -> Result<Vec<(Bson, i64)>, DocsError> {
        let read = Read::Group { filter: filter.clone(), field: field.to_owned() };
        let replies = self.router.read_all(&self.target, &read, Concern::Linearizable).await?;
        let mut groups = std::collections::BTreeMap::new();
        for reply in replies {
            let Reply::Groups(found) = reply else { return Err(unexpected()) };
            for (value, count) in found {
                groups.entry(sort_key(&value)).or_insert((value, 0)).1 += count;
            }
        }
        Ok(groups.into_values().collect())
    }

    /// Changes one document; nothing if no document matches.
    pub(super) async fn update_one(
        &self,
        filter: &Document,
        update: &Document,
    ) -> Result<Option<Bson>, DocsError> {
        let parsed = Update::parse(update)?;
        for _ in 0..RACES {
            let Some(id) = self.first(filter).await? else { return Ok(None) };
            let select = Select { id: Some(id.clone()), filter: filter.clone(), one: true, unchanged: None };
            let changed = if unique::is_unique(&self.target) {
                self.update_unique(&id, filter, &parsed, update).await?
            } else {
                !self.write(&id, Write::Update { select, update: update.clone() }).await?.is_empty()
            };
            if changed {
                return Ok(Some(id));
            }
        }
        Err(DocsError::Busy("the document keeps changing".to_owned()))
    }

    /// The first document that matches.
    async fn first(&self, filter: &Document) -> Result<Option<Bson>, DocsError> {
        let options = FindOptions { one: true, ids_only: true, ..FindOptions::default() };
        let found = self.find(filter, &options).await?;
        Ok(found.documents.first().and_then(|found| found.get("_id").cloned()))
    }

    /// Changes a document that may have unique values: reserves the new ones, and writes only if the document is still
    /// the one that they were computed from.
    async fn update_unique(
        &self,
        id: &Bson,
        filter: &Document,
        parsed: &Update,
        update: &Document,
    ) -> Result<bool, DocsError> {
        let Some(before) = self.get(id, Concern::Linearizable).await? else { return Ok(false) };
        let after = parsed.apply(&before)?;
        let select = Select {
            id: Some(id.clone()),
            filter: filter.clone(),
            one: true,
            unchanged: Some(crate::data::change_of(&before)),
        };
        self.swap(id, &before, &after, Write::Update { select, update: update.clone() }).await
    }

    /// Writes a document with its unique values in place of those that it had.
    async fn swap(
        &self,
        id: &Bson,
        before: &Document,
        after: &Document,
        write: Write,
    ) -> Result<bool, DocsError> {
        let (old, new) = (unique::claims(&self.target, before)?, unique::claims(&self.target, after)?);
        let fresh: Vec<_> = new.iter().filter(|claim| !old.contains(claim)).cloned().collect();
        let stale: Vec<_> = old.into_iter().filter(|claim| !new.contains(claim)).collect();
        let (router, target, mark) = (self.router, &self.target, Mark::new());
        unique::reserve(router, target, id, &fresh, &mark).await?;
        unique::sign(router, target, id, &stale, &mark).await;
        let outcome = self.write(id, write).await;
        match &outcome {
            Ok(ids) if !ids.is_empty() => {
                unique::release(router, target, id, &stale, &mark, Because::Gone).await;
            }
            Err(DocsError::Unknown(_)) => {}
            Ok(_) | Err(_) => {
                unique::release(router, target, id, &fresh, &mark, Because::NotWritten).await;
            }
        }
        outcome.map(|ids| !ids.is_empty())
    }

    /// Changes every document that matches, each of them as a whole.
    pub(super) async fn update_many(
        &self,
        filter: &Document,
        update: &Document,
    ) -> Result<ChangedMany, DocsError> {
        let parsed = Update::parse(update)?;
        if let Some(ids) = self.ids_of(&Filter::parse(filter)?) {
            let id = self.existing(ids).await?;
            let select = Select { id: Some(id.clone()), filter: filter.clone(), one: true, unchanged: None };
            if !unique::is_unique(&self.target) {
                let ids = self.write(&id, Write::Update { select, update: update.clone() }).await?;
                return Ok(ChangedMany { ids, ..ChangedMany::default() });
            }
        }
        if unique::is_unique(&self.target) {
            let mut changed = ChangedMany::default();
            for id in self.ids(filter).await? {
                match self.update_unique(&id, filter, &parsed, update).await {
                    Ok(true) => changed.ids.push(id),
                    Ok(false) => {}
                    Err(
                        error @ (DocsError::Refused(_) | DocsError::TooLarge(_) | DocsError::Duplicate(_)),
                    ) => changed.refuse(error),
                    Err(error) => return Err(error),
                }
            }
            return Ok(changed);
        }
        let select = Select { id: None, filter: filter.clone(), one: false, unchanged: None };
        self.everywhere(Write::Update { select, update: update.clone() }).await
    }

    async fn ids(&self, filter: &Document) -> Result<Vec<Bson>, DocsError> {
        let (mut ids, mut after) = (Vec::new(), None);
        loop {
            let options = FindOptions { ids_only: true, after: after.take(), ..FindOptions::default() };
            let found = self.find(filter, &options).await?;
            ids.extend(found.documents.iter().filter_map(|found| found.get("_id").cloned()));
            after = found.cursor;
            if after.is_none() {
                return Ok(ids);
            }
        }
    }

    async fn everywhere(&self, write: Write) -> Result<ChangedMany, DocsError> {
        let command = Command::Write(self.target.clone(), write);
        let mut all = ChangedMany::default();
        for reply in self.router.ask_all(&command).await? {
            let one = ChangedMany::of(reply)?;
            all.ids.extend(one.ids);
            all.refused += one.refused;
            all.error = all.error.or(one.error);
        }
        Ok(all)
    }

    /// Puts another document in the place of one; its id stays.
    pub(super) async fn replace(&self, id: &Bson, mut document: Document) -> Result<(), DocsError> {
        SYSTEM.iter().for_each(|field| drop(document.remove(field)));
        check_names(&document)?;
        let id_of = document.get("_id").cloned().unwrap_or_else(|| id.clone());
        let same_key = !self.target.spec.has_key()
            || id::of_key(&document, &self.target.spec.primary_key).ok().as_ref() == Some(id);
        if sort_key(&id_of) != sort_key(id) || !same_key {
            return Err(DocsError::refused("id validation failed"));
        }
        let write = Write::Replace { id: id.clone(), document: document.clone() };
        if !unique::is_unique(&self.target) {
            self.write(id, write).await?;
            return Ok(());
        }
        let before = self.get(id, Concern::Linearizable).await?;
        let before = before.ok_or_else(|| DocsError::NotFound("Not found".to_owned()))?;
        self.swap(id, &before, &document, write).await?;
        Ok(())
    }

    /// Deletes one document; nothing if no document matches.
    pub(super) async fn delete_one(&self, filter: &Document) -> Result<Option<Bson>, DocsError> {
        for _ in 0..RACES {
            let Some(id) = self.first(filter).await? else { return Ok(None) };
            if self.delete_id(&id, filter).await? {
                return Ok(Some(id));
            }
        }
        Err(DocsError::Busy("the document keeps changing".to_owned()))
    }

    pub(crate) async fn delete_id(&self, id: &Bson, filter: &Document) -> Result<bool, DocsError> {
        let before = match unique::is_unique(&self.target) {
            true => self.get(id, Concern::Linearizable).await?,
            false => None,
        };
        let claims = match &before {
            Some(before) => unique::claims(&self.target, before)?,
            None => Vec::new(),
        };
        let mark = Mark::new();
        unique::sign(self.router, &self.target, id, &claims, &mark).await;
        let select = Select { id: Some(id.clone()), filter: filter.clone(), one: true, unchanged: None };
        let deleted = !self.write(id, Write::Delete(select)).await?.is_empty();
        if deleted {
            unique::release(self.router, &self.target, id, &claims, &mark, Because::Gone).await;
        }
        Ok(deleted)
    }

    /// Deletes every document that matches.
    pub(super) async fn delete_many(&self, filter: &Document) -> Result<Vec<Bson>, DocsError> {
        if unique::is_unique(&self.target) {
            let mut deleted = Vec::new();
            for id in self.ids(filter).await? {
                if self.delete_id(&id, filter).await? {
                    deleted.push(id);
                }
            }
            return Ok(deleted);
        }
        Filter::parse(filter)?;
        let select = Select { id: None, filter: filter.clone(), one: false, unchanged: None };
        Ok(self.everywhere(Write::Delete(select)).await?.ids)
    }
}

/// What a text without a type may be as an id: the text itself, or a whole number.
pub(super) fn ids_of_text(text: &str) -> Vec<Bson> {
    let number = text.parse::<i64>().ok().filter(|number| number.to_string() == text);
    std::iter::once(Bson::String(text.to_owned())).chain(number.map(Bson::Int64)).collect()
}

/// Puts what the tokens found into one order. What lies behind a token's unfinished answer comes with the next one.
fn merge(found: Vec<Found>, sort: Option<&Sort>, wanted: usize) -> FoundAll {
    let id = |document: &Document| sort_key(document.get("_id").unwrap_or(&Bson::Null));
    let index = found.iter().find_map(|found| found.index.clone());
    let looked_at = found.iter().map(|found| found.looked_at).sum();
    let unfinished = found.iter().filter(|found| found.more);
    let until = unfinished.filter_map(|found| found.documents.last().map(id)).min();
    let any_more = found.iter().any(|found| found.more);
    let mut documents: Vec<Document> = found.into_iter().flat_map(|found| found.documents).collect();
    match sort {
        Some(sort) => documents.sort_by(|one, other| sort.compare(one, other)),
        None => documents.sort_by_cached_key(id),
    }
    let all = documents.len();
    if sort.is_none()
        && let Some(until) = until
    {
        documents.retain(|document| id(document).cmp(&until) != Ordering::Greater);
    }
    documents.truncate(wanted);
    let more = any_more || documents.len() < all;
    let cursor = documents.last().and_then(|last| last.get("_id").cloned());
    let cursor = cursor.filter(|_| more && sort.is_none());
    FoundAll { documents, cursor, index, looked_at, by_id: false }
}

/// The answer to a request for documents.
#[derive(Serialize)]
pub(super) struct Listing<'d> {
    #[serde(rename = "_ok")]
    ok: bool,
    #[serde(rename = "_okCnt")]
    ok_count: usize,
    #[serde(rename = "_nokCnt")]
    not_ok_count: usize,
    #[serde(rename = "docIds")]
    ids: ListedIds<'d>,
    /// The document that was asked for by its id.
    #[serde(skip_serializing_if = "Option::is_none")]
    doc: Option<Shown<'d>>,
    data: Vec<Shown<'d>>,
    #[serde(rename = "dataLength")]
    length: usize,
    #[serde(rename = "_more", skip_serializing_if = "Option::is_none")]
    more: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    cursor: Option<Value>,
}

/// The ids of an answer: those of the documents, or the text that a client has asked for.
#[derive(Serialize)]
#[serde(untagged)]
enum ListedIds<'d> {
    Found(Vec<ShownValue<'d>>),
    Asked([&'d str; 1]),
}

impl<'d> Listing<'d> {
    /// What a find has found.
    pub(super) fn of(found: &'d FoundAll) -> Listing<'d> {
        let cursor = found.cursor.clone().map(cursor_json);
        Listing { more: cursor.as_ref().map(|_| true), cursor, ..Listing::new(&found.documents) }
    }

    /// One document, which was asked for by this id.
    pub(super) fn one(id: &'d str, document: &'d Document) -> Listing<'d> {
        let listing = Listing::new(std::slice::from_ref(document));
        Listing { ids: ListedIds::Asked([id]), doc: Some(Shown(document)), ..listing }
    }

    fn new(documents: &'d [Document]) -> Listing<'d> {
        let (count, id) =
            (documents.len(), |document: &'d Document| document.get("_id").unwrap_or(&Bson::Null));
        Listing {
            ok: true,
            ok_count: count,
            not_ok_count: 0,
            ids: ListedIds::Found(documents.iter().map(id).map(ShownValue).collect()),
            doc: None,
            data: documents.iter().map(Shown).collect(),
            length: count,
            more: None,
            cursor: None,
        }
    }
}

/// An id as a cursor. A client sends it back as text: a text that reads as JSON is quoted, so that `5` is the number.
fn cursor_json(id: Bson) -> Value {
    match to_json(id) {
        Value::String(text) if serde_json::from_str::<Value>(&text).is_ok() => {
            Value::String(Value::String(text).to_string())
        }
        other => other,
    }
}
