//! The page of Redis: clusters with a map of their slots, nodes, moves, hosts, and what is wrong. No script.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use capstan_redis::Address;
use capstan_redis::api::{self, ClusterPage, HostLine, MoveLine, NodeLine, Phase};
use capstan_redis::check::Report;
use capstan_redis::error::BrokerError;
use capstan_redis::spec::Mode;
use capstan_redis::status::{MoveState, Role};

use crate::State;
use crate::page::{STYLE, escape};

/// Clusters on one page; the JSON API has all of them.
const MOST_CLUSTERS: usize = 50;
/// Findings on one page.
const MOST_FINDINGS: usize = 50;
/// How often a browser looks again while something is under way, in seconds.
const REFRESH: u32 = 2;

const MAP_STYLE: &str = "\
.map { display: flex; height: 1.6rem; border-radius: .3rem; overflow: hidden; background: var(--line); margin: .5rem 0; }\
.map i { display: block; min-width: 1px; } .map .moving { background-image: repeating-linear-gradient(45deg, #fff6 0 4px, \
transparent 4px 8px); } .scale { display: flex; justify-content: space-between; color: var(--soft); font-size: .8rem; }\
.dot { display: inline-block; width: .8em; height: .8em; border-radius: .2em; margin-right: .4em; }\
td.number, th.number { text-align: right; padding-right: 1.4rem; }";

/// What the page is made of.
struct Seen {
    clusters: Vec<ClusterPage>,
    more: usize,
    hosts: Vec<HostLine>,
    report: Report,
}

pub(crate) async fn show(Extract(state): Extract<State>) -> Response {
    match look(&state).await {
        Ok(seen) => Html(document(&state, &seen)).into_response(),
        Err(error) => {
            let text =
                format!("<!doctype html><p>Redis cannot be read: {}</p>\n", escape(&error.to_string()));
            (StatusCode::SERVICE_UNAVAILABLE, Html(text)).into_response()
        }
    }
}

