//! `capstan fleet apply|pause|resume|stop|recover|promote|rollback|retry|skip`: how an operator steers.

use anyhow::Result;
use capstan_fleet::Fleet;
use clap::Args;

use super::reply::Reply;
use super::{asker, fleet, named, releases};
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
    /// Why, for whoever looks at it later
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct WishArgs {
    /// Why, for whoever looks at it later
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct RecoverArgs {
    /// The release to begin anew with; by default the one that was stopped
    release: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct RollbackArgs {
    /// The release; by default the last that succeeded before the present one
    release: Option<String>,
    /// Why, for whoever looks at it later
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

#[derive(Debug, Args)]
pub(crate) struct SkipArgs {
    /// The host: its number or its name
    host: String,
    /// Why the update goes on without it
    #[arg(long)]
    reason: String,
}

pub(super) async fn apply(args: ApplyArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let release = releases::meant(&fleet, args.release.as_deref()).await?;
    fleet.apply(&release, &asker(&args.reason)).await?;
    let hosts = warn_if_nobody(&fleet).await?;
    Reply::new("apply", &release, format!("release {release} is wanted on {hosts} hosts"))
        .then(WATCH)
        .give(context)
}

/// Says what would keep an update from ever beginning; returns how many hosts there are.
async fn warn_if_nobody(fleet: &Fleet) -> Result<usize> {
    let status = fleet.status().await?;
    if status.leader.is_none() {
        say("capstan: no updater runs; start one with `capstan controller` or `capstan up`");
    }
    if status.hosts.is_empty() {
        say("capstan: the fleet has no hosts; `capstan fleet join` takes them in");
    }
    Ok(status.hosts.len())
}

pub(super) async fn pause(args: WishArgs, context: &mut Context) -> Result<Exit> {
    fleet(context).await?.pause(&asker(&args.reason)).await?;
    Reply::new("pause", "", "paused: no host begins anything new, and what is under way goes on")
        .then("capstan fleet resume")
        .give(context)
}

pub(super) async fn resume(context: &mut Context) -> Result<Exit> {
    fleet(context).await?.resume().await?;
    Reply::new("resume", "", "hosts begin again").then(WATCH).give(context)
}

pub(super) async fn stop(args: WishArgs, context: &mut Context) -> Result<Exit> {
    fleet(context).await?.stop(&asker(&args.reason)).await?;
    Reply::new("stop", "", "every host stops at once; only a package installation is finished first")
        .then("capstan fleet recover, which begins anew")
        .give(context)
}

pub(super) async fn recover(args: RecoverArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let release = match args.release.as_deref() {
        Some(named) => Some(releases::meant(&fleet, Some(named)).await?),
        None => None,
    };
    fleet.recover(release.as_deref(), &asker("")).await?;
    let what =
        release.as_deref().map_or_else(|| "the same release".to_owned(), |name| format!("release {name}"));
    let object = release.clone().unwrap_or_default();
    Reply::new("recover", object, format!("the stopped update is cleared away; {what} begins anew"))
        .then(WATCH)
        .give(context)
}

pub(super) async fn promote(context: &mut Context) -> Result<Exit> {
    fleet(context).await?.promote().await?;
    Reply::new("promote", "", "the next wave does not wait any longer").then(WATCH).give(context)
}

pub(super) async fn rollback(args: RollbackArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let to = fleet.rollback(args.release.as_deref(), &asker(&args.reason)).await?;
    Reply::new("rollback", &to, format!("the fleet goes back to release {to}")).then(WATCH).give(context)
}

pub(super) async fn retry(host: &str, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let lrn = named(&fleet, host).await?;
    fleet.retry(lrn).await?;
    Reply::new("retry", lrn, format!("host {lrn} tries again, from the step at which it failed"))
        .then(WATCH)
        .give(context)
}

pub(super) async fn skip(args: SkipArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let lrn = named(&fleet, &args.host).await?;
    fleet.skip(lrn, &asker(&args.reason)).await?;
    Reply::new("skip", lrn, format!("the update goes on without host {lrn}")).then(WATCH).give(context)
}
