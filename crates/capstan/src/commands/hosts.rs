//! `capstan hosts`: the machines of the cluster, drained and taken back.

use anyhow::{Result, bail};
use capstan_control::api::{self, DrainReply, HostLine};
use capstan_control::drain::{DrainChange, DrainPhase, DrainStatus};
use capstan_control::keys::HostId;
use std::time::{Duration, Instant};

use crate::config::span;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum HostsCommand {
    /// List the hosts that are up, and those that are being drained
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
}

#[derive(Debug, clap::Args)]
pub(crate) struct WishArgs {
    /// The host
    host: String,
    /// Why, for whoever looks at it later
    #[arg(long, default_value = "", hide_default_value = true)]
    reason: String,
    /// Wait until it is done, at most this long (such as 30s or 10m)
    #[arg(long, value_name = "SPAN", value_parser = parse_span)]
    wait: Option<Duration>,
}

fn parse_span(text: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| "write a time span such as 500ms, 30s or 10m".to_owned())
}

/// How often a drain is looked at while somebody waits for it.
const LOOK_EVERY: Duration = Duration::from_millis(200);

pub(crate) async fn run(command: HostsCommand, context: &mut Context) -> Result<Exit> {
    match command {
        HostsCommand::List => list(context).await,
        HostsCommand::Show { host } => show(&host, context).await,
        HostsCommand::Drain(args) => drain(args, context).await,
        HostsCommand::Undrain(args) => undrain(args, context).await,
    }
}

async fn list(context: &mut Context) -> Result<Exit> {
    let list = api::hosts_list(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&list)?,
        Format::Table => {
            let rows = list.hosts.iter().map(|line| {
                let roles: Vec<String> = line.roles.iter().map(ToString::to_string).collect();
                [
                    line.host.to_string(),
                    standing(line),
                    roles.join(","),
                    pairs(&line.addresses),
                    line.version.clone(),
                ]
            });
            context.out.table(["HOST", "STATE", "ROLES", "ADDRESSES", "VERSION"], rows.collect())?;
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
        ["started".to_owned(), when(line.started_at)],
    ];
    rows.extend(line.drain.iter().flat_map(drain_rows));
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}

fn drain_rows(drain: &DrainStatus) -> Vec<[String; 2]> {
    let mut rows = vec![
        ["drain asked by".to_owned(), format!("{} at {}", drain.asked_by, when(drain.asked_at))],
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
    let reply = api::drain(&store, &host, &operator(), &args.reason, &[]).await?;
    let done = |drain: Option<&DrainStatus>| drain.is_some_and(|drain| drain.phase == DrainPhase::Drained);
    settle(&host, reply, args.wait, done, context).await
}

async fn undrain(args: WishArgs, context: &mut Context) -> Result<Exit> {
    let (host, store) = (args.host.parse::<HostId>()?, context.store().await?);
    let reply = api::undrain(&store, &host, &operator(), &args.reason).await?;
    settle(&host, reply, args.wait, |drain| drain.is_none(), context).await
}

/// Waits if that was asked for, and says where the drain stands.
async fn settle(
    host: &HostId,
    mut reply: DrainReply,
    wait: Option<Duration>,
    done: impl Fn(Option<&DrainStatus>) -> bool,
    context: &mut Context,
) -> Result<Exit> {
    let begin = Instant::now();
    while let Some(wait) = wait
        && !done(reply.drain.as_ref())
    {
        if begin.elapsed() >= wait {
            let waiting = reply.drain.iter().flat_map(DrainStatus::waiting).collect::<Vec<_>>();
            bail!("host {host}: not done after {wait:?}; waiting for {}", waiting.join("; "));
        }
        tokio::time::sleep(LOOK_EVERY).await;
        reply.drain = drain_of(host, context).await?;
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

/// Where a host stands, in a word.
pub(crate) fn standing(line: &HostLine) -> String {
    let word = match (line.up, line.drain.as_ref().map(|drain| drain.phase)) {
        (true, None) => "up",
        (false, None) => "down",
        (_, Some(DrainPhase::Draining)) => "draining",
        (_, Some(DrainPhase::Drained)) => "drained",
        (_, Some(DrainPhase::Returning | DrainPhase::Returned)) => "returning",
    };
    if line.up || line.drain.is_none() { word.to_owned() } else { format!("{word}, down") }
}

fn pairs(map: &std::collections::BTreeMap<String, String>) -> String {
    let pairs: Vec<String> = map.iter().map(|(name, value)| format!("{name}={value}")).collect();
    if pairs.is_empty() { "-".to_owned() } else { pairs.join(" ") }
}

fn when(seconds: u64) -> String {
    let seconds = i64::try_from(seconds).unwrap_or(i64::MAX);
    jiff::Timestamp::from_second(seconds).map_or_else(|_| "-".to_owned(), |time| time.to_string())
}

/// Who asks: the user at the keyboard.
fn operator() -> String {
    std::env::var("USER").unwrap_or_else(|_| "operator".to_owned())
}
