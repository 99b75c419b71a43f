//! A RabbitMQ of its own: Debian's package, on free ports and in its own directory.

use std::fs::Permissions;
use std::os::unix::fs::PermissionsExt as _;
use std::time::Duration;

use capstan_testkit::{Port, Process, Ready, TempDir};

/// What a busy machine may need to start it.
const START: Duration = Duration::from_secs(300);
/// Behind the script in the PATH, which insists on a user of its own.
const SERVER: &str = "/usr/lib/rabbitmq/bin/rabbitmq-server";

/// One that may run or not, always on the same port.
pub struct Rabbit {
    // First, so that they are killed before their directory is removed.
    server: Option<Process>,
    _names: Process,
    port: Port,
    dist: Port,
    epmd: Port,
    dir: TempDir,
}

impl Rabbit {
    /// One that does not run yet.
    pub async fn prepare() -> Rabbit {
        let dir = TempDir::in_memory("rabbitmq").unwrap();
        let [port, dist, epmd] = [(); 3].map(|()| Port::reserve().unwrap());
        // Erlang would start one as a daemon, which stays behind.
        let names = Process::builder("epmd").debian_package("erlang-base");
        let names = names.args(["-address", "127.0.0.1", "-port", &epmd.number().to_string()]);
        let mut names = names.spawn(dir.join("epmd.log")).unwrap();
        names.ready(&Ready::Port(epmd.number()), START).await.unwrap();
        let listen = format!("listeners.tcp.1 = {}\nlog.console.level = error\n", port.addr());
        std::fs::write(dir.join("rabbitmq.conf"), listen).unwrap();
        std::fs::write(dir.join("enabled_plugins"), "[].\n").unwrap();
        // Made here with its mode: two Erlang processes of one start would race for making it.
        let cookie = dir.join(".erlang.cookie");
        std::fs::write(&cookie, format!("CAPSTAN{}", port.number())).unwrap();
        std::fs::set_permissions(&cookie, Permissions::from_mode(0o400)).unwrap();
        Rabbit { server: None, _names: names, port, dist, epmd, dir }
    }

    pub fn url(&self) -> String {
        format!("amqp://guest:guest@{}/%2f", self.port.addr())
    }

    /// Starts it, with the data that it had.
    pub async fn start(&mut self) {
        let dir = &self.dir;
        let server = Process::builder(SERVER)
            .debian_package("rabbitmq-server")
            .env("HOME", dir.path())
            .env("RABBITMQ_NODENAME", format!("test{}@localhost", self.port.number()))
            .env("RABBITMQ_CONFIG_FILE", dir.join("rabbitmq.conf"))
            .env("RABBITMQ_MNESIA_BASE", dir.join("data"))
            .env("RABBITMQ_LOG_BASE", dir.join("logs"))
            .env("RABBITMQ_ENABLED_PLUGINS_FILE", dir.join("enabled_plugins"))
            .env("RABBITMQ_PID_FILE", dir.join("pid"))
            .env("RABBITMQ_DIST_PORT", self.dist.number().to_string())
            .env("ERL_EPMD_PORT", self.epmd.number().to_string())
            .env("ERL_EPMD_ADDRESS", "127.0.0.1")
            // It shares the processors with other tests: no scheduler of it spins while it waits.
            .env("RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS", "+S 1 +sbwt none +sbwtdcpu none +sbwtdio none")
            // The script becomes the server in place of being its parent: a signal reaches it.
            .env("RUNNING_UNDER_SYSTEMD", "true");
        let mut server = server.spawn(dir.join("server.log")).unwrap();
        server.ready(&Ready::Port(self.port.number()), START).await.unwrap();
        self.server = Some(server);
    }

    /// Kills it with SIGKILL.
    pub fn kill9(&mut self) {
        self.server.take().unwrap().kill9().unwrap();
    }
}
