//! What changes in a collection, as server-sent events.
//!
//! The id of an event is the position of the stream: one offset for each token. A client that was cut off goes on from
//! the last id that it has seen and misses nothing; within one token changes are in their order.

use axum::body::Body;
use axum::http::{HeaderValue, header};
use capstan_meta::OwnedTask;
use serde_json::json;
use tokio::sync::mpsc;

use super::Call;
use super::input::text_of;
use crate::api::answer::Answer;
use crate::data::command::{Changed, Command, Reply};
use crate::error::DocsError;
use crate::id::Token;
use crate::keys::{CollectionName, DatabaseName};
use crate::language::json::document_to_json;
use crate::language::to_json;
use crate::node::Node;
use crate::router::unexpected;
use crate::spec::CollectionId;

/// Batches of changes that wait for a slow client; then the tokens wait.
const QUEUE: usize = 64;
/// Tokens of a cluster whose changes can be streamed: an event names an offset for each.
const MAX_TOKENS: usize = 256;

/// The position of a stream: one offset for each token.
struct Position(Vec<i64>);

impl Position {
    fn parse(text: &str, tokens: usize) -> Result<Position, DocsError> {
        let refuse = || DocsError::refused("from is not a position of this stream");
        let offsets = text.strip_prefix("v1:").ok_or_else(refuse)?.split('.');
        let offsets: Vec<i64> = offsets.map(str::parse).collect::<Result<_, _>>().map_err(|_| refuse())?;
        if offsets.len() == tokens && offsets.iter().all(|offset| *offset >= 0) {
            Ok(Position(offsets))
        } else {
            Err(refuse())
        }
    }

    fn text(&self) -> String {
        let offsets: Vec<String> = self.0.iter().map(ToString::to_string).collect();
        format!("v1:{}", offsets.join("."))
    }

    fn advance(&mut self, token: usize, next: i64) {
        if let Some(offset) = self.0.get_mut(token) {
            *offset = next.max(*offset);
        }
    }
}

/// What one token has to say.
type News = (usize, Result<(Vec<Changed>, i64), DocsError>);

impl Call<'_> {
    pub(super) async fn changes(
        &self,
        database: &DatabaseName,
        collection: &CollectionName,
    ) -> Result<Answer, DocsError> {
        let router = &self.node.inner.router;
        let target = router.target(database, collection).await?;
        let tokens: Vec<Token> = Token::all(router.digits).collect();
        if tokens.len() > MAX_TOKENS {
            return Err(DocsError::refused(format!("changes are streamed for at most {MAX_TOKENS} tokens")));
        }
        let asked = text_of(self.query.get("from"));
        let last = self.headers.get("last-event-id").and_then(|id| id.to_str().ok()).map(str::to_owned);
        let position = match last.or(asked) {
            Some(text) => Position::parse(&text, tokens.len())?,
            None => now(self.node, &tokens).await?,
        };
        let (news, received) = mpsc::channel(QUEUE);
        let followers = tokens.iter().enumerate().zip(&position.0).map(|((at, token), from)| {
            let follower = follow(self.node.clone(), target.spec.id, (at, *token), *from, news.clone());
            OwnedTask::spawn(follower)
        });
        let followers: Vec<OwnedTask> = followers.collect();
        let begun = Some(format!("retry: 1000\nid: {}\nevent: begin\ndata: {{}}\n\n", position.text()));
        let closing = self.node.inner.closing.clone();
        let state = (received, position, followers, begun, closing);
        let stream = futures_util::stream::unfold(state, |mut state| async move {
            if let Some(begun) = state.3.take() {
                return Some((Ok::<_, std::io::Error>(begun), state));
            }
            let (token, outcome) = tokio::select! {
                news = state.0.recv() => news?,
                () = state.4.cancelled() => return None,
            };
            match outcome {
                Ok((changes, next)) => {
                    let text = events(&mut state.1, token, &changes, next);
                    Some((Ok(text), state))
                }
                Err(error) => {
                    let data = json!({ "_error": error.to_string(), "status": error.status() });
                    state.0.close();
                    Some((Ok(format!("event: error\ndata: {data}\n\n")), state))
                }
            }
        });
        let mut answer = Answer::new(Body::from_stream(stream));
        let kind = HeaderValue::from_static("text/event-stream");
        answer.headers_mut().insert(header::CONTENT_TYPE, kind);
        answer.headers_mut().insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
        Ok(answer)
    }
}

