//! On whose behalf does a handler act? The authenticated identity; what a client says about itself counts only where
//! requests without a credential are allowed.

use axum::Json;
use axum::extract::{FromRequest, FromRequestParts, Query, Request};
use axum::http::request::Parts;
use capstan_access::Identity;
use serde::de::DeserializeOwned;

use crate::{ApiError, State};

/// The identity behind a request, put there by [`check`](super::check).
#[derive(Clone, Debug)]
pub(crate) struct Caller(pub(crate) Identity);

impl Caller {
    /// Its name, unless the request had no credential.
    fn known(&self) -> Option<&str> {
        (!self.0.is_anonymous()).then_some(self.0.name.as_str())
    }
}

/// A request that says by whom something is asked for.
pub(crate) trait Asks: DeserializeOwned {
    /// Where it says so.
    fn asker(&mut self) -> &mut String;
}

/// The query of a request, asked for by the authenticated identity.
pub(crate) struct NamedQuery<T>(pub(crate) T);

/// The JSON body of a request, asked for by the authenticated identity.
pub(crate) struct NamedJson<T>(pub(crate) T);

fn name<T: Asks>(mut asked: T, caller: Option<&Caller>) -> T {
    if let Some(known) = caller.and_then(Caller::known) {
        known.clone_into(asked.asker());
    }
    asked
}

impl<T: Asks> FromRequestParts<State> for NamedQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &State) -> Result<NamedQuery<T>, ApiError> {
        let asked = Query::<T>::from_request_parts(parts, state).await;
        let Query(asked) = asked.map_err(|wrong| ApiError::with(wrong.status(), wrong.body_text()))?;
        Ok(NamedQuery(name(asked, parts.extensions.get::<Caller>())))
    }
}

impl<T: Asks> FromRequest<State> for NamedJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &State) -> Result<NamedJson<T>, ApiError> {
        let caller = request.extensions().get::<Caller>().cloned();
        let Json(asked) = Json::<T>::from_request(request, state).await?;
        Ok(NamedJson(name(asked, caller.as_ref())))
    }
}

impl<T> std::ops::Deref for NamedJson<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
