//! What does a request ask for? For the metrics only: routes decide for themselves.

use axum::http::Method;

use crate::metrics::RequestKind;
use crate::router::COMMANDS;

/// The kind of a request, by its method and its path below the path of the API.
pub(super) fn kind_of(method: &Method, path: &[&str]) -> RequestKind {
    let below = path.strip_prefix(&["db"]);
    match below.unwrap_or(path) {
        [COMMANDS, _] => RequestKind::Peer,
        ["sp" | "admin" | "cluster", ..] => RequestKind::Administration,
        ["metrics", "api" | "db"] => RequestKind::Administration,
        ["backup" | "restore" | "backup-schedule" | "log" | "monitoring"] => RequestKind::Administration,
        ["db", rest @ ..] => kind_of_data(method, rest),
        ["healthz" | "version" | "openapi.json" | "swagger.yml" | "api-docs"] => RequestKind::Other,
        // A client that leaves the path of the API away.
        rest if below.is_some() => kind_of_data(method, rest),
        _ => RequestKind::Other,
    }
}

fn kind_of_data(method: &Method, path: &[&str]) -> RequestKind {
    match (method.as_str(), path) {
        (_, [] | [_] | [_, _, "index" | "collection", ..]) => RequestKind::Catalogue,
        ("POST", [_, _, "backup"]) => RequestKind::Administration,
        ("GET", [_, _]) | ("GET", [_, _, "explain" | "group", ..]) => RequestKind::Find,
        ("GET", [_, _, "count"]) => RequestKind::Count,
        ("GET", [_, _, "changes"]) => RequestKind::Changes,
        ("POST", [_, _, "bulk"]) => RequestKind::Bulk,
        ("POST", [_, _]) => RequestKind::Insert,
        ("PUT", [_, _]) => RequestKind::Update,
        (_, [_, _, _, "attachment", ..]) => RequestKind::Attachment,
        ("DELETE", [_, _] | [_, _, _]) => RequestKind::Delete,
        ("GET", [_, _, _]) => RequestKind::Get,
        ("PUT", [_, _, _]) => RequestKind::Replace,
        _ => RequestKind::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_route_has_a_kind() {
        for (method, path, expected) in [
            ("GET", "db/db", RequestKind::Catalogue),
            ("POST", "db/db/d", RequestKind::Catalogue),
            ("POST", "db/db/d/c/index/f", RequestKind::Catalogue),
            ("DELETE", "db/db/d/c/collection", RequestKind::Catalogue),
            ("GET", "db/db/d/c", RequestKind::Find),
            ("GET", "db/db/d/c/group/f", RequestKind::Find),
            ("GET", "db/db/d/c/count", RequestKind::Count),
            ("GET", "db/db/d/c/changes", RequestKind::Changes),
            ("GET", "db/db/d/c/0123", RequestKind::Get),
            ("POST", "db/db/d/c", RequestKind::Insert),
            ("POST", "db/db/d/c/bulk", RequestKind::Bulk),
            ("PUT", "db/db/d/c", RequestKind::Update),
            ("PUT", "db/db/d/c/0123", RequestKind::Replace),
            ("DELETE", "db/db/d/c", RequestKind::Delete),
            ("DELETE", "db/db/d/c/0123", RequestKind::Delete),
            ("POST", "db/db/d/c/0123/attachment", RequestKind::Attachment),
            ("DELETE", "db/db/d/c/0123/attachment/f", RequestKind::Attachment),
            ("POST", "db/sp", RequestKind::Administration),
            ("GET", "db/admin/user", RequestKind::Administration),
            ("POST", "db/backup", RequestKind::Administration),
            ("GET", "db/metrics/api", RequestKind::Administration),
            ("POST", "db/db/d/c/backup", RequestKind::Administration),
            ("GET", "db/swagger.yml", RequestKind::Other),
            ("POST", "docs-internal/0", RequestKind::Peer),
            ("GET", "db/d/c", RequestKind::Find),
            ("GET", "db/healthz", RequestKind::Other),
            ("GET", "nowhere", RequestKind::Other),
            ("PATCH", "db/db/d/c", RequestKind::Other),
        ] {
            let path: Vec<&str> = path.split('/').collect();
            let method = Method::from_bytes(method.as_bytes()).unwrap();
            assert_eq!(kind_of(&method, &path), expected, "{method} {path:?}");
        }
    }
}
