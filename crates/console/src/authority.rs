//! Is a request meant for this server? A page of another site can point its own name at this address (DNS rebinding) and
//! would then read and change what is served here: a `Host` that is none of ours is refused.

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::{Request, State as Extract};
use axum::http::{StatusCode, header};
use axum::middleware::Next;
use axum::response::{IntoResponse, Response};

use crate::{About, ApiError};

/// Where the kernel keeps the name of this machine.
const HOSTNAME: &str = "/proc/sys/kernel/hostname";

/// The names under which this server is reached, beside its addresses and `localhost`.
#[derive(Clone, Debug)]
pub(crate) struct Names(Arc<Vec<String>>);

impl Names {
    /// The id of the host and the name of the machine.
    pub(crate) fn of(about: &About) -> Names {
        let machine = std::fs::read_to_string(HOSTNAME).unwrap_or_default();
        let names = about.host.iter().cloned().chain([machine.trim().to_owned()]);
        Names(Arc::new(names.filter(|name| !name.is_empty()).collect()))
    }

    /// Whether a `Host` (with or without a port) names this server. An address does: no other site can own one.
    fn allow(&self, host: &str) -> bool {
        let name = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
            Some((address, _)) => address,
            None => host.rsplit_once(':').map_or(host, |(name, _)| name),
        };
        name.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || self.0.iter().any(|own| name.eq_ignore_ascii_case(own))
    }
}

/// Refuses requests that are meant for another server.
pub(crate) async fn check(Extract(names): Extract<Names>, request: Request, next: Next) -> Response {
    let header = request.headers().get(header::HOST).map(|host| host.to_str().unwrap_or("?").to_owned());
    let named = header.or_else(|| request.uri().authority().map(ToString::to_string));
    match named.filter(|host| !names.allow(host)) {
        None => next.run(request).await,
        Some(host) => {
            let text = format!(
                "{host} is not a name of this server; use its address, localhost, the name of the machine or host.id"
            );
            ApiError::with(StatusCode::MISDIRECTED_REQUEST, text).into_response()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_and_own_names_are_ours_and_nothing_else() {
        let names = Names(Arc::new(vec!["box1".to_owned()]));
        for ours in ["127.0.0.1:7700", "[::1]:7700", "10.0.0.7", "localhost:7700", "LOCALHOST", "box1:7700"] {
            assert!(names.allow(ours), "{ours}");
        }
        for foreign in
            ["evil.example:7700", "box1.evil.example", "localhost.evil.example", "", "127.0.0.1.evil.example"]
        {
            assert!(!names.allow(foreign), "{foreign}");
        }
    }
}
