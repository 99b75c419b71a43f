//! `capstan fleet init|join|leave|hosts`: the members of the fleet.

use std::collections::BTreeMap;

use anyhow::{Result, bail};
use capstan_control::keys::HostId;
use capstan_fleet::Lrn;
use capstan_fleet::api::{ConfigKey, HostLine, Init, Member};
use clap::Args;

use super::reply::Reply;
use super::{asker, fleet, named};
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, Args)]
#[command(after_help = "Example:\n  capstan fleet init 1=box1 2=box2 3=box3 --with source=/srv/releases")]
pub(crate) struct InitArgs {
    /// Hosts: a number each, and after `=` the name under which the host's daemon registers
    #[arg(required = true, value_name = "NUMBER[=NAME]")]
    hosts: Vec<String>,
    /// Set the configuration of the fleet, such as source=/srv/releases; may be repeated
    #[arg(long = "with", value_name = "KEY=VALUE")]
    with: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct JoinArgs {
    /// The host's number
    number: Lrn,
    /// The name under which the host's daemon registers, so that its services are drained
    #[arg(long, value_name = "NAME")]
    host: Option<String>,
    /// A fact about the host, such as zone=a; may be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
}

#[derive(Debug, Args)]
pub(crate) struct LeaveArgs {
    /// The host: its number or its name
    host: String,
    /// The reason, recorded for other operators
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
}

impl InitArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("created", format!("fleet of {} hosts", self.hosts.len()))
    }
}

impl JoinArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("added", format!("fleet host {}", self.number))
    }
}

impl LeaveArgs {
    pub(super) fn action(&self) -> OperatorAction {
        OperatorAction::new("removed", format!("fleet host {}", self.host)).because(&self.reason)
    }
}

pub(super) async fn init(args: InitArgs, context: &mut Context) -> Result<Exit> {
    let members = args.hosts.iter().map(|text| member(text)).collect::<Result<Vec<_>>>()?;
    let mut config = Vec::new();
    for pair in &args.with {
        let (key, value) = split(pair)?;
        config.push((key.parse::<ConfigKey>()?, value.to_owned()));
    }
    let count = members.len();
    fleet(context).await?.init(&Init { members, config }).await?;
    Reply::new("init", count, format!("the fleet has {count} hosts"))
        .then("capstan fleet apply, when there is a release")
        .give(context)
}

fn member(text: &str) -> Result<Member> {
    let (number, host) = match text.split_once('=') {
        Some((number, host)) => (number, Some(host.parse::<HostId>()?)),
        None => (text, None),
    };
    let Ok(lrn) = number.parse::<Lrn>() else {
        bail!("{text:?} is not a host: write its number, or number=name such as 1=box1");
    };
    Ok(Member { lrn, host, labels: BTreeMap::new() })
}

fn split(pair: &str) -> Result<(&str, &str)> {
    match pair.split_once('=') {
        Some((key, value)) if !key.is_empty() => Ok((key, value)),
        Some(_) | None => bail!("{pair:?}: write KEY=VALUE"),
    }
}

pub(super) async fn join(args: JoinArgs, context: &mut Context) -> Result<Exit> {
    let labels = args.labels.iter().map(|pair| split(pair)).collect::<Result<Vec<_>>>()?;
    let labels = labels.into_iter().map(|(key, value)| (key.to_owned(), value.to_owned())).collect();
    let host = args.host.as_deref().map(str::parse::<HostId>).transpose()?;
    let member = Member { lrn: args.number, host, labels };
    fleet(context).await?.join(&member).await?;
    let number = args.number;
    Reply::new("join", number, format!("host {number} joined the fleet; the next update includes it"))
        .give(context)
}

pub(super) async fn leave(args: LeaveArgs, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    let lrn = named(&fleet, &args.host).await?;
    fleet.leave(lrn, &asker(&args.reason)).await?;
    Reply::new("leave", lrn, format!("host {lrn} left the fleet; its installed packages stay")).give(context)
}

pub(super) async fn hosts(context: &mut Context) -> Result<Exit> {
    let list = fleet(context).await?.hosts().await?;
    match context.out.format {
        Format::Json => context.out.json(&list)?,
        Format::Table => {
            let header = ["HOST", "NAME", "WORKER", "GROUP", "RELEASE", "STATE", "LABELS"];
            context.out.table(header, list.hosts.iter().map(row).collect())?;
            if list.hosts.is_empty() {
                say("The fleet has no hosts; add them with `capstan fleet init` or `join`.");
            }
        }
    }
    for problem in &list.problems {
        say(format!("capstan: {problem}"));
    }
    Ok(if list.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn row(line: &HostLine) -> [String; 7] {
    let labels: Vec<String> = line.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    [
        line.lrn.to_string(),
        or_dash(line.host.as_ref().map(ToString::to_string).unwrap_or_default()),
        if line.up { "up" } else { "down" }.to_owned(),
        line.group.to_string(),
        or_dash(line.release.clone()),
        line.state.clone(),
        or_dash(labels.join(" ")),
    ]
}

/// A dash for an empty cell, which is easily overlooked.
pub(super) fn or_dash(text: String) -> String {
    if text.is_empty() { "-".to_owned() } else { text }
}
