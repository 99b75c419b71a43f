//! `capstan hosts`: lists the hosts of the cluster, drains and returns them.

use anyhow::Result;
use capstan_control::api::{self, DrainReply, HostLine};
use capstan_control::drain::{DrainChange, DrainPhase, DrainStatus};
use capstan_control::keys::HostId;
use capstan_control::time::rfc3339;
use serde_json::json;

use crate::commands::action::OperatorAction;
use crate::commands::wait::{Line, Progress, WaitArg, follow};
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum HostsCommand {
    /// List all known hosts: up, down, being drained
    List,
    /// Print everything about one host
    Show {
        /// The host
        host: String,
    },
    /// Ask the services on a host to move their work elsewhere
    Drain(WishArgs),
    /// Ask the services on a drained host to take up work again
    Undrain(WishArgs),
    /// Remove a host that is permanently down; refused while it holds data
    Remove {
        /// The host
        host: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct WishArgs {
    /// The host
    host: String,
    /// The reason, recorded for other operators
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    #[command(flatten)]
    wait: WaitArg,
}

impl HostsCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let asked = |what: &str, args: &WishArgs| {
            OperatorAction::new(format!("asked to {what}"), format!("host {}", args.host))
                .because(&args.reason)
        };
        match self {
            HostsCommand::Drain(args) => Some(asked("drain", args)),
            HostsCommand::Undrain(args) => Some(asked("undrain", args)),
            HostsCommand::List | HostsCommand::Show { .. } | HostsCommand::Remove { .. } => None,
        }
    }
}

pub(crate) async fn run(command: HostsCommand, context: &mut Context) -> Result<Exit> {
    match command {
        HostsCommand::List => list(context).await,
        HostsCommand::Show { host } => show(&host, context).await,
        HostsCommand::Drain(args) => drain(args, context).await,
        HostsCommand::Undrain(args) => undrain(args, context).await,
        HostsCommand::Remove { host } => remove(&host, context).await,
    }
}

