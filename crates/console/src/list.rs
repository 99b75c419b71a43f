//! Collections over HTTP: an object with the items under their plural name, so that it can get more fields.

use std::collections::BTreeMap;

use axum::Json;
use serde::Serialize;

/// A collection.
#[derive(Debug, Serialize)]
#[serde(transparent)]
pub(crate) struct List<T>(BTreeMap<&'static str, Vec<T>>);

impl<T> List<T> {
    pub(crate) fn of(name: &'static str, items: Vec<T>) -> Json<List<T>> {
        Json(List(BTreeMap::from([(name, items)])))
    }
}
