//! Values that only one document of a collection may have.
//!
//! A value is reserved on the token that owns its hash, before the document is written. A reservation whose document is
//! not there, or has another value by now, is left over from a request that was cut off: the next one takes it over,
//! naming the owner that it replaces, so two of them cannot both succeed.

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
) -> Result<(), DocsError> {
    for (at, claim) in claims.iter().enumerate() {
        if let Err(error) = reserve_one(router, target, id, claim).await {
            release(router, target, id, claims.get(..at).unwrap_or_default()).await;
            return Err(error);
        }
    }
    Ok(())
}

async fn reserve_one(router: &Router, target: &Target, id: &Bson, claim: &Claim) -> Result<(), DocsError> {
    let until = tokio::time::Instant::now() + IN_FLIGHT;
    let mut instead_of = None;
    loop {
        let write = Write::Reserve {
            index: claim.index,
            value: claim.value.clone(),
            id: id.clone(),
            instead_of: instead_of.take(),
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
            instead_of = Some(owner);
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

/// Gives values back. What fails is found to be left over by the next request for the value.
pub(super) async fn release(router: &Router, target: &Target, id: &Bson, claims: &[Claim]) {
    for claim in claims {
        let write = Write::Release { index: claim.index, value: claim.value.clone(), id: id.clone() };
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
    let target = router.target(database, collection).await?;
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
                reserve(router, &target, id, &own).await?;
            }
            if !found.more {
                break;
            }
            after = found.documents.last().and_then(|last| last.get("_id").cloned());
        }
    }
    Ok(())
}
