//! `tools/install.sh`: installs what is missing, once, and starts nothing. Run in an isolated environment, where
//! `apt-get` records its arguments.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use capstan_testkit::TempDir;
use capstan_testkit::process::on_path;

/// Programs that the script itself needs.
const BASICS: [&str; 9] = ["bash", "chmod", "dirname", "env", "id", "rm", "sed", "tee", "touch"];
/// Programs that it checks for, unless a test removes them.
const TOOLS: [&str; 13] = [
    "cargo",
    "cc",
    "make",
    "protoc",
    "git",
    "etcd",
    "etcdctl",
    "redis-server",
    "redis-cli",
    "prometheus",
    "python3",
    "node",
    "npm",
];

const APT_GET: &str = r#"#!/usr/bin/env bash
echo "apt-get $*" >> "$WORLD/asked"
[[ $1 == install ]] || exit 0
[[ -x $CAPSTAN_POLICY_RC_D ]] && echo "no service may start" >> "$WORLD/asked"
[[ -n ${USELESS-} ]] && exit 0
for program in etcd redis-server; do touch "$WORLD/bin/$program"; chmod 755 "$WORLD/bin/$program"; done
"#;
/// Records that the test clients were requested.
const CLIENTS: &str = "#!/usr/bin/env bash\necho clients >> \"$WORLD/prepared\"\n";
const SYSTEMCTL: &str = "#!/usr/bin/env bash\necho \"systemctl $*\" >> \"$WORLD/asked\"\n";
const SUDO: &str = "#!/usr/bin/env bash\nexec \"$@\"\n";

/// A machine without some tools.
struct World {
    dir: TempDir,
}

impl World {
    fn without(absent: &[&str]) -> Self {
        let world = Self { dir: TempDir::new("install").unwrap() };
        std::fs::create_dir(world.dir.join("bin")).unwrap();
        for basic in BASICS {
            symlink(on_path(Path::new(basic), None).unwrap(), world.bin(basic)).unwrap();
        }
        for tool in TOOLS.iter().filter(|tool| !absent.contains(tool)) {
            world.program(tool, "");
        }
        for (name, text) in
            [("apt-get", APT_GET), ("systemctl", SYSTEMCTL), ("sudo", SUDO), ("clients", CLIENTS)]
        {
            if !absent.contains(&name) {
                world.program(name, text);
            }
        }
        world
    }

    fn bin(&self, name: &str) -> PathBuf {
        self.dir.join("bin").join(name)
    }

    fn program(&self, name: &str, text: &str) {
        std::fs::write(self.bin(name), text).unwrap();
        std::fs::set_permissions(self.bin(name), PermissionsExt::from_mode(0o755)).unwrap();
    }

    fn install(&self, arguments: &[&str]) -> Output {
        let script = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tools/install.sh");
        let mut command = Command::new(self.bin("bash"));
        command.env_clear().env("PATH", self.dir.join("bin")).env("WORLD", self.dir.path());
        command.env("CAPSTAN_CLIENTS_SH", self.bin("clients"));
        command.env("CAPSTAN_POLICY_RC_D", self.policy()).arg(script).args(arguments);
        if self.dir.join("useless").exists() {
            command.env("USELESS", "1");
        }
        command.output().unwrap()
    }

    fn policy(&self) -> PathBuf {
        self.dir.join("policy-rc.d")
    }

    fn asked(&self) -> String {
        std::fs::read_to_string(self.dir.join("asked")).unwrap_or_default()
    }
}

fn complaint(output: &Output) -> String {
    assert!(!output.status.success());
    String::from_utf8_lossy(&output.stderr).into_owned()
}

#[test]
fn a_complete_machine_is_not_touched() {
    let world = World::without(&[]);
    assert!(world.install(&["test"]).status.success());
    assert_eq!(world.asked(), "");
}

#[test]
fn the_missing_is_installed_in_one_go_and_no_service_starts_or_stays_enabled() {
    let world = World::without(&["etcd", "redis-server"]);
    let output = world.install(&["test"]);
    assert!(output.status.success(), "{output:?}");
    let expected = "apt-get update -qq\n\
                    apt-get install -y -qq --no-install-recommends redis-server etcd-server\n\
                    no service may start\n\
                    systemctl disable -q redis-server\n\
                    systemctl disable -q etcd\n";
    assert_eq!(world.asked(), expected);
    assert!(!world.policy().exists());
}

#[test]
fn each_purpose_needs_only_its_own() {
    let world = World::without(&["etcd", "redis-server"]);
    assert!(world.install(&["build"]).status.success());
    assert_eq!(world.asked(), "");
    assert!(world.install(&["up"]).status.success());
    assert!(world.asked().contains("redis-server\n") && !world.asked().contains("etcd-server"));
}

#[test]
fn clients_are_prepared_for_tests_only() {
    let world = World::without(&[]);
    assert!(world.install(&["up"]).status.success());
    assert!(!world.dir.join("prepared").exists());
    assert!(world.install(&["test"]).status.success());
    assert!(world.dir.join("prepared").exists());
}

#[test]
fn a_policy_of_the_machine_stays_as_it_was() {
    let world = World::without(&["etcd"]);
    std::fs::write(world.policy(), "theirs").unwrap();
    assert!(world.install(&["test"]).status.success());
    assert_eq!(std::fs::read_to_string(world.policy()).unwrap(), "theirs");
}

#[test]
fn other_distributions_are_told_what_to_install() {
    let world = World::without(&["etcd", "protoc", "apt-get"]);
    let text = complaint(&world.install(&["test"]));
    assert!(text.contains("no apt-get") && text.contains("protobuf-compiler etcd-server"), "{text}");
}

#[test]
fn an_installation_that_did_not_help_is_an_error() {
    let world = World::without(&["etcd"]);
    std::fs::write(world.dir.join("useless"), "").unwrap();
    let text = complaint(&world.install(&["test"]));
    assert!(text.contains("still missing after the installation: etcd-server"), "{text}");
    assert!(!world.policy().exists());
}

#[test]
fn without_rust_it_says_where_to_get_it_and_a_wrong_purpose_shows_the_usage() {
    let text = complaint(&World::without(&["cargo"]).install(&["build"]));
    assert!(text.contains("cargo is missing") && text.contains("rustup"), "{text}");
    let text = complaint(&World::without(&[]).install(&["everything"]));
    assert!(text.contains("tools/install.sh build"), "{text}");
}