/// The position of everything that has happened so far.
async fn now(node: &Node, tokens: &[Token]) -> Result<Position, DocsError> {
    let asked = tokens.iter().map(|token| node.inner.router.ask(*token, Command::Position {}));
    let replies = futures_util::future::join_all(asked).await;
    let offsets = replies.into_iter().map(|reply| match reply? {
        Reply::Count(offset) => Ok(offset),
        _ => Err(unexpected()),
    });
    Ok(Position(offsets.collect::<Result<_, DocsError>>()?))
}

/// Asks one token for its changes, again and again, until the client has gone or the changes are not kept any more.
async fn follow(
    node: Node,
    collection: CollectionId,
    (at, token): (usize, Token),
    mut from: i64,
    news: mpsc::Sender<News>,
) {
    while !news.is_closed() {
        let outcome = match node.inner.router.ask(token, Command::Changes { collection, from }).await {
            Ok(Reply::Changes { changes, next }) => {
                from = next;
                Ok((changes, next))
            }
            Ok(_) => Err(unexpected()),
            // The primary changed, or is being chosen: nothing was missed.
            Err(DocsError::Busy(_) | DocsError::Unknown(_)) => continue,
            Err(error) => Err(error),
        };
        let ended = outcome.is_err();
        if news.send((at, outcome)).await.is_err() || ended {
            return;
        }
    }
}

/// The events of one answer of a token. Without changes, a comment keeps the connection open.
fn events(position: &mut Position, token: usize, changes: &[Changed], next: i64) -> String {
    let mut text = String::new();
    let mut changes = changes.iter().peekable();
    while let Some(change) = changes.next() {
        // Several documents may change in one entry: only its last change is behind it.
        let is_last = changes.peek().is_none_or(|later| later.offset > change.offset);
        position.advance(token, change.offset + i64::from(is_last));
        let kind = match (&change.document, &change.id) {
            (Some(document), _) if document.get("_cre") == document.get("_chg") => "insert",
            (Some(_), _) => "update",
            (None, Some(_)) => "delete",
            (None, None) => "drop",
        };
        let mut data = json!({ "op": kind });
        if let Some(id) = &change.id {
            data["_id"] = to_json(id.clone());
        }
        if let Some(document) = &change.document {
            data["doc"] = document_to_json(document.clone());
        }
        text.push_str(&format!("id: {}\nevent: {kind}\ndata: {data}\n\n", position.text()));
    }
    position.advance(token, next);
    if text.is_empty() { ":\n\n".to_owned() } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_goes_to_text_and_back() {
        let position = Position::parse("v1:0.12.7", 3).unwrap();
        assert_eq!(position.text(), "v1:0.12.7");
        for wrong in ["", "0.1.2", "v1:0.1", "v1:0.-1.2", "v1:a.b.c", "v2:0.1.2"] {
            assert!(Position::parse(wrong, 3).is_err(), "{wrong}");
        }
    }

    #[test]
    fn events_name_what_happened_and_where_to_go_on() {
        let mut position = Position(vec![0, 0]);
        let changed =
            |offset, document, id: Option<&str>| Changed { offset, document, id: id.map(Into::into) };
        let changes = [
            changed(4, Some(bson::doc! { "_id": "a", "_cre": 1_i64, "_chg": 1_i64 }), Some("a")),
            changed(5, Some(bson::doc! { "_id": "a", "_cre": 1_i64, "_chg": 2_i64 }), Some("a")),
            changed(6, None, Some("a")),
        ];
        let text = events(&mut position, 1, &changes, 7);
        let kinds: Vec<&str> = text.lines().filter_map(|line| line.strip_prefix("event: ")).collect();
        assert_eq!(kinds, ["insert", "update", "delete"]);
        assert!(
            text.contains("id: v1:0.7\nevent: delete\ndata: {\"op\":\"delete\",\"_id\":\"a\"}"),
            "{text}"
        );
        assert_eq!(position.text(), "v1:0.7");
        assert_eq!(events(&mut position, 0, &[], 3), ":\n\n");
    }
}
