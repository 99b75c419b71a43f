//! How do functions reach a node that joins a cluster? They are copied once from another primary, before the
//! node serves.
//!
//! Keys arrive with their slots; functions belong to every primary, and clients load them through the proxies
//! into the primaries that exist at that time. Replicas get them with their first sync.

use std::time::Duration;

use capstan_redis_protocol::resp::View;
use capstan_redis_proxy::conversation::{Conversation, Credentials, TalkError};
use tracing::debug;

use crate::address::Address;

/// The reply timeout of another primary, which may be remote.
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// Copies the functions of the first of these primaries that replies. False if none did.
pub(super) async fn copy(
    own: &mut Conversation,
    peers: &[Address],
    credentials: Option<&Credentials>,
) -> Result<bool, TalkError> {
    for peer in peers {
        let payload = match dump(peer, credentials).await {
            Ok(payload) => payload,
            // A server before 7.0 has no functions, and neither do the others of its cluster.
            Err(error) if error.has_code("ERR") => return Ok(true),
            Err(error) => {
                debug!(%peer, %error, "cannot copy functions from this primary");
                continue;
            }
        };
        own.ask(&[b"FUNCTION".as_slice(), b"RESTORE", &payload, b"REPLACE"]).await?;
        return Ok(true);
    }
    Ok(peers.is_empty())
}

async fn dump(peer: &Address, credentials: Option<&Credentials>) -> Result<Vec<u8>, TalkError> {
    let mut talk = Conversation::open(peer, credentials, ANSWER_WITHIN).await?;
    let reply = talk.ask(&["FUNCTION", "DUMP"]).await?;
    let payload = View::of(&reply).and_then(View::bytes).map(<[u8]>::to_vec);
    payload.ok_or_else(|| talk.unexpected("FUNCTION DUMP"))
}
