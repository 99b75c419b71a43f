//! May this request go on? The credential, the protection against pages of other sites, the decision, and the record of
//! what was changed.

use std::collections::HashMap;
use std::sync::Arc;

use axum::extract::{ConnectInfo, MatchedPath, RawPathParams, Request, State as Extract};
use axum::http::{HeaderMap, Method, StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Redirect, Response};
use base64::Engine as _;
use capstan_access::secret::Token;
use capstan_access::{Credential, Guard, Identity, Refused, Secret};
use capstan_control::events;
use capstan_meta::Store;

use super::caller::Caller;
use super::routes::{Need, object, operate, view};
use super::session::COOKIE;
use crate::{ApiError, Peer};

/// What a page sends with every change that it makes with its cookie.
const CSRF: &str = "x-capstan-csrf";

/// What the schema registry protects.
const SCHEMAS: &str = "topics:schemas";

/// What the check needs.
#[derive(Clone, Debug)]
pub(crate) struct Gate {
    pub(crate) guard: Guard,
    pub(crate) store: Store,
    pub(crate) needs: Arc<HashMap<(Method, &'static str), Need>>,
}

/// What a request presented.
struct Presented {
    credential: Credential,
    /// The token of its cookie, where that is the credential: a browser sends it by itself.
    cookie: Option<Token>,
}

/// Refuses what is not allowed, and records what was changed.
pub(crate) async fn check(
    Extract(gate): Extract<Gate>,
    params: RawPathParams,
    mut request: Request,
    next: Next,
) -> Response {
    // A nested service, such as the schema registry, has no matched path.
    let matched = request.extensions().get::<MatchedPath>().map(MatchedPath::as_str);
    let path = matched.unwrap_or_else(|| request.uri().path()).to_owned();
    let method = match request.method() {
        &Method::HEAD => Method::GET,
        method => method.clone(),
    };
    let need = gate.need(&method, &path);
    let changes = method != Method::GET;
    if changes && let Err(refused) = same_site(request.headers()) {
        return refused.into_response();
    }
    let Some(need) = need else {
        // A method that no route has declared: the router itself says so, or it was forgotten and is not served.
        return ApiError::with(StatusCode::METHOD_NOT_ALLOWED, format!("{method} is not served at {path}"))
            .into_response();
    };
    match need {
        Need::Public => return next.run(request).await,
        // The handler reads what the certificate says.
        Need::Host if shows_certificate(&request) => return next.run(request).await,
        Need::Host => return refusal(Refused::Missing),
        Need::SignedIn | Need::Grant(..) => {}
    }
    let presented = presented(&request);
    let identity = match gate.guard.authenticate(&presented.credential).await {
        Ok(identity) => identity,
        Err(refused) => return unauthenticated(refused, &request),
    };
    if let Some(token) = presented.cookie.filter(|_| changes)
        && request.headers().get(CSRF).is_none_or(|sent| sent.as_bytes() != token.csrf().as_bytes())
    {
        let text =
            format!("a change made with a cookie needs the header {CSRF}; GET /api/v1/session has its value");
        return ApiError::with(StatusCode::FORBIDDEN, text).into_response();
    }
    let what = match need {
        Need::Public | Need::SignedIn | Need::Host => path.clone(),
        Need::Grant(verb, template) => {
            let found = |name: &str| params.iter().find(|(known, _)| *known == name).map(|(_, value)| value);
            let wanted = match object(template, found) {
                Ok(wanted) => wanted,
                Err(error) => {
                    return ApiError::with(StatusCode::BAD_REQUEST, error.to_string()).into_response();
                }
            };
            if !gate.guard.allows(&identity, verb, &wanted) {
                if changes && !identity.is_anonymous() {
                    gate.record(&identity, &format!("was denied {method} {path} on"), &wanted.to_string())
                        .await;
                }
                let text = format!(
                    "{} may not {verb} {wanted}; `capstan access why {} {verb} {wanted}` says why",
                    identity.name, identity.name
                );
                return ApiError::with(StatusCode::FORBIDDEN, text).into_response();
            }
            wanted.to_string()
        }
    };
    request.extensions_mut().insert(Caller(identity.clone()));
    let response = next.run(request).await;
    let status = response.status();
    // A machine that waits for its turn asks again and again; that is not a change.
    let waits = path.starts_with("/v1/") && status == StatusCode::CONFLICT;
    if changes && !waits {
        gate.record(&identity, &format!("called {method} {path} ({}) on", status.as_u16()), &what).await;
    }
    response
}

impl Gate {
    /// What a route needs; nothing if no route has declared it.
    fn need(&self, method: &Method, path: &str) -> Option<Need> {
        // The registry has routes of its own below its path.
        if path
            .strip_prefix(crate::SCHEMA_REGISTRY)
            .is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        {
            return Some(if *method == Method::GET { view(SCHEMAS) } else { operate(SCHEMAS) });
        }
        let mut declared = self.needs.iter();
        declared.find(|((known, at), _)| known == method && *at == path).map(|(_, need)| *need)
    }

