//! Requests of operators: access keys, users, digests.

use axum::body::Body;
use axum::http::Method;
use bytes::Bytes;
use capstan_meta::record::Extra;
use serde_json::{Value, json};

use super::input::{read_body, read_json, text_of};
use super::{Call, MAX_COMMAND};
use crate::api::access::Access;
use crate::api::admin::{KeyScope, Keys, UserChange};
use crate::api::answer::{Answer, json_answer, text_answer};
use crate::api::catalogue::{collection_name, database_name};
use crate::api::client::POSITION_HEADER;
use crate::data::command::{Command, Reply, Write};
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::AccessId;
use crate::router::Renewals;
use crate::spec::User;

/// Bytes of a dump that are sent at a time, and how many of them wait for a slow client.
const DUMP_BYTES: usize = 256 * 1024;
const DUMP_QUEUE: usize = 4;

impl Call<'_> {
    /// Documents and digest of every token on this node.
    pub(super) async fn digest(&self, access: &Access) -> Result<Answer, DocsError> {
        access.administers()?;
        let mut tokens = serde_json::Map::new();
        for (token, copy) in self.node.inner.router.tokens().list() {
            if let Reply::Digest { documents, digest, applied } = copy.carry_out(Command::Digest).await? {
                let leads = copy.is_leading();
                let about =
                    json!({ "documents": documents, "digest": digest, "applied": applied, "leads": leads });
                tokens.insert(token.to_string(), about);
            }
        }
        Ok(json_answer(200, &json!({ "node": self.node.id().as_str(), "tokens": tokens })))
    }

    /// Everything that a token has, as its primary sees it: one moment, as a stream of pairs.
    pub(super) async fn dump(&self, access: &Access, token: &str) -> Result<Answer, DocsError> {
        access.administers()?;
        let token: Token = token.parse()?;
        let copy = self.node.inner.router.tokens().get(token).filter(|copy| copy.is_leading());
        let copy = copy.ok_or_else(|| DocsError::NotPrimary(token.to_string()))?;
        let dumped = copy.dump().await?;
        let (chunks, received) = tokio::sync::mpsc::channel::<std::io::Result<Bytes>>(DUMP_QUEUE);
        tokio::task::spawn_blocking(move || {
            let mut content = dumped.content;
            loop {
                let mut chunk = vec![0; DUMP_BYTES];
                let (mut filled, mut failed) = (0, None);
                while filled < DUMP_BYTES && failed.is_none() {
                    match std::io::Read::read(&mut content, chunk.get_mut(filled..).unwrap_or_default()) {
                        Ok(0) => break,
                        Ok(read) => filled += read,
                        Err(error) => failed = Some(error),
                    }
                }
                chunk.truncate(filled);
                let ended = filled < DUMP_BYTES;
                let sent = filled == 0 || chunks.blocking_send(Ok(Bytes::from(chunk))).is_ok();
                // A stream that ends with an error is cut off, so that it is not taken for a whole one.
                let failed = failed.map(|error| chunks.blocking_send(Err(error)));
                if ended || !sent || failed.is_some() {
                    return;
                }
            }
        });
        let stream = futures_util::stream::unfold(received, |mut received| async move {
            received.recv().await.map(|chunk| (chunk, received))
        });
        let mut answer = Answer::new(Body::from_stream(stream));
        answer.headers_mut().insert(POSITION_HEADER, dumped.at.0.into());
        Ok(answer)
    }

    /// Puts back what was dumped, a part of one collection on one token.
    pub(super) async fn restore(
        &self,
        access: &Access,
        (database, collection): (&str, &str),
        token: &str,
        body: Body,
    ) -> Result<Answer, DocsError> {
        access.administers()?;
        let (token, router): (Token, _) = (token.parse()?, &self.node.inner.router);
        let (database, collection) = (database_name(database)?, collection_name(collection)?);
        let body = read_body(body, MAX_COMMAND).await?;
        let write: Write =
            bson::deserialize_from_slice(&body).map_err(|error| DocsError::refused(error.to_string()))?;
        if !matches!(write, Write::Restore { .. }) {
            return Err(DocsError::refused("only documents and files are restored"));
        }
        let mut renewals = Renewals::default();
        loop {
            let target = router.target(&database, &collection).await?;
            match router.ask(token, Command::Write(target, write.clone())).await {
                Err(DocsError::Stale) => renewals.renew(router).await?,
                Err(error) => return Err(error),
                Ok(_) => return Ok(json_answer(200, &json!({ "_ok": true }))),
            }
        }
    }

    pub(super) async fn access_keys(&self, access: &Access, body: Body) -> Result<Answer, DocsError> {
        access.administers()?;
        let answer = self.answer_about_keys(body).await?;
        self.see_own_change().await?;
        Ok(answer)
    }

    /// A change of keys or users is answered when this node applies it: a new key opens, a deleted one does not.
    pub(super) async fn see_own_change(&self) -> Result<(), DocsError> {
        if self.method != Method::GET {
            self.node.inner.router.refresh().await?;
        }
        Ok(())
    }

    async fn answer_about_keys(&self, body: Body) -> Result<Answer, DocsError> {
        let keys = Keys::new(self.node.inner.router.store.clone());
        match self.method {
            Method::GET => {
                let listed = keys.list().await?;
                let shown: Vec<Value> = listed
                    .iter()
                    .map(|(id, key)| {
                        json!({ "id": id.as_str(), "db": key.database.as_deref().unwrap_or("*"), "app": key.app,
                                "created": key.created_at, "expires": key.expires_at })
                    })
                    .collect();
                Ok(json_answer(200, &json!(shown)))
            }
            Method::POST => {
                let body = read_json(body).await?;
                let scope = match body.get("db").and_then(Value::as_str) {
                    Some("*") => KeyScope::All,
                    Some(name) => KeyScope::Database(database_name(name)?),
                    None => return Err(DocsError::refused("db is the name of a database, or *")),
                };
                let app = body.get("app").and_then(Value::as_str).unwrap_or_default();
                let made = keys.make(&scope, app, expiry(body.get("expires"))?).await?;
                let (id, key) = (made.access_id, made.access_key);
                Ok(text_answer(
                    200,
                    &format!("AccessId: {id}     AccessKey: {key}    Please copy it: it is not shown again"),
                ))
            }
            Method::DELETE => {
                let id = text_of(self.query.get("id")).unwrap_or_default();
                let id = id.rsplit('/').next().unwrap_or_default();
                keys.delete(&AccessId::new(id)?).await?;
                Ok(text_answer(200, "Deleted"))
            }
            _ => Err(self.no_method()),
        }
    }

    pub(super) async fn users(
        &self,
        access: &Access,
        rest: &[&str],
        body: Body,
    ) -> Result<Answer, DocsError> {
        access.administers()?;
        let answer = self.answer_about_users(rest, body).await?;
        self.see_own_change().await?;
        Ok(answer)
    }

    async fn answer_about_users(&self, rest: &[&str], body: Body) -> Result<Answer, DocsError> {
        let keys = Keys::new(self.node.inner.router.store.clone());
        match (&self.method, rest) {
            (&Method::GET, []) => {
                let users = keys.users().await?;
                let shown: Vec<Value> = users
                    .iter()
                    .map(|(name, user)| json!({ "user": name.as_str(), "email": user.email, "db": user.db, "admin": user.admin }))
                    .collect();
                Ok(json_answer(200, &json!(shown)))
            }
            (&Method::POST, []) => {
                let body = read_json(body).await?;
                let text = |name: &str| body.get(name).and_then(Value::as_str).unwrap_or_default().to_owned();
                let admin = is_true(body.get("admin"));
                let user = User {
                    password: String::new(),
                    email: text("email"),
                    db: text("db"),
                    admin,
                    extra: Extra::default(),
                };
                if text("user").is_empty() {
                    return Err(DocsError::refused("the name of the user is missing"));
                }
                keys.put_user(&text("user"), &text("password"), user).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            (&Method::DELETE, [] | [_]) => {
                let given = text_of(self.query.get("user"));
                let name = rest.first().map(|name| (*name).to_owned()).or(given).unwrap_or_default();
                if name.is_empty() {
                    return Err(DocsError::refused("the name of the user is missing"));
                }
                keys.delete_user(&name).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            (&Method::POST, [name, "password"]) => {
                let body = read_json(body).await?;
                let password = body.get("password").and_then(Value::as_str).unwrap_or_default();
                keys.change_user(name, UserChange::Password(password.to_owned())).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            (&Method::POST, [name, "autz"]) => {
                let body = read_json(body).await?;
                let db = body.get("db").and_then(Value::as_str).unwrap_or_default().to_owned();
                let admin = is_true(body.get("admin"));
                keys.change_user(name, UserChange::Rights { db, admin }).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            (&Method::DELETE, [name, "autz"]) => {
                let none = UserChange::Rights { db: String::new(), admin: false };
                keys.change_user(name, none).await?;
                Ok(json_answer(200, &json!({ "_ok": true })))
            }
            _ => Err(self.no_method()),
        }
    }
}

fn is_true(value: Option<&Value>) -> bool {
    value.is_some_and(|value| *value == json!(true) || *value == json!("true") || *value == json!("w"))
}

/// When a key ends: `3m`, `1y`, a time in seconds since 1970, or never.
fn expiry(expires: Option<&Value>) -> Result<Option<u64>, DocsError> {
    const DAY: u64 = 24 * 60 * 60;
    let now = capstan_meta::clock::since_epoch().as_secs();
    match expires {
        None | Some(Value::Null) => Ok(None),
        Some(Value::String(text)) if text.is_empty() || text == "never" => Ok(None),
        Some(Value::String(text)) => {
            let number = |unit: char| text.strip_suffix(unit).and_then(|number| number.parse::<u64>().ok());
            let months = number('m').and_then(|months| months.checked_mul(30));
            let years = number('y').and_then(|years| years.checked_mul(365));
            let days = number('d').or(months).or(years);
            let days = days.filter(|days| (1..=36_500).contains(days));
            let days =
                days.ok_or_else(|| DocsError::refused("expires is never, or days, months or years: 3m, 1y"))?;
            Ok(Some(now + days * DAY))
        }
        Some(value) => match value.as_u64() {
            Some(at) => Ok(Some(at)),
            None => Err(DocsError::refused("expires is never, or days, months or years: 3m, 1y")),
        },
    }
}
