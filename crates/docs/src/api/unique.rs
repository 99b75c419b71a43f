//! Values that only one document of a collection may have.
//!
//! A value is reserved on the token that owns its hash, before the document is written. A reservation whose document is
//! not there, or has another value by now, is left over from a request that was cut off: the next one takes it over,
//! naming the owner that it replaces, so two of them cannot both succeed.
//!
//! Several requests may reserve a value for the same document. Each leaves its mark; a request gives a value back only if
//! its mark is the last one, so it never takes away what another one is about to rely on.

use std::time::Duration;

use bson::{Bson, Document};

use crate::data::command::{Command, Query, Read, Reply, Target, Write};
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{CollectionName, DatabaseName};
use crate::language::{Path, sort_key};
use crate::router::{Concern, Router, unexpected};

/// How long a request that has reserved a value may take to write its document, before others doubt it.
const IN_FLIGHT: Duration = Duration::from_secs(16);
/// How often a doubtful reservation is looked at.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Documents that are looked at together when an index is made unique.
const PAGE: i64 = 500;

/// A value of a unique index.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Claim {
    index: u32,
    field: String,
    value: Bson,
}

/// What tells the reservations of one request from those of others.
pub(super) struct Mark(String);

impl Mark {
    pub(super) fn new() -> Mark {
        Mark(format!("{:032x}", rand::random::<u128>()))
    }
}

/// Why values are given back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Because {
    /// The document that they were reserved for was not written. What another request reserved before stays.
    NotWritten,
    /// The document that had them has them no more.
    Gone,
}

/// The unique values of a document. A missing field and null claim nothing.
pub(super) fn claims(target: &Target, document: &Document) -> Result<Vec<Claim>, DocsError> {
    let unique = target.spec.indexes.iter().filter(|(_, index)| index.unique);
    let mut claims = Vec::new();
    for (field, index) in unique {
        let value = Path::parse(field)?.get(document).cloned().unwrap_or(Bson::Null);
        if value != Bson::Null {
            claims.push(Claim { index: index.number, field: field.clone(), value });
        }
    }
    Ok(claims)
}

/// Whether the collection has a unique index at all.
pub(super) fn is_unique(target: &Target) -> bool {
    target.spec.indexes.values().any(|index| index.unique)
}

fn token_of(router: &Router, claim: &Claim) -> Token {
    Token::of_hash(&sort_key(&claim.value), router.digits)
}

/// Reserves values for a document: all of them or none.
pub(super) async fn reserve(
    router: &Router,
    target: &Target,
    id: &Bson,
    claims: &[Claim],
    mark: &Mark,
) -> Result<(), DocsError> {
    for (at, claim) in claims.iter().enumerate() {
        if let Err(error) = reserve_one(router, target, id, claim, mark).await {
            let done = claims.get(..at).unwrap_or_default();
            release(router, target, id, done, mark, Because::NotWritten).await;
            return Err(error);
        }
    }
    Ok(())
}

async fn reserve_one(
    router: &Router,
    target: &Target,
    id: &Bson,
    claim: &Claim,
    mark: &Mark,
) -> Result<(), DocsError> {
    let until = tokio::time::Instant::now() + IN_FLIGHT;
    let mut instead_of = None;
    loop {
        let write = Write::Reserve {
            index: claim.index,
            value: claim.value.clone(),
            id: id.clone(),
            instead_of: instead_of.take(),
            mark: Some(mark.0.clone()),
        };
        let reply = router.ask(token_of(router, claim), Command::Write(target.clone(), write)).await?;
        let Reply::Reserved(Some(owner)) = reply else { return Err(unexpected()) };
        if owner == *id {
            return Ok(());
        }
        if has_value(router, target, &owner, claim).await? {
            return Err(DocsError::Duplicate(format!(
                "another document has the same value of `{}`, which is unique",
                claim.field
            )));
        }
        // Its request may be on the way: only after its time is over it cannot write any more.
        if tokio::time::Instant::now() >= until {
            instead_of = Some(Box::new(owner));
        } else {
            tokio::time::sleep(LOOK_AGAIN).await;
        }
    }
}

async fn has_value(router: &Router, target: &Target, id: &Bson, claim: &Claim) -> Result<bool, DocsError> {
    let read = Read::Get(id.clone());
    let reply = router.read(router.token_of(id), target, read, Concern::Linearizable).await?;
    let Reply::Document(document) = reply else { return Err(unexpected()) };
    let path = Path::parse(&claim.field)?;
    let value = document.as_ref().and_then(|document| path.get(document));
    Ok(value.is_some_and(|value| sort_key(value) == sort_key(&claim.value)))
}

/// Leaves the request's mark on values that its document has, before it is changed to have them no more.
pub(super) async fn sign(router: &Router, target: &Target, id: &Bson, claims: &[Claim], mark: &Mark) {
    for claim in claims {
        let write = Write::Reserve {
            index: claim.index,
            value: claim.value.clone(),
            id: id.clone(),
            instead_of: None,
            mark: Some(mark.0.clone()),
        };
        if let Err(error) = router.ask(token_of(router, claim), Command::Write(target.clone(), write)).await {
            tracing::debug!(%error, "a unique value was not signed");
        }
    }
}

/// Gives values back. What fails is found to be left over by the next request for the value.
pub(super) async fn release(
    router: &Router,
    target: &Target,
    id: &Bson,
    claims: &[Claim],
    mark: &Mark,
    because: Because,
) {
    for claim in claims {
        let write = Write::Release {
            index: claim.index,
            value: claim.value.clone(),
            id: id.clone(),
            mark: Some(mark.0.clone()),
            if_made: because == Because::NotWritten,
        };
        let released = router.ask(token_of(router, claim), Command::Write(target.clone(), write)).await;
        if let Err(error) = released {
            tracing::debug!(%error, "a unique value was not given back");
        }
    }
}

/// Reserves the values of the documents that are there when an index is made unique.
pub(super) async fn reserve_existing(
    router: &Router,
    database: &DatabaseName,
    collection: &CollectionName,
    field: &str,
) -> Result<(), DocsError> {
    let (target, mark) = (router.target(database, collection).await?, Mark::new());
    for token in Token::all(router.digits) {
        let mut after = None;
        loop {
            let query = Query { limit: PAGE, after: after.take(), ..Query::default() };
            let reply =
                router.read(token, &target, Read::Find(Box::new(query)), Concern::Linearizable).await?;
            let Reply::Documents(found) = reply else { return Err(unexpected()) };
            for document in &found.documents {
                let id = document.get("_id").unwrap_or(&Bson::Null);
                let own: Vec<Claim> =
                    claims(&target, document)?.into_iter().filter(|claim| claim.field == field).collect();
                reserve(router, &target, id, &own, &mark).await?;
            }
            if !found.more {
                break;
            }
            after = found.documents.last().and_then(|last| last.get("_id").cloned());
        }
    }
    Ok(())
}
