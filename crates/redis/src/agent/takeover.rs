//! How does a replica become a primary while the old one still lives? So that nothing is lost that was acknowledged.
//!
//! The old primary's proxy is told to let go by coordinators. When no more writes come, the old primary is made to let
//! new ones wait, the replica gets the rest, and both change their roles. It is what Redis's own `FAILOVER` does, which
//! waits for an acknowledgement that replicas send once a second; here both sides are asked, which takes milliseconds.
//! Only a primary that does not answer, or is none, is not waited for.

use std::time::Duration;

use tokio::time::{Instant, sleep};
use tracing::debug;

use super::probe::look;
use crate::address::Address;
use crate::data::conversation::{Conversation, Credentials, TalkError};

/// An old primary that does not answer within this is gone: its clients wait already.
const ANSWER_WITHIN: Duration = Duration::from_millis(300);
/// Nothing was written for so long: nothing is on its way any more.
const QUIET_FOR: Duration = Duration::from_millis(20);
/// Writes that go on for longer are cut off: their clients get an error, and nothing is lost.
const QUIET_WITHIN: Duration = Duration::from_secs(3);
/// How long the replica may take for the rest, with writes waiting.
const CATCH_UP_WITHIN: Duration = Duration::from_secs(1);
/// Writes wait for so long at most: longer than all that follows, and not for ever if this process ends in between.
const PAUSE: Duration = Duration::from_secs(3);
/// How often it is looked whether the replica has everything.
const LOOK_EVERY: Duration = Duration::from_millis(2);

/// What became of it.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Outcome {
    /// The replica is a primary and has everything.
    Taken,
    /// There is nobody to take over from.
    Alone,
    /// The old primary is there and the replica has not got everything.
    NotYet(String),
}

/// Takes over from `old`. `own` is the conversation with the replica, which others reach at `me`.
pub(super) async fn take_over(
    own: &mut Conversation,
    me: &Address,
    old: &Address,
    credentials: Option<&Credentials>,
) -> Result<Outcome, TalkError> {
    let Ok(mut primary) = Conversation::open(old, credentials, ANSWER_WITHIN).await else {
        return Ok(Outcome::Alone);
    };
    // In this order: the primary may be written to, and must not seem to be behind its replica.
    let replica = look(own).await?;
    let Ok(seen) = look(&mut primary).await else { return Ok(Outcome::Alone) };
    // A primary that has less than its replica is not the one that it followed: it began anew, without its data.
    if seen.loading || seen.replica_of.is_some() || seen.offset < replica.offset {
        return Ok(Outcome::Alone);
    }
    if !replica.linked {
        return Ok(Outcome::NotYet("it does not hear it".to_owned()));
    }
    if let Err(error) = wait_until_quiet(own, &mut primary).await {
        return Ok(Outcome::NotYet(error.to_string()));
    }
    let pause = PAUSE.as_millis().to_string();
    if let Err(error) = primary.ask(&["CLIENT", "PAUSE", &pause, "WRITE"]).await {
        // A server from before 6.2 cannot let only writes wait.
        debug!(%old, %error, "writes were not paused");
        return Ok(Outcome::Alone);
    }
    if !has_everything(own, &mut primary).await? {
        let _ = primary.ask(&["CLIENT", "UNPAUSE"]).await;
        return Ok(Outcome::NotYet("it does not catch up".to_owned()));
    }
    own.ask(&["REPLICAOF", "NO", "ONE"]).await?;
    // If this fails its own host makes it follow; nobody is sent there any more.
    let port = me.port().to_string();
    for words in [&["REPLICAOF", me.host(), &port][..], &["CLIENT", "UNPAUSE"]] {
        if let Err(error) = primary.ask(words).await {
            debug!(%old, %error, "the old primary was not told");
        }
    }
    Ok(Outcome::Taken)
}

/// Waits until the primary writes nothing any more and the replica has everything, for a while.
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

/// Waits until the replica has all that the primary, which takes no writes, has.
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
