//! `capstan fleet apply|pause|resume|stop|recover|promote|rollback|retry|skip`: how an operator steers.

use std::time::Duration;

use anyhow::Result;
use capstan_fleet::Fleet;
use capstan_fleet::api::Stopped;
use capstan_fleet::lrn::go_list;
use clap::Args;

use super::reply::Reply;
use super::show::{exit, is_over};
use super::{asker, fleet, named};
use crate::commands::action::OperatorAction;
use crate::commands::wait::{Estimate, Progress, WaitArg, follow};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::say;

/// What to type to see how it goes.
const WATCH: &str = "capstan fleet status --watch";

#[derive(Debug, Args)]
#[command(after_help = "Examples:\n  capstan fleet apply            # the newest release\n  \
    capstan fleet apply 1.2.3 --reason 'fix for the disk bug'")]
pub(crate) struct ApplyArgs {
    /// The release; by default the newest one
    release: Option<String>,
    /// The reason, recorded for other operators
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    wait: WaitArg,
}

#[derive(Debug, Args)]
pub(crate) struct WishArgs {
    /// The reason, recorded for other operators
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The release to start over with; by default the one that was stopped
    release: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// The release; by default the last that succeeded before the present one
    release: Option<String>,
    /// The same as an option
    #[arg(long, value_name = "RELEASE", conflicts_with = "release")]
    to: Option<String>,
    /// The reason, recorded for other operators
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// The host: its number or its name
    host: String,
    /// Why the update continues without it
    #[arg(long)]
    reason: String,
}

impl ApplyArgs {
    pub(super) fn action(&self) -> OperatorAction {
        let release = self.release.as_ref();
        let object =
            release.map_or_else(|| "the newest release".to_owned(), |name| format!("release {name}"));
        OperatorAction::new("asked to roll out", object).because(&self.reason)
    }
}

impl WishArgs {
    pub(super) fn action(&self, action: &str) -> OperatorAction {
        OperatorAction::new(action, "fleet rollout").because(&self.reason)
    }
}

impl RollbackArgs {
    pub(super) fn action(&self) -> OperatorAction {
        let release = self.release.as_ref().or(self.to.as_ref());
        let object = release.map_or_else(|| "the last release".to_owned(), |name| format!("release {name}"));
        OperatorAction::new("asked to go back to", object).because(&self.reason)
    }
}

impl SkipArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("skipped", format!("fleet host {}", self.host)).because(&self.reason)
    }
}

pub(super) async fn apply(args: ApplyArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let release = fleet.meant(args.release.as_deref()).await?;
    fleet.apply(&release, &asker(&args.reason)).await?;
    let hosts = warn_if_nobody(&fleet).await?;
    let exit = Reply::new("apply", &release, format!("rolling release {release} out to {hosts} hosts"))
        .then(WATCH)
        .give(context)?;
    match args.wait.wait {
        Some(wait) => {
            context.record_action().await;
            rolled_out(&fleet, &release, wait).await
        }
        None => Ok(exit),
    }
}

/// Follows a rollout until it is over: its exit code says how it ended.
async fn rolled_out(fleet: &Fleet, release: &str, wait: Duration) -> Result<Exit> {
    let (what, mut bar) = (format!("release {release}"), Estimate::begin());
    follow(&what, wait, WATCH, async || {
        let status = fleet.status().await?;
        let left = status.waves.iter().map(|wave| wave.steps_left).sum();
        Ok(match exit(&status) {
            Exit::Waiting if !is_over(&status) => Progress::Going(bar.at(left).because(status.why)),
            over => Progress::Over(over),
        })
    })
    .await
}

/// Warns about what would keep an update from starting; returns the number of hosts.
async fn warn_if_nobody(fleet: &Fleet) -> Result<usize> {
    let status = fleet.status().await?;
    if status.leader.is_none() {
        say("capstan: no updater is running; start one with `capstan controller` or `capstan up`");
    }
    if status.hosts.is_empty() {
        say("capstan: the fleet has no hosts; add them with `capstan fleet join`");
    }
    Ok(status.hosts.len())
}

pub(super) async fn pause(args: WishArgs, context: &mut Context) -> Result<Exit> {
    fleet(context).await?.pause(&asker(&args.reason)).await?;
    Reply::new("pause", "", "paused: no new steps begin; running steps continue")
        .then("capstan fleet resume")
        .give(context)
}

pub(super) async fn resume(context: &mut Context) -> Result<Exit> {
    fleet(context).await?.resume().await?;
    Reply::new("resume", "", "resumed: hosts begin new steps again").then(WATCH).give(context)
}

pub(super) async fn stop(args: WishArgs, context: &mut Context) -> Result<Exit> {
    let stopped = fleet(context).await?.stop(&asker(&args.reason)).await?;
    let exit = Reply::new("stop", "", stop_text(&stopped))
        .then("capstan fleet recover, which starts over")
        .give(context)?;
    Ok(if stopped.is_confirmed() { exit } else { Exit::Waiting })
}

/// The result of a stop: the hosts that have confirmed, and those that have not.
fn stop_text(stopped: &Stopped) -> String {
    let mut text = match stopped.is_confirmed() {
        true => format!("stopped: all {} hosts have confirmed that nothing runs", stopped.confirmed.len()),
        false => format!("stopped: hosts {} have confirmed that nothing runs", go_list(&stopped.confirmed)),
    };
    if !stopped.pending.is_empty() {
        let hosts = go_list(&stopped.pending);
        text.push_str(&format!("; hosts {hosts} have not yet (a package installation is finished first)"));
    }
    if !stopped.down.is_empty() {
        let hosts = go_list(&stopped.down);
        text.push_str(&format!(
            "; the workers of hosts {hosts} are down and stop running steps when they start"
        ));
    }
    text
}

pub(super) async fn recover(args: RecoverArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let release = match args.release.as_deref() {
        Some(named) => Some(fleet.meant(Some(named)).await?),
        None => None,
    };
    fleet.recover(release.as_deref(), &asker("")).await?;
    let what =
        release.as_deref().map_or_else(|| "the same release".to_owned(), |name| format!("release {name}"));
    let object = release.clone().unwrap_or_default();
    Reply::new("recover", object, format!("cleared the stopped update; {what} starts over"))
        .then(WATCH)
        .give(context)
}

pub(super) async fn promote(context: &mut Context) -> Result<Exit> {
    fleet(context).await?.promote().await?;
    Reply::new("promote", "", "the next wave starts now").then(WATCH).give(context)
}

pub(super) async fn rollback(args: RollbackArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let named = args.to.as_deref().or(args.release.as_deref());
    let to = fleet.rollback(named, &asker(&args.reason)).await?;
    Reply::new("rollback", &to, format!("rolling the fleet back to release {to}")).then(WATCH).give(context)
}

pub(super) async fn retry(host: &str, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let lrn = named(&fleet, host).await?;
    fleet.retry(lrn).await?;
    Reply::new("retry", lrn, format!("host {lrn} is retried from its last step")).then(WATCH).give(context)
}

pub(super) async fn skip(args: SkipArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let lrn = named(&fleet, &args.host).await?;
    fleet.skip(lrn, &asker(&args.reason)).await?;
    let down = fleet.hosts().await?.hosts.iter().any(|line| line.lrn == lrn && !line.up);
    let counts = match down {
        true => "; it is down and counts as out of service until it is up or has left",
        false => "",
    };
    Reply::new("skip", lrn, format!("the update continues without host {lrn}{counts}"))
        .then(WATCH)
        .give(context)
}
