//! How is a replica promoted while the old primary is still alive? Without losing any acknowledged write.
//!
//! Coordinators make the old primary's proxy release the slots. When no more writes arrive, new ones are
//! paused at the old primary, the replica gets the rest, and both change their roles. Redis's own `FAILOVER`
//! does the same, but waits for an acknowledgement that replicas send once a second; here both sides are
//! queried, which takes milliseconds. Only a primary that does not reply, or is not one, is not waited for.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::probe::look;
use crate::address::Address;
use capstan_redis_proxy::conversation::{Conversation, Credentials, TalkError};

/// An old primary that does not reply within this time is gone: its clients wait already.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// Without a write for this long, none is in flight any more.
const QUIET_FOR: Duration = Duration::from_millis(20);
/// Writes that go on for longer are cut off: their clients get an error, and nothing is lost.
const QUIET_WITHIN: Duration = Duration::from_secs(3);
/// How long the replica may take for the rest, with writes paused.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(1);
/// The longest pause of writes: longer than all that follows, and bounded in case this process ends in
/// between.
const PAUSE: Duration = Duration::from_secs(3);
/// How often the replica's offset is checked.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// The result of a takeover.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The replica is a primary and has everything.
    Taken,
    /// The old primary replies, and has nothing that the replica lacks.
    Ahead,
    /// The old primary does not reply, or not yet.
    Gone(String),
    /// The old primary is reachable and the replica does not have everything yet.
    NotYet(String),
}

/// Takes over from `old`. `own` is the connection to the replica, whose address is `me`.
pub(super) async fn take_over(
    own: &mut Conversation,
    me: &Address,
    old: &Address,
    credentials: Option<&Credentials>,
    confirmed: &(dyn Fn() -> bool + Sync),
) -> Result<Outcome, TalkError> {
    let mut primary = match Conversation::open(old, credentials, ANSWER_WITHIN).await {
        Ok(primary) => primary,
        Err(error) => return Ok(Outcome::Gone(error.to_string())),
    };
    // In this order: the primary may be written to, and must not seem to be behind its replica.
    let replica = look(own).await?;
    let seen = match look(&mut primary).await {
        Ok(seen) => seen,
        Err(error) => return Ok(Outcome::Gone(error.to_string())),
    };
    if seen.loading {
        return Ok(Outcome::Gone("it is loading its data from disk".to_owned()));
    }
    // A primary with less than its replica is not the one that it followed: it restarted without its data.
    if seen.replica_of.is_some() || seen.offset < replica.offset {
        return Ok(Outcome::Ahead);
    }
    if !replica.linked {
        return Ok(Outcome::NotYet("the replica is not linked to it".to_owned()));
    }
    if let Err(error) = wait_until_quiet(own, &mut primary).await {
        return Ok(Outcome::NotYet(error.to_string()));
    }
    let pause = PAUSE.as_millis().to_string();
    if let Err(error) = primary.ask(&["CLIENT", "PAUSE", &pause, "WRITE"]).await {
        // A server before 6.2 cannot pause only writes.
        debug!(%old, %error, "cannot pause writes");
        return Ok(Outcome::Ahead);
    }
    if !has_everything(own, &mut primary).await? {
        let _ = primary.ask(&["CLIENT", "UNPAUSE"]).await;
        return Ok(Outcome::NotYet("the replica does not catch up".to_owned()));
    }
    // Checked last: this process may have been frozen since the order.
    if !confirmed() {
        let _ = primary.ask(&["CLIENT", "UNPAUSE"]).await;
        return Ok(Outcome::NotYet("its role was not confirmed recently".to_owned()));
    }
    own.ask(&["REPLICAOF", "NO", "ONE"]).await?;
    // If this fails, its own host attaches it; no clients are routed there any more.
    let port = me.port().to_string();
    for words in [&["REPLICAOF", me.host(), &port][..], &["CLIENT", "UNPAUSE"]] {
        if let Err(error) = primary.ask(words).await {
            debug!(%old, %error, "cannot demote the old primary");
        }
    }
    Ok(Outcome::Taken)
}

/// Waits, for a bounded time, until the primary has no more writes and the replica has everything.
async fn wait_until_quiet(own: &mut Conversation, primary: &mut Conversation) -> Result<(), TalkError> {
    let end = Instant::now() + QUIET_WITHIN;
    let mut before = look(primary).await?.offset;
    while Instant::now() < end {
        sleep(QUIET_FOR).await;
        let (has, replica) = (look(primary).await?.offset, look(own).await?.offset);
        if has == before && replica >= has {
            return Ok(());
        }
        before = has;
    }
    Ok(())
}

/// Waits until the replica has everything that the primary, whose writes are paused, has.
async fn has_everything(own: &mut Conversation, primary: &mut Conversation) -> Result<bool, TalkError> {
    let end = Instant::now() + CATCH_UP_WITHIN;
    while Instant::now() < end {
        let Ok(seen) = look(primary).await else { return Ok(false) };
        let replica = look(own).await?;
        if replica.linked && replica.offset >= seen.offset {
            return Ok(true);
        }
        sleep(LOOK_EVERY).await;
    }
    Ok(false)
}