async fn list(context: &mut Context) -> Result<Exit> {
    let list = api::hosts_list(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&list)?,
        Format::Table => {
            let rows = list.hosts.iter().map(|line| {
                let roles: Vec<String> = line.roles.iter().map(ToString::to_string).collect();
                // 80 columns; addresses are in `hosts show` and in the JSON.
                [line.host.to_string(), standing(line), roles.join(","), line.version.clone()]
            });
            context.out.table(["HOST", "STATE", "ROLES", "VERSION"], rows.collect())?;
        }
    }
    for problem in &list.problems {
        say(format!("capstan: {problem}"));
    }
    Ok(if list.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

async fn show(host: &str, context: &mut Context) -> Result<Exit> {
    let host: HostId = host.parse()?;
    let line = api::host_show(&context.store().await?, &host).await?;
    if context.out.format == Format::Json {
        context.out.json(&line)?;
        return Ok(Exit::Done);
    }
    let list = |names: Vec<String>| if names.is_empty() { "-".to_owned() } else { names.join(", ") };
    let mut rows = vec![
        ["host".to_owned(), line.host.to_string()],
        ["state".to_owned(), standing(&line)],
        ["roles".to_owned(), list(line.roles.iter().map(ToString::to_string).collect())],
        ["services".to_owned(), list(line.services.iter().map(ToString::to_string).collect())],
        ["addresses".to_owned(), pairs(&line.addresses)],
        ["labels".to_owned(), pairs(&line.labels)],
        ["version".to_owned(), line.version.clone()],
        ["started".to_owned(), rfc3339(line.started_at)],
    ];
    rows.extend(line.drain.iter().flat_map(drain_rows));
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}

fn drain_rows(drain: &DrainStatus) -> Vec<[String; 2]> {
    let mut rows = vec![
        ["drain asked by".to_owned(), format!("{} at {}", drain.asked_by, rfc3339(drain.asked_at))],
        [
            "drain reason".to_owned(),
            if drain.reason.is_empty() { "-".to_owned() } else { drain.reason.clone() },
        ],
    ];
    for service in &drain.services {
        let state = match &service.waiting_for {
            Some(reason) => format!("waiting: {reason}"),
            None => "done".to_owned(),
        };
        rows.push([format!("drain of {}", service.service), state]);
    }
    rows
}

async fn drain(args: WishArgs, context: &mut Context) -> Result<Exit> {
    let (host, store) = (args.host.parse::<HostId>()?, context.store().await?);
    let actor = context.operator();
    let reply = api::drain(&store, &host, &actor, &args.reason, &[]).await?;
    let done = |drain: Option<&DrainStatus>| drain.is_some_and(|drain| drain.phase == DrainPhase::Drained);
    settle(&host, reply, args.wait, done, context).await
}

async fn undrain(args: WishArgs, context: &mut Context) -> Result<Exit> {
    let (host, store) = (args.host.parse::<HostId>()?, context.store().await?);
    let actor = context.operator();
    let reply = api::undrain(&store, &host, &actor, &args.reason).await?;
    settle(&host, reply, args.wait, |drain| drain.is_none(), context).await
}

async fn remove(host: &str, context: &mut Context) -> Result<Exit> {
    let host: HostId = host.parse()?;
    capstan_console::remove_host(&context.store().await?, &host, &context.operator()).await?;
    match context.out.format {
        Format::Json => context.out.json(&json!({ "removed": host }))?,
        Format::Table => context.out.line(format!("removed host {host}"))?,
    }
    Ok(Exit::Done)
}

/// Waits if requested, and prints the status of the drain.
async fn settle(
    host: &HostId,
    mut reply: DrainReply,
    wait: WaitArg,
    done: impl Fn(Option<&DrainStatus>) -> bool,
    context: &mut Context,
) -> Result<Exit> {
    if let Some(wait) = wait.wait {
        context.record_action().await;
        let (what, check) = (format!("host {host}"), format!("capstan hosts show {host}"));
        let end = follow(&what, wait, &check, async || {
            reply.drain = drain_of(host, context).await?;
            let drain = reply.drain.as_ref();
            Ok(match done(drain) {
                true => Progress::Over(Exit::Done),
                false => {
                    let waiting: Vec<String> = drain.iter().flat_map(|drain| drain.waiting()).collect();
                    Progress::Going(Line::of(format!("waiting for {}", waiting.join("; "))))
                }
            })
        })
        .await?;
        if end != Exit::Done {
            return Ok(end);
        }
    }
    match context.out.format {
        Format::Json => context.out.json(&reply)?,
        Format::Table => context.out.line(sentence(host, &reply))?,
    }
    Ok(Exit::Done)
}

async fn drain_of(host: &HostId, context: &mut Context) -> Result<Option<DrainStatus>> {
    let list = api::hosts_list(&context.store().await?).await?;
    Ok(list.hosts.into_iter().find(|line| line.host == *host).and_then(|line| line.drain))
}

fn sentence(host: &HostId, reply: &DrainReply) -> String {
    if reply.change == DrainChange::NotDraining {
        return format!("host {host} is not being drained");
    }
    let Some(drain) = &reply.drain else { return format!("host {host} has returned") };
    let waiting = drain.waiting();
    match drain.phase {
        DrainPhase::Drained => format!("host {host} is drained"),
        DrainPhase::Returned => format!("host {host} has returned"),
        DrainPhase::Draining => format!("host {host} is draining; waiting for {}", waiting.join("; ")),
        DrainPhase::Returning => format!("host {host} is returning; waiting for {}", waiting.join("; ")),
    }
}

/// The state of a host, in a word.
pub(crate) fn standing(line: &HostLine) -> String {
    let down = line.down_since.map_or_else(|| "down".to_owned(), |at| format!("down since {}", rfc3339(at)));
    let word = match (line.up, line.drain.as_ref().map(|drain| drain.phase)) {
        (true, None) => "up",
        (false, None) => down.as_str(),
        (_, Some(DrainPhase::Draining)) => "draining",
        (_, Some(DrainPhase::Drained)) => "drained",
        (_, Some(DrainPhase::Returning | DrainPhase::Returned)) => "returning",
    };
    if line.up || line.drain.is_none() { word.to_owned() } else { format!("{word}, {down}") }
}

fn pairs(map: &std::collections::BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = map.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { "-".to_owned() } else { pairs.join(" ") }
}
