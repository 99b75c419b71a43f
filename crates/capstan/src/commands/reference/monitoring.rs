//! Generated from the declarations for monitoring: the page of metrics, the alert rules, the dashboard.

use std::fmt::Write as _;

use capstan_console::metrics::catalogue::{ALERTS, METRICS, MetricKind, PANELS};
use serde_json::{Value, json};

/// Panels side by side, and the size of one in Grafana's grid of 24 columns.
const COLUMNS: usize = 2;
const SIZE: (usize, usize) = (12, 8);

pub(super) fn metrics() -> String {
    let mut page = String::from(
        "# Metrics\n\nEvery process of Capstan serves these at `/metrics` in the text form of OpenMetrics. Printed from the \
         declarations by `capstan reference metrics`; do not edit.\nRules for alerts are in `deploy/alerts.yml`, a dashboard is in \
         `deploy/grafana/capstan.json`; both are printed the same way.\n\n| metric | kind | labels | meaning |\n|---|---|---|---|\n",
    );
    for metric in METRICS {
        let ending = match metric.kind {
            MetricKind::Counter => "_total",
            MetricKind::Info => "_info",
            MetricKind::Gauge | MetricKind::Histogram => "",
        };
        let labels: Vec<String> = metric.labels.iter().map(|label| format!("`{label}`")).collect();
        let labels = if labels.is_empty() { "-".to_owned() } else { labels.join(", ") };
        let _ = writeln!(
            page,
            "| `{}{ending}` | {} | {labels} | {} |",
            metric.name,
            metric.kind.word(),
            metric.help
        );
    }
    page.push_str("\n## Alerts\n\n| alert | severity | fires when | for |\n|---|---|---|---|\n");
    for alert in ALERTS {
        let expr = alert.expr.replace('|', "\\|");
        let _ = writeln!(page, "| `{}` | {} | `{expr}` | {} |", alert.name, alert.severity, alert.for_);
    }
    page
}

pub(super) fn alerts() -> String {
    let mut text = String::from(
        "# Rules for Prometheus. Printed by `capstan reference alerts`; do not edit.\ngroups:\n  - name: capstan\n    rules:\n",
    );
    for alert in ALERTS {
        let quoted = |text: &str| format!("'{}'", text.replace('\'', "''"));
        let _ = writeln!(
            text,
            "      - alert: {}\n        expr: {}\n        for: {}\n        labels:\n          severity: {}\n        annotations:\n          summary: {}",
            alert.name,
            quoted(alert.expr),
            alert.for_,
            alert.severity,
            quoted(alert.summary)
        );
    }
    text
}

pub(super) fn dashboard() -> Value {
    let panel = |(at, panel): (usize, &capstan_console::metrics::catalogue::Panel)| {
        json!({
            "id": at + 1,
            "type": "timeseries",
            "title": panel.title,
            "datasource": { "type": "prometheus", "uid": "${datasource}" },
            "gridPos": { "x": at % COLUMNS * SIZE.0, "y": at / COLUMNS * SIZE.1, "w": SIZE.0, "h": SIZE.1 },
            "fieldConfig": { "defaults": { "unit": panel.unit }, "overrides": [] },
            "targets": [{ "refId": "A", "expr": panel.query, "legendFormat": panel.legend }],
        })
    };
    json!({
        "title": "Capstan",
        "uid": "capstan",
        "schemaVersion": 39,
        "refresh": "10s",
        "time": { "from": "now-1h", "to": "now" },
        "templating": { "list": [{ "name": "datasource", "type": "datasource", "query": "prometheus" }] },
        "panels": PANELS.iter().enumerate().map(panel).collect::<Vec<_>>(),
    })
}