async fn look(state: &State) -> Result<Seen, BrokerError> {
    let lines = api::list(&state.store).await?;
    let mut clusters = Vec::new();
    for line in lines.iter().take(MOST_CLUSTERS) {
        match state.cluster_page(&line.name, true).await {
            Ok(page) => clusters.push(page),
            // It is being deleted, or has gone since.
            Err(BrokerError::NoCluster(_)) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(Seen {
        clusters,
        more: lines.len().saturating_sub(MOST_CLUSTERS),
        hosts: api::hosts_list(&state.store).await?,
        report: api::check(&state.store).await?,
    })
}

fn document(state: &State, seen: &Seen) -> String {
    let busy = !seen.report.pending.is_empty() || seen.clusters.iter().any(|page| !page.moves.is_empty());
    let refresh = if busy { format!("<meta http-equiv=refresh content={REFRESH}>") } else { String::new() };
    let clusters: String = seen.clusters.iter().map(cluster).collect();
    let none = if seen.clusters.is_empty() {
        "<p>There is no cluster. <code>capstan redis create NAME --nodes 3</code> makes one.</p>"
    } else {
        ""
    };
    let more =
        if seen.more > 0 { format!("<p>... and {} clusters more.</p>", seen.more) } else { String::new() };
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Capstan - redis</title>{refresh}\
         <meta name=viewport content='width=device-width, initial-scale=1'><style>{STYLE}{MAP_STYLE}</style></head><body>\
         <header><h1><a href=/>Capstan</a></h1><span>redis, version {version}</span></header>\
         <main>{none}{clusters}{more}{hosts}{report}</main>\
         <footer>The same for programs: <a href=/api/v1/redis/clusters>/api/v1/redis/clusters</a>, \
         <a href=/api/v1/redis/hosts>hosts</a>, <a href=/api/v1/redis/moves>moves</a>, \
         <a href=/api/v1/redis/check>check</a>; described in <a href=/api/v1/openapi.json>OpenAPI</a>. \
         In a terminal: <code>capstan redis show</code></footer></body></html>\n",
        version = escape(&state.about.version),
        hosts = hosts(&seen.hosts),
        report = report(&seen.report),
    )
}

/// Colours that differ as much as possible from their neighbours: steps of the golden angle.
fn colour(at: usize) -> String {
    format!("hsl({} 60% 55%)", (at * 137) % 360)
}

fn cluster(page: &ClusterPage) -> String {
    let line = &page.line;
    let (class, word) = match line.phase {
        Phase::Active => ("good", "active"),
        Phase::Creating => ("bad", "being created"),
        Phase::Moving => ("good", "moving slots"),
        Phase::Deleting => ("bad", "being deleted"),
    };
    let mode = match page.mode {
        Mode::Cluster => "cluster",
        Mode::Single => "single",
    };
    let mut text = format!(
        "<h2>Cluster {}</h2><p><span class='state {class}'>{word}</span> {} of {} nodes, {} replicas of each, {} of 16384 \
         slots, mode {mode}, epoch {}</p>",
        escape(line.name.as_ref()),
        line.primaries,
        line.wanted,
        line.replicas,
        line.slots,
        line.epoch,
    );
    text.push_str(&slot_map(page));
    text.push_str(&nodes(page));
    text.push_str(&moves(&page.moves));
    for pending in &page.pending {
        let _ = write!(text, "<p>{}</p>", escape(pending));
    }
    text
}

fn colours(page: &ClusterPage) -> BTreeMap<&Address, String> {
    page.nodes.iter().enumerate().map(|(at, node)| (&node.node, colour(at))).collect()
}

fn slot_map(page: &ClusterPage) -> String {
    let colours = colours(page);
    let mut text = String::from("<div class=map role=img aria-label='map of the slots'>");
    for line in &page.slot_map {
        let slots = u32::from(line.last) + 1 - u32::from(line.first);
        let colour =
            line.node.as_ref().and_then(|node| colours.get(node)).map_or("transparent", String::as_str);
        let owner = line.node.as_ref().map_or("none", Address::as_str);
        let (class, going) = match &line.moving_to {
            Some(to) => (" class=moving", format!(", going to {to}")),
            None => ("", String::new()),
        };
        let _ = write!(
            text,
            "<i{class} style='flex:{slots};background-color:{colour}' title='{}-{}: {}{}'></i>",
            line.first,
            line.last,
            escape(owner),
            escape(&going),
        );
    }
    text.push_str("</div><div class=scale><span>0</span><span>4096</span><span>8192</span><span>12288</span><span>16383</span></div>");
    text
}

fn nodes(page: &ClusterPage) -> String {
    let colours = colours(page);
    let mut text = String::from(
        "<div class=scroll><table><tr><th>Node<th>Role<th>Proxy<th>State<th class=number>Slots<th>Ranges\
         <th class=number>Keys<th class=number>Memory</tr>",
    );
    for node in &page.nodes {
        node_row(&mut text, node, colours.get(&node.node).map_or("", String::as_str));
    }
    text.push_str("</table></div>");
    text
}

fn node_row(text: &mut String, node: &NodeLine, colour: &str) {
    let role = match (&node.role, &node.replica_of) {
        (Role::Primary, _) => "primary".to_owned(),
        (Role::Replica, of) => format!("replica of {}", of.as_ref().map_or("none", Address::as_str)),
    };
    let (state, keys, memory) = match &node.live {
        Some(live) => (live.health.clone(), live.keys.to_string(), shown_bytes(live.used_memory)),
        None => ("not asked".to_owned(), "-".to_owned(), "-".to_owned()),
    };
    let class = if state == "ready" || node.live.is_none() { "good" } else { "bad" };
    let _ = write!(
        text,
        "<tr><td><span class=dot style='background:{colour}'></span><code>{}</code><td>{}<td><code>{}</code>\
         <td><span class={class}>{}</span><td class=number>{}<td><code>{}</code><td class=number>{keys}<td class=number>{memory}</tr>",
        escape(node.node.as_str()),
        escape(&role),
        escape(node.proxy.as_str()),
        escape(&state),
        node.slot_count,
        escape(&node.slots.join(", ")),
    );
}

fn shown_bytes(bytes: u64) -> String {
    let units = [("GiB", 1u64 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)];
    match units.into_iter().find(|(_, unit)| bytes >= *unit) {
        Some((name, unit)) => format!("{:.1} {name}", bytes as f64 / unit as f64),
        None => format!("{bytes} B"),
    }
}

fn moves(moves: &[MoveLine]) -> String {
    if moves.is_empty() {
        return String::new();
    }
    let mut text = String::from(
        "<div class=scroll><table><caption>Moves</caption><tr><th>Number<th>Slots<th>From<th>To<th>State<th>So far<th>Why</tr>",
    );
    for line in moves {
        let state = match line.state {
            MoveState::Queued => "waits",
            MoveState::Copying => "copying",
        };
        let so_far = line.progress.as_ref().map_or_else(String::new, |progress| {
            format!(
                "{}: {} keys, {}, pass {}, {} written again",
                progress.phase,
                progress.keys,
                shown_bytes(progress.bytes),
                progress.pass,
                progress.dirty
            )
        });
        let _ = write!(
            text,
            "<tr><td>{}<td>{}-{}<td><code>{}</code><td><code>{}</code><td>{state}<td>{}<td>{}</tr>",
            line.id,
            line.first,
            line.last,
            escape(line.source.node.as_str()),
            escape(line.target.node.as_str()),
            escape(&so_far),
            escape(&line.why),
        );
    }
    text.push_str("</table></div>");
    text
}

fn hosts(hosts: &[HostLine]) -> String {
    let mut text = String::from("<h2>Hosts</h2>");
    if hosts.is_empty() {
        text.push_str("<p>No host offers nodes. Hosts with the role <code>redis</code> add themselves.</p>");
        return text;
    }
    text.push_str("<div class=scroll><table><tr><th>Proxy<th>State<th class=number>Epoch<th>Nodes, and who uses them</tr>");
    for host in hosts {
        let (class, state) = match (host.reported_by.len(), host.draining) {
            (0, false) => ("good", "up".to_owned()),
            (0, true) => ("bad", "draining".to_owned()),
            (reports, _) => ("bad", format!("not reached by {reports}")),
        };
        let used = host.nodes.iter().map(|node| {
            let by = match (&node.cluster, &node.quarantine) {
                (Some(cluster), _) => cluster.to_string(),
                (None, Some(why)) => format!("none, until it is empty: {why}"),
                (None, None) => "none".to_owned(),
            };
            format!("<code>{}</code> {}", escape(node.node.as_str()), escape(&by))
        });
        let _ = write!(
            text,
            "<tr><td><code>{}</code><td><span class='state {class}'>{state}</span><td class=number>{}<td>{}</tr>",
            escape(host.proxy.as_str()),
            host.epoch,
            used.collect::<Vec<_>>().join("<br>"),
        );
    }
    text.push_str("</table></div>");
    text
}

fn report(report: &Report) -> String {
    let mut text = String::from("<h2>Check</h2>");
    if report.findings.is_empty() {
        text.push_str(
            "<p><span class='state good'>sound</span> The metadata contradicts itself nowhere.</p>",
        );
    } else {
        text.push_str("<div class=scroll><table><tr><th>Object<th>What is wrong<th>What puts it right</tr>");
        for finding in report.findings.iter().take(MOST_FINDINGS) {
            let _ = write!(
                text,
                "<tr><td>{}<td class=bad>{}<td>{}</tr>",
                escape(&finding.object),
                escape(&finding.problem),
                escape(&finding.remedy),
            );
        }
        text.push_str("</table></div>");
    }
    if !report.pending.is_empty() {
        let pending: String =
            report.pending.iter().map(|line| format!("<li>{}</li>", escape(line))).collect();
        let _ = write!(text, "<p>Waiting to be completed:</p><ul>{pending}</ul>");
    }
    text
}
