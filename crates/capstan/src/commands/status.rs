//! `capstan status`: green, or the first thing to do.

use anyhow::Result;
use capstan_control::api::{self, HostLine};
use capstan_control::drain::DrainPhase;
use capstan_fleet::Fleet;
use serde_json::json;

use crate::commands::version::VERSION;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Exits with 0 if all is well, with 1 if there is something to do, with 69 if the metadata store \
    cannot be reached."
)]
pub(crate) struct StatusArgs {}

/// Something that somebody should look at.
struct Finding {
    what: String,
    to_do: String,
}

pub(crate) async fn run(_: StatusArgs, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    let status = store.status().await?;
    let list = api::hosts_list(&store).await?;
    let mut findings: Vec<Finding> = list.problems.iter().map(|problem| unreadable(problem)).collect();
    findings.extend(list.hosts.iter().filter_map(finding));
    findings.extend(list.hosts.iter().filter_map(version_skew));
    findings.extend(stopped_update(&Fleet::new(store, context.config()?.fleet.tree)).await?);
    if list.hosts.is_empty() {
        findings.push(Finding {
            what: "no host is registered".to_owned(),
            to_do: "start one: capstan host, or capstan up".to_owned(),
        });
    }
    let up = list.hosts.iter().filter(|line| line.up).count();
    match context.out.format {
        Format::Json => context.out.json(&json!({
            "green": findings.is_empty(),
            "hosts_up": up,
            "revision": status.revision,
            "findings": findings.iter().map(|f| json!({ "what": f.what, "to_do": f.to_do })).collect::<Vec<_>>(),
        }))?,
        Format::Table => {
            match findings.first() {
                None => context.out.line("green: nothing to do")?,
                Some(first) => context.out.line(format!("{}\ndo first: {}", first.what, first.to_do))?,
            }
            for other in findings.iter().skip(1) {
                context.out.line(format!("also: {}", other.what))?;
            }
            context.out.line(format!("hosts up: {up}, metadata at revision {}", status.revision))?;
        }
    }
    Ok(if findings.is_empty() { Exit::Done } else { Exit::Failed })
}

/// An update of the fleet that waits for an operator.
async fn stopped_update(fleet: &Fleet) -> Result<Option<Finding>> {
    let request = fleet.store().read(&fleet.tree().current()).await?.map(|seen| seen.record);
    Ok(request.filter(|request| request.stop).map(|request| Finding {
        what: format!("the update of the fleet to {} is stopped ({})", request.version, request.stop_reason),
        to_do: "see why (capstan fleet status), then: capstan fleet recover".to_owned(),
    }))
}

fn unreadable(problem: &str) -> Finding {
    Finding {
        what: format!("unreadable record: {problem}"),
        to_do: "look at it (capstan meta get KEY) and put it right or delete it".to_owned(),
    }
}

fn finding(line: &HostLine) -> Option<Finding> {
    let host = &line.host;
    let drain = line.drain.as_ref()?;
    let waiting = drain.waiting().join("; ");
    let (what, to_do) = match drain.phase {
        DrainPhase::Draining => (format!("host {host} is draining"), format!("wait for {waiting}")),
        DrainPhase::Drained => (
            format!("host {host} is drained ({})", drain.reason),
            format!("do the work it was drained for, then: capstan hosts undrain {host}"),
        ),
        DrainPhase::Returning => (format!("host {host} is returning"), format!("wait for {waiting}")),
        DrainPhase::Returned => return None,
    };
    Some(Finding { what, to_do })
}

fn version_skew(line: &HostLine) -> Option<Finding> {
    (line.up && line.version != VERSION).then(|| Finding {
        what: format!("host {} runs version {}, this command is {VERSION}", line.host, line.version),
        to_do: "bring hosts and command to the same version".to_owned(),
    })
}