    async fn record(&self, identity: &Identity, action: &str, what: &str) {
        events::record(&self.store, &identity.name, action, what, "").await;
    }
}

/// A page of another site can have a browser send requests here; browsers say where they come from.
fn same_site(headers: &HeaderMap) -> Result<(), ApiError> {
    let text = |name: &str| headers.get(name).map(|value| value.to_str().unwrap_or("?"));
    let foreign =
        ApiError::with(StatusCode::FORBIDDEN, "a page of another site may not change anything".to_owned());
    if text("sec-fetch-site").is_some_and(|site| site != "same-origin" && site != "none") {
        return Err(foreign);
    }
    let (Some(origin), host) = (text("origin"), text("host")) else { return Ok(()) };
    let own = origin.split_once("://").map(|(_, authority)| authority);
    if own.is_some() && own == host { Ok(()) } else { Err(foreign) }
}

/// Whether the connection has a certificate of a host, which TLS has verified.
fn shows_certificate(request: &Request) -> bool {
    request.extensions().get::<ConnectInfo<Peer>>().is_some_and(|peer| peer.0.certificate.is_some())
}

fn presented(request: &Request) -> Presented {
    let headers = request.headers();
    let peer = request.extensions().get::<ConnectInfo<Peer>>().map(|peer| peer.0.address.ip());
    let none = |credential| Presented { credential, cookie: None };
    if let Some(value) = headers.get(header::AUTHORIZATION) {
        // A credential that cannot be read is a wrong one, not none.
        let wrong = || Credential::Token(Secret::new(""));
        let value = value.to_str().unwrap_or_default();
        let (scheme, rest) = value.split_once(' ').unwrap_or((value, ""));
        return none(match scheme.to_ascii_lowercase().as_str() {
            "bearer" => Credential::Token(Secret::new(rest.trim())),
            "basic" => basic(rest).map_or_else(wrong, |(user, password)| Credential::Password {
                user,
                password: Secret::new(password),
                peer,
            }),
            _ => wrong(),
        });
    }
    match cookie(headers) {
        Some(text) => {
            Presented { cookie: Token::parse(text), credential: Credential::Token(Secret::new(text)) }
        }
        None => none(Credential::None),
    }
}

fn basic(encoded: &str) -> Option<(String, String)> {
    let decoded = base64::engine::general_purpose::STANDARD.decode(encoded.trim()).ok()?;
    let (user, password) = std::str::from_utf8(&decoded).ok()?.split_once(':')?;
    Some((user.to_owned(), password.to_owned()))
}

/// The session's token among the cookies.
pub(super) fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter().filter_map(|value| value.to_str().ok());
    all.flat_map(|value| value.split(';'))
        .find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
        .filter(|value| !value.is_empty())
}

fn unauthenticated(refused: Refused, request: &Request) -> Response {
    let accepts = request.headers().get(header::ACCEPT).and_then(|value| value.to_str().ok());
    let is_page =
        request.method() == Method::GET && accepts.is_some_and(|accepts| accepts.contains("text/html"));
    if is_page && refused != Refused::TooMany {
        return Redirect::to("/login").into_response();
    }
    refusal(refused)
}

/// The answer to a credential that is not accepted.
pub(super) fn refusal(refused: Refused) -> Response {
    let status = match refused {
        Refused::Missing | Refused::Invalid => StatusCode::UNAUTHORIZED,
        Refused::TooMany => StatusCode::TOO_MANY_REQUESTS,
    };
    let mut response = ApiError::with(status, refused.to_string()).into_response();
    if status == StatusCode::UNAUTHORIZED {
        let challenge = header::HeaderValue::from_static("Bearer realm=\"capstan\"");
        response.headers_mut().insert(header::WWW_AUTHENTICATE, challenge);
    }
    response
}
