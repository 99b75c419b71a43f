//! Access as operators meet it: who gets in, and that no secret is shown anywhere.

use std::io::{Read as _, Write as _};
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::Stdio;

use serde_json::Value;

use crate::binary::{DEADLINE, Daemon, command, finish};

async fn closed_up(label: &str) -> Daemon {
    let settings = ["--set", "up.hosts=0", "--set", "host.id=one", "--set", "access.anonymous=none"];
    let args: Vec<&str> =
        ["up", "--port-base", "0", "--log-level", "debug"].into_iter().chain(settings).collect();
    Daemon::start(label, &args).await
}

/// Status, and the whole answer as text.
fn request(method: &str, url: &str, headers: &[String], body: &str) -> (u16, String) {
    let rest = url.strip_prefix("http://").unwrap();
    let (host, path) = rest.split_once('/').unwrap();
    let mut stream = std::net::TcpStream::connect(host).unwrap();
    stream.set_read_timeout(Some(DEADLINE)).unwrap();
    let headers: String = headers.iter().map(|line| format!("{line}\r\n")).collect();
    write!(
        stream,
        "{method} /{path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\nContent-Length: {}\r\n{headers}\r\n{body}",
        body.len()
    )
    .unwrap();
    let mut answer = String::new();
    stream.read_to_string(&mut answer).unwrap();
    (answer.split(' ').nth(1).unwrap().parse().unwrap(), answer)
}

fn bearer(key: &str) -> Vec<String> {
    vec![format!("Authorization: Bearer {key}")]
}

/// A command that reads a secret from stdin.
fn with_stdin(up: &Daemon, args: &[&str], text: &str) -> crate::binary::Run {
    let meta = up.endpoint("meta");
    let mut child = command(up.dir.path())
        .args(args)
        .args(["--meta", &meta])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
    finish(child.wait_with_output().unwrap())
}

#[tokio::test]
async fn the_local_user_has_a_key_and_others_need_one() {
    let up = closed_up("access").await;
    let hosts = format!("{}/api/v1/hosts", up.endpoint("http"));
    assert_eq!(request("GET", &hosts, &[], "").0, 401);
    let file = up.dir.join("data/access.key");
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    let local = std::fs::read_to_string(&file).unwrap();
    assert_eq!(request("GET", &hosts, &bearer(local.trim()), "").0, 200);

    up.capstan(&["access", "account", "create", "ci", "--grant", "host:one:view"]).ok();
    let key = up.capstan(&["access", "key", "create", "ci", "-o", "json"]).json();
    let text = key["key"].as_str().unwrap();
    assert_eq!(request("GET", &format!("{hosts}/one"), &bearer(text), "").0, 200);
    assert_eq!(request("GET", &hosts, &bearer(text), "").0, 403, "the grant is about one host");
    let drain = format!("{hosts}/one/drain");
    assert_eq!(request("PUT", &drain, &bearer(text), "").0, 403);
    let why = up.capstan(&["access", "why", "ci", "view", "host:one"]);
    assert!(why.code == 0 && why.stdout.contains("its own grant host:one:view"), "{why:#?}");
    let why = up.capstan(&["access", "why", "ci", "operate", "host:one"]);
    assert!(why.code == 1 && why.stdout.contains("denied"), "{why:#?}");
    let listed = up.capstan(&["access", "list", "-o", "json"]).json();
    assert_eq!(listed["identities"][0]["name"], "ci", "{listed}");
    up.capstan(&["access", "key", "revoke", key["id"].as_str().unwrap()]).ok();
    let refused = || match request("GET", &format!("{hosts}/one"), &bearer(text), "").0 {
        401 => Ok(()),
        other => Err(other.to_string()),
    };
    capstan_testkit::eventually("the key is refused", DEADLINE, async || refused()).await;
}

