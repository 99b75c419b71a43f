//! Do etcd's users, roles and permissions behave as on a real etcd? The same script on a real etcd and on the embedded
//! store, through etcdctl and through the etcd-client crate, with the same expectations.

mod clients;
mod commands;
mod durable;
mod tokens;

use std::process::{Command, Stdio};

use capstan_meta::OwnedTask;
use capstan_meta::embedded::{self, Embedded};
use capstan_meta::wire;
use capstan_testkit as testkit;
use etcd_client::{Client, ConnectOptions, Error};

use crate::wire_support::served_store;

/// What commands and clients are tried on.
pub struct Side {
    pub name: &'static str,
    pub endpoint: String,
    _server: Server,
}

#[expect(dead_code, reason = "they end with the side")]
enum Server {
    Etcd(Box<testkit::Etcd>),
    Embedded(OwnedTask),
}

impl Side {
    pub async fn etcd(arguments: &[String]) -> Side {
        let options = arguments.iter().fold(testkit::Etcd::options(), |options, one| options.arg(one));
        let etcd = options.start().await.unwrap();
        Side { name: "etcd", endpoint: etcd.endpoint().to_owned(), _server: Server::Etcd(Box::new(etcd)) }
    }

    pub async fn embedded(options: wire::Options) -> Side {
        Side::serve(Embedded::in_memory(embedded::Options::default()), options).await
    }

    pub async fn serve(store: Embedded, options: wire::Options) -> Side {
        let (endpoint, server) = served_store(store, options).await;
        Side { name: "embedded", endpoint, _server: Server::Embedded(server) }
    }

    /// Both, with everything as it comes.
    pub async fn both() -> [Side; 2] {
        [Side::etcd(&[]).await, Side::embedded(wire::Options::default()).await]
    }

    /// Runs etcdctl; what it printed, or the last line of its complaint.
    pub async fn ctl(&self, line: &str) -> Result<String, String> {
        let program = testkit::process::on_path("etcdctl".as_ref(), Some("etcd-client")).unwrap();
        let mut command = Command::new(program);
        command.env("ETCDCTL_API", "3").env("ETCDCTL_ENDPOINTS", &self.endpoint);
        // etcd and etcdctl may be slow on a loaded machine.
        command.args(["--command-timeout=60s", "--dial-timeout=60s"]);
        command.args(line.split(' ').map(|word| if word == "''" { "" } else { word })).stdin(Stdio::null());
        let output = tokio::task::spawn_blocking(move || command.output()).await.unwrap().unwrap();
        if output.status.success() {
            return Ok(String::from_utf8(output.stdout).unwrap());
        }
        let complaint = String::from_utf8(output.stderr).unwrap();
        Err(complaint.lines().last().unwrap_or_default().to_owned())
    }

    /// Runs commands that must succeed.
    pub async fn prepare(&self, lines: &[&str]) {
        for line in lines {
            self.ctl(line).await.unwrap_or_else(|error| panic!("{}: etcdctl {line}: {error}", self.name));
        }
    }

    /// The client of the etcd-client crate, signed in.
    pub async fn client(&self, user: &str, password: &str) -> Result<Client, Error> {
        let options = ConnectOptions::new().with_user(user, password);
        Client::connect([&self.endpoint], Some(options)).await
    }
}

/// Users and roles that most rules begin with: `ann` may read and write keys from `a` to `c`, in two parts, `reader` may
/// read them, `writer` may write them, and `nobody` has no role.
pub const USERS: [&str; 18] = [
    "role add ab",
    "role grant-permission ab readwrite a b",
    "role add bc",
    "role grant-permission bc readwrite b c",
    "role add ro",
    "role grant-permission ro read a c",
    "role add wo",
    "role grant-permission wo write a c",
    "user add ann:pw",
    "user grant-role ann ab",
    "user grant-role ann bc",
    "user add reader:pw",
    "user grant-role reader ro",
    "user add writer:pw",
    "user grant-role writer wo",
    "user add nobody:pw",
    "user add root:secret",
    "user grant-role root root",
];

/// The gRPC code and text of a refusal.
pub fn refusal<T>(result: Result<T, Error>) -> (tonic::Code, String) {
    match result.err().expect("must be refused") {
        Error::GRpcStatus(status) => (status.code(), status.message().to_owned()),
        error => panic!("another error: {error}"),
    }
}

/// What etcd answers to a user without permission.
pub fn denied() -> (tonic::Code, String) {
    (tonic::Code::PermissionDenied, "etcdserver: permission denied".into())
}
