//! The start page: is it well, which hosts are there, what runs where. Plain HTML from the server, no script.

use std::fmt::Write as _;

use axum::extract::State as Extract;
use axum::http::StatusCode;
use axum::response::{Html, IntoResponse, Response};
use capstan_control::api::{self, HostLine, HostList};
use capstan_control::findings::{Health as Found, Severity};

use crate::health::{checks, class};
use crate::hosts::standing;
use crate::{ApiError, State};

pub(crate) const STYLE: &str = "\
:root { color-scheme: light dark; --line: #8884; --good: light-dark(#116329, #56d364); \
--bad: light-dark(#8f4700, #f0a35e); --soft: light-dark(#595959, #a8a8a8); }\
body { font: 16px/1.5 system-ui, sans-serif; max-width: 60rem; margin: 2rem auto; padding: 0 1rem; }\
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.1rem; margin: 2rem 0 .5rem; }\
header { display: flex; align-items: baseline; gap: 1rem; border-bottom: 1px solid var(--line); padding-bottom: .7rem; }\
header span { color: var(--soft); } .scroll { overflow-x: auto; }\
.state { display: inline-block; padding: 0 .5rem; border-radius: .3rem; border: 1px solid currentColor; }\
.good { color: var(--good); } .bad { color: var(--bad); }\
table { border-collapse: collapse; width: 100%; } caption { text-align: left; color: var(--soft); }\
th, td { text-align: left; padding: .3rem .8rem .3rem 0; border-bottom: 1px solid var(--line); vertical-align: top; }\
code { font: .9em ui-monospace, monospace; } footer { margin-top: 2.5rem; color: var(--soft); }";

pub(crate) async fn start(Extract(state): Extract<State>) -> Response {
    let (parts, found) = tokio::join!(checks(&state), state.findings.health());
    let reasons: Vec<String> =
        parts.iter().filter_map(|(part, reason)| Some(format!("{part}: {}", reason.as_ref()?))).collect();
    let hosts = api::hosts_list(&state.store).await.map_err(ApiError::from);
    let status = if reasons.is_empty() { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE };
    (status, Html(document(&state, &reasons, &found, hosts.ok().as_ref()))).into_response()
}

fn document(state: &State, reasons: &[String], found: &Found, hosts: Option<&HostList>) -> String {
    let about = &state.about;
    let host = about.host.as_deref().unwrap_or("no host");
    format!(
        "<!doctype html><html lang=en><head><meta charset=utf-8><title>Capstan - {host}</title>\
         <meta name=viewport content='width=device-width, initial-scale=1'><style>{STYLE}</style></head><body>\
         <header><h1>Capstan</h1><span>{host}, version {version}</span></header><main>{health}{findings}{hosts}{endpoints}</main>\
         <footer>More: <a href=/redis>redis</a>, <a href=/fleet>updates of the fleet</a>. The same for programs: <a href=/api/v1/hosts>/api/v1/hosts</a>, <a href=/readyz>/readyz</a>, \
         <a href=/metrics>/metrics</a>, <a href=/version>/version</a></footer></body></html>\n",
        host = escape(host),
        version = escape(&about.version),
        health = health(reasons),
        findings = findings(found),
        hosts = hosts_section(hosts),
        endpoints = endpoints(&about.endpoints),
    )
}

fn health(reasons: &[String]) -> String {
    if reasons.is_empty() {
        return "<h2>Status</h2><p><span class='state good'>ready</span></p>".to_owned();
    }
    let reasons: String = reasons.iter().map(|reason| format!("<li>{}</li>", escape(reason))).collect();
    format!("<h2>Status</h2><p><span class='state bad'>not ready</span></p><ul>{reasons}</ul>")
}

/// What is wrong with the cluster, worst first.
fn findings(found: &Found) -> String {
    let word = match found.worst() {
        None | Some(Severity::Notice) => "<span class='state good'>green</span>",
        Some(Severity::Degraded) => "<span class='state bad'>degraded</span>",
        Some(Severity::Critical) => "<span class='state bad'>critical</span>",
    };
    let mut text = format!("<h2>Cluster</h2><p>{word}</p>");
    if found.findings.is_empty() {
        return text;
    }
    text.push_str("<div class=scroll><table><tr><th>Severity<th>What<th>Object<th>Cause<th>What to do</tr>");
    for finding in &found.findings {
        let _ = write!(
            text,
            "<tr><td class='{}'>{}<td><code>{}</code><td>{}<td>{}<td>{}</tr>",
            class(finding.severity),
            finding.severity,
            escape(finding.code.as_str()),
            escape(&finding.object),
            escape(&finding.cause),
            escape(&finding.action),
        );
    }
    text.push_str("</table></div>");
    text
}

fn hosts_section(hosts: Option<&HostList>) -> String {
    let Some(list) = hosts else {
        return "<h2>Hosts</h2><p class=bad>The metadata store does not answer.</p>".to_owned();
    };
    let mut text = String::from("<h2>Hosts</h2>");
    if list.hosts.is_empty() {
        text.push_str("<p>No host is registered. Start one with <code>capstan host</code>.</p>");
        return text;
    }
    text.push_str(
        "<div class=scroll><table><tr><th>Host<th>State<th>Roles<th>Addresses<th>Labels<th>Version</tr>",
    );
    for line in &list.hosts {
        host_row(&mut text, line);
    }
    text.push_str("</table></div>");
    for problem in &list.problems {
        let _ = write!(text, "<p class=bad>{}</p>", escape(problem));
    }
    text
}

fn host_row(text: &mut String, line: &HostLine) {
    let standing = standing(line);
    let class = if standing == "up" { "good" } else { "bad" };
    let roles: Vec<String> = line.roles.iter().map(ToString::to_string).collect();
    let pairs = |map: &std::collections::BTreeMap<String, String>| {
        let pairs: Vec<String> = map.iter().map(|(name, value)| escape(&format!("{name}={value}"))).collect();
        pairs.join("<br>")
    };
    let waiting: Vec<String> =
        line.drain.iter().flat_map(|drain| drain.waiting()).map(|why| escape(&why)).collect();
    let _ = write!(
        text,
        "<tr><td><code>{}</code><td><span class='state {class}'>{standing}</span> {}<td>{}<td><code>{}</code><td>{}<td>{}</tr>",
        escape(line.host.as_ref()),
        waiting.join("<br>"),
        escape(&roles.join(", ")),
        pairs(&line.addresses),
        pairs(&line.labels),
        escape(&line.version),
    );
}

fn endpoints(endpoints: &[(String, String)]) -> String {
    let mut text = String::from("<h2>This process</h2><div class=scroll><table><tr><th>What<th>Where</tr>");
    for (name, address) in endpoints {
        let _ = write!(text, "<tr><td>{}<td><code>{}</code></tr>", escape(name), escape(address));
    }
    text.push_str("</table></div>");
    text
}

/// Text that is only text in HTML.
pub(crate) fn escape(text: &str) -> String {
    let mut escaped = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => escaped.push_str("&amp;"),
            '<' => escaped.push_str("&lt;"),
            '>' => escaped.push_str("&gt;"),
            '"' => escaped.push_str("&quot;"),
            '\'' => escaped.push_str("&#39;"),
            other => escaped.push(other),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_from_the_metadata_stays_text() {
        assert_eq!(escape("<b title='x'>&\"</b>"), "&lt;b title=&#39;x&#39;&gt;&amp;&quot;&lt;/b&gt;");
        assert!(health(&["meta: <script>".to_owned()]).contains("meta: &lt;script&gt;"));
    }
}