/// Everything that is written below a directory, except for the files that are meant to have a secret and the store's own.
fn files_below(dir: &Path, text: &mut String) {
    for entry in std::fs::read_dir(dir).unwrap() {
        let path = entry.unwrap().path();
        match path.is_dir() {
            true => files_below(&path, text),
            false if path.file_name().is_some_and(|name| name == "access.key") => {}
            false => *text += &String::from_utf8_lossy(&std::fs::read(&path).unwrap_or_default()),
        }
    }
}

/// The command lines of all processes.
pub fn process_list() -> String {
    let processes = std::fs::read_dir("/proc").unwrap().filter_map(|entry| {
        let read = std::fs::read(entry.ok()?.path().join("cmdline")).ok()?;
        Some(String::from_utf8_lossy(&read).into_owned())
    });
    processes.collect::<Vec<_>>().join("\n")
}

#[tokio::test]
async fn planted_secrets_are_shown_nowhere() {
    let password = "planted-password-8412";
    let up = closed_up("secrets").await;
    let base = up.endpoint("http");
    let mut shown = String::new();
    let mut keep = |run: crate::binary::Run| shown += &format!("{run:?}");
    keep(with_stdin(
        &up,
        &["access", "user", "create", "ann", "--role", "admin", "--password-stdin"],
        password,
    ));
    // An error about a password does not repeat it.
    keep(with_stdin(&up, &["access", "user", "password", "nobody"], password));
    let key = up.capstan(&["access", "key", "create", "ann", "-o", "json"]).json();
    let key = key["key"].as_str().unwrap().to_owned();
    let json = ["Content-Type: application/json".to_owned()];
    let session = format!("{base}/api/v1/session");
    let body = format!("{{\"user\":\"ann\",\"password\":\"{password}\"}}");
    let (status, answer) = request("POST", &session, &json, &body);
    assert_eq!(status, 200, "{answer}");
    let cookie = answer.lines().find_map(|line| line.split("capstan_session=").nth(1)).unwrap();
    let cookie = cookie.split(';').next().unwrap().to_owned();
    // Wrong in every way that may tempt an error to repeat what was sent.
    let wrong = format!("{{\"user\":\"ann\",\"password\":\"{password}\",\"more\":\"{key}\"}}");
    shown += &request("POST", &session, &json, &wrong).1;
    shown += &request("POST", &session, &json, &format!("{{\"user\":{password}")).1;
    shown += &request("GET", &format!("{base}/api/v1/hosts"), &bearer(&format!("{key}x")), "").1;
    shown += &request("PUT", &format!("{base}/api/v1/hosts/two/drain"), &bearer(&key), "").1;
    for path in ["/metrics", "/api/v1/events", "/api/v1/access", "/api/v1/tasks", "/api/v1/findings", "/"] {
        let (status, answer) = request("GET", &format!("{base}{path}"), &bearer(&key), "");
        assert_eq!(status, 200, "{path}: {answer}");
        shown += &answer;
    }
    for args in [
        &["access", "list"][..],
        &["access", "list", "-o", "json"],
        &["meta", "tree"],
        &["meta", "tree", "-o", "json"],
        &["events"],
        &["config", "show"],
        &["status"],
    ] {
        shown += &format!("{:?}", up.capstan(args));
    }
    shown += &up.process.log_text();
    shown += &process_list();
    shown += &up.etcdctl(&["get", "/", "--prefix"]).ok();
    files_below(&up.dir.join("data"), &mut shown);
    assert!(shown.contains("\"ann\"") && shown.contains("argon2id"), "this looked at too little");
    let part = |token: &str| token.rsplit('_').next().unwrap().to_owned();
    for secret in [password.to_owned(), part(&key), part(&cookie)] {
        let at = shown.find(&secret);
        assert!(at.is_none(), "{secret} in ...{}", &shown[at.unwrap_or(0).saturating_sub(300)..][..300]);
    }
    // Hashes are in the store, and in no output of ours.
    let tree: Value = up.capstan(&["access", "list", "-o", "json"]).json();
    let tree = tree.to_string() + &up.capstan(&["meta", "tree"]).ok();
    assert!(!tree.contains("argon2id") && !tree.contains("\"hash\""), "{tree}");
}
