//! How does a node become a primary or a replica? Only by a confirmed order, and never at the cost of its
//! data.

use capstan_redis_proxy::conversation::Conversation;
use capstan_redis_proxy::nodes::Data;
use tokio::time::Instant;
use tracing::{info, warn};

use super::super::error::{NodeError, Unsettled, io_error};
use super::super::functions;
use super::super::judge::{RoleStep, may_follow, role_step};
use super::super::probe::{Seen, look};
use super::super::takeover::{Outcome, take_over};
use super::super::wanted::{Persistence, Role, Wanted};
use super::{Asked, FUNCTION_TRIES, Node, TAKE_OVER_WITHIN, credentials, look_at};
use crate::address::Address;
use crate::shard::Succession;

impl Node {
    /// Takes the next step to its role; `seen` is updated. A role changes only by a confirmed order: a host
    /// that was frozen resumes with outdated orders.
    pub(super) async fn take_role(
        &mut self,
        talk: &mut Conversation,
        asked: &Asked<'_>,
        seen: &mut Seen,
    ) -> Result<(), Unsettled> {
        let step = role_step(&asked.order.role, seen);
        if step != RoleStep::Done && !(asked.confirmed)() {
            return Err(NodeError::Unconfirmed.into());
        }
        match (step, &asked.order.role) {
            (RoleStep::Done, _) => {}
            (RoleStep::Promote, _) | (RoleStep::Follow, Role::Primary) => {
                self.lead(talk, asked, seen).await?;
                info!(node = %self.address, offset = seen.offset, "node promoted");
                (seen.replica_of, seen.linked) = (None, true);
            }
            (RoleStep::Follow, Role::ReplicaOf(primary)) => {
                self.follow(talk, asked.wanted, primary, seen).await?;
            }
        }
        self.taking_over = None;
        Ok(())
    }

    /// Becomes a replica of a node that was observed as a primary, and with data if this node has some.
    async fn follow(
        &mut self,
        talk: &mut Conversation,
        wanted: &Wanted,
        primary: &Address,
        seen: &mut Seen,
    ) -> Result<(), Unsettled> {
        let leads = look_at(primary, credentials(wanted).as_ref()).await;
        let leads = leads.map_err(|error| NodeError::Primary(primary.clone(), error.to_string()))?;
        if let Some(followed) = &leads.replica_of {
            // This node is observed last, because it may be written to: it must not seem to be behind. If it
            // restarted with less, it stays locked: its replica would copy the loss.
            let whole = self.record.data >= Data::Whole;
            if whole && *followed == self.address && look(talk).await?.offset >= leads.offset {
                // The new primary takes over from this node, and makes it a replica when it has everything.
                // If this node has less than its replica, it has lost its data: there is nothing to take over.
                return Ok(());
            }
            return Err(NodeError::Primary(primary.clone(), "it is not a primary yet".to_owned()).into());
        }
        if !may_follow(seen, &leads) {
            return Err(NodeError::EmptyPrimary(primary.clone()).into());
        }
        if seen.replica_of.is_none() && seen.keys > 0 && wanted.persistence != Persistence::None {
            let whose =
                wanted.owner.as_ref().map(|(name, life)| format!("{name}-{life}")).unwrap_or_default();
            self.home.link_aside(&whose).map_err(io_error("cannot keep the data aside"))?;
        }
        info!(node = %self.address, %primary, "attaching node as a replica");
        talk.ask(&["REPLICAOF", primary.host(), &primary.port().to_string()]).await?;
        (seen.replica_of, seen.linked) = (Some(primary.clone()), false);
        Ok(())
    }

    /// Becomes a primary, in agreement with the one that it follows. Only a promotion because that one died
    /// does not wait for it indefinitely.
    async fn lead(
        &mut self,
        talk: &mut Conversation,
        asked: &Asked<'_>,
        seen: &Seen,
    ) -> Result<(), Unsettled> {
        let since = *self.taking_over.get_or_insert_with(Instant::now);
        let forced = asked.order.succession == Succession::Forced;
        if let Some(old) = &seen.replica_of {
            let credentials = credentials(asked.wanted);
            match take_over(talk, &self.address, old, credentials.as_ref(), asked.confirmed).await? {
                Outcome::Taken => return Ok(()),
                Outcome::Ahead => {}
                Outcome::Gone(why) if forced => {
                    warn!(node = %self.address, %old, why, "promoting node without the old primary");
                }
                Outcome::NotYet(why) if forced && since.elapsed() >= TAKE_OVER_WITHIN => {
                    warn!(node = %self.address, %old, why, "promoting node without the old primary");
                }
                Outcome::Gone(why) | Outcome::NotYet(why) => {
                    return Err(NodeError::NotTakenOver(old.clone(), why).into());
                }
            }
        }
        if !(asked.confirmed)() {
            return Err(NodeError::Unconfirmed.into());
        }
        talk.ask(&["REPLICAOF", "NO", "ONE"]).await?;
        Ok(())
    }

    /// Copies the cluster's functions once, before the node serves; gives up after some attempts if no other
    /// primary replies.
    pub(super) async fn copy_functions(
        &mut self,
        talk: &mut Conversation,
        wanted: &Wanted,
    ) -> Result<(), Unsettled> {
        if self.record.functions || wanted.owner.is_none() {
            return Ok(());
        }
        let copied = functions::copy(talk, &wanted.peers, credentials(wanted).as_ref()).await?;
        self.function_tries += 1;
        if !copied && self.function_tries < FUNCTION_TRIES {
            return Err(NodeError::NoFunctions.into());
        }
        if !copied {
            warn!(node = %self.address, "functions not copied; no other primary is reachable");
        }
        self.record.functions = true;
        Ok(self.save()?)
    }
}
