//! `LATENCY`: Redis's monitor of events inside one server. A proxy has none of those events, and says so.

use bytes::BufMut;

use crate::data::resp::{Request, Writer};

pub(super) fn answer<B: BufMut>(sub: &str, request: Request<'_>, out: &mut Writer<'_, B>) {
    match sub {
        "reset" => out.integer(0),
        "histogram" => out.map(0),
        "graph" => {
            let event = String::from_utf8_lossy(request.argument(2));
            out.error(&format!("ERR No samples available for event '{event}'"));
        }
        "doctor" => out.verbatim(
            "This is a proxy: it monitors no latency events. Slow commands are in SLOWLOG, and the proxy's own latencies \
             in its metrics.\n",
        ),
        _ => out.array(0),
    }
}
