//! A workshop that makes real packages and releases, and hosts that install them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use capstan_fleet::artifact::dpkg::{DpkgOptions, Durability, Scripts};
use capstan_fleet::release::make::{self, Description, Maturity};
use capstan_fleet::release::{Directory, Manifest, SecretKey, Source, StepNumber, Trust, Version};
use capstan_fleet::run::{
    CacheUse, Generation, Host, HostConfig, Launcher, Permission, Runner, StepError, StepOutcome, StepWork,
};
use capstan_testkit::TempDir;
use jiff::Timestamp;
use tokio_util::sync::CancellationToken;

/// A token that nobody cancels.
pub fn stop() -> CancellationToken {
    CancellationToken::new()
}

/// Makes releases in a directory of its own.
pub struct Workshop {
    pub dir: TempDir,
    pub key: SecretKey,
}

/// A package to make.
#[derive(Clone, Default)]
pub struct Deb<'a> {
    pub name: &'a str,
    pub version: &'a str,
    /// How many small files it has beside its version file.
    pub files: usize,
    pub scripts: Vec<(&'a str, String)>,
}

impl Workshop {
    pub fn new(label: &str) -> Workshop {
        let dir = TempDir::in_memory(label).unwrap();
        let workshop = Workshop { dir, key: SecretKey::generate().unwrap() };
        workshop.trust(&Trust::in_all_of(vec![workshop.key.public()]));
        workshop
    }

    pub fn trust_file(&self) -> PathBuf {
        self.dir.join("trust.json")
    }

    pub fn trust(&self, trust: &Trust) {
        std::fs::write(self.trust_file(), serde_json::to_vec(trust).unwrap()).unwrap();
    }

    pub fn repository(&self) -> PathBuf {
        self.dir.join("repository")
    }

    pub fn release_file(&self, version: &str, name: &str) -> PathBuf {
        self.repository().join("releases").join(version).join(name)
    }

    /// The file of the only package of a release.
    pub fn package_file(&self, version: &str) -> PathBuf {
        let (manifest, _) = make::read_manifest(&self.repository().join("releases").join(version)).unwrap();
        self.release_file(version, &manifest.packages[0].file())
    }

    /// Makes a real package; the name of its file.
    pub fn deb(&self, deb: &Deb<'_>) -> String {
        let tree = self.dir.join(format!("{}_{}", deb.name, deb.version));
        let control = format!(
            "Package: {}\nVersion: {}\nArchitecture: all\nMaintainer: T <t@example.invalid>\nDescription: test\n",
            deb.name, deb.version
        );
        let share = tree.join("usr/share").join(deb.name);
        std::fs::create_dir_all(tree.join("DEBIAN")).unwrap();
        std::fs::create_dir_all(&share).unwrap();
        std::fs::write(tree.join("DEBIAN/control"), control).unwrap();
        std::fs::write(share.join("version"), deb.version).unwrap();
        for number in 0..deb.files {
            std::fs::write(share.join(number.to_string()), format!("{} {number}\n", deb.version)).unwrap();
        }
        for (script, text) in &deb.scripts {
            let path = tree.join("DEBIAN").join(script);
            std::fs::write(&path, format!("#!/bin/sh\nset -e\n{text}\n")).unwrap();
            use std::os::unix::fs::PermissionsExt;
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).unwrap();
        }
        let file = format!("{}_{}.deb", deb.name, deb.version);
        let mut command = Command::new("dpkg-deb");
        command.args(["--root-owner-group", "-Zgzip", "-z1", "-b"]).arg(&tree).arg(self.dir.join(&file));
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        std::fs::remove_dir_all(&tree).unwrap();
        file
    }

    /// Builds a release from the text behind its version, without signing it; where it lies.
    pub fn build(&self, version: &str, rest: &str) -> PathBuf {
        let path = self.dir.join(format!("{version}.toml"));
        std::fs::write(&path, format!("version = \"{version}\"\n{rest}")).unwrap();
        let out = self.dir.join(format!("built-{version}"));
        let _ = std::fs::remove_dir_all(&out);
        make::build(&Description::read(&path).unwrap(), self.dir.path(), &out, now()).unwrap();
        out
    }

    /// Builds, signs and publishes a release.
    pub fn release(&self, version: &str, rest: &str) {
        let built = self.build(version, rest);
        make::sign(&built, &self.key).unwrap();
        make::publish(&built, &self.repository(), Maturity::Released, now()).unwrap();
    }

    /// A release of one package `svc` whose version is the release's, in one step.
    pub fn release_svc(&self, version: &str, deb: Deb<'_>) {
        let file = self.deb(&Deb { name: "svc", version, ..deb });
        self.release(version, &one_step(&file, 60));
    }

    pub fn config(&self, host: &str) -> HostConfig {
        config_at(self.dir.path(), host)
    }

    pub fn source(&self) -> Arc<dyn Source> {
        source_at(self.dir.path())
    }

    pub fn host(&self, name: &str) -> Host {
        Host::open(self.config(name), self.source()).unwrap()
    }

    pub fn root(&self, host: &str) -> PathBuf {
        self.dir.join(host).join("root")
    }

    /// `name version state` of every package of a host, as dpkg-query tells it.
    pub fn packages(&self, host: &str) -> Vec<String> {
        packages(&self.root(host))
    }
}

pub fn config_at(workshop: &Path, host: &str) -> HostConfig {
    let dir = workshop.join(host);
    HostConfig {
        state: dir.join("state"),
        cache: dir.join("cache"),
        cache_use: CacheUse::Own,
        images: dir.join("images"),
        dpkg: DpkgOptions {
            root: dir.join("root"),
            durability: Durability::Unsafe,
            scripts: Scripts::Outside,
            repair_time: Duration::from_secs(20),
        },
        trust: workshop.join("trust.json"),
        worker_version: "0.1.0".parse().unwrap(),
        launcher: Launcher::Direct,
    }
}

pub fn source_at(workshop: &Path) -> Arc<dyn Source> {
    Arc::new(Directory::new(workshop.join("repository")))
}

pub fn one_step(deb: &str, timeout_seconds: u32) -> String {
    format!(
        "packages = [\"{deb}\"]\n[[steps]]\nname = \"install\"\nkind = \"rolling\"\n\
         timeout_seconds = {timeout_seconds}\nactions = [{{ packages = [\"svc\"] }}]\n"
    )
}

pub fn now() -> Timestamp {
    Timestamp::from_second(capstan_meta::clock::since_epoch().as_secs() as i64).unwrap()
}

pub fn version(text: &str) -> Version {
    text.parse().unwrap()
}

pub fn packages(root: &Path) -> Vec<String> {
    let admin = root.join("var/lib/dpkg");
    if !admin.exists() {
        return Vec::new();
    }
    let output = Command::new("dpkg-query")
        .arg(format!("--admindir={}", admin.display()))
        .args(["-W", "-f=${Package} ${Version} ${db:Status-Abbrev}\n"])
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap().lines().map(|line| line.trim().to_owned()).collect()
}

pub fn work(manifest: &Arc<Manifest>, generation: u64, step: u32) -> StepWork {
    StepWork {
        generation: Generation(generation),
        manifest: manifest.clone(),
        step: StepNumber::new(step).unwrap(),
        permission: Permission::Upgrade,
    }
}

/// The whole update on one host, as a worker would do it.
pub async fn update(
    host: &dyn Runner,
    generation: u64,
    to: &str,
    permission: Permission,
) -> Result<StepOutcome, StepError> {
    let manifest = host.release(&version(to), permission).await?;
    host.stage(&manifest, &stop()).await?;
    let mut all = StepOutcome::default();
    for (step, _) in manifest.numbered_steps() {
        let work =
            StepWork { generation: Generation(generation), manifest: manifest.clone(), step, permission };
        let outcome = host.run(&work, &stop()).await?;
        all.installed.packages.extend(outcome.installed.packages);
        all.installed.images.extend(outcome.installed.images);
    }
    host.finish(Generation(generation), &manifest).await?;
    Ok(all)
}

/// Every file below a directory with its content: to see that nothing was changed.
pub fn tree(dir: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut dirs = vec![dir.to_owned()];
    while let Some(dir) = dirs.pop() {
        let Ok(entries) = std::fs::read_dir(&dir) else { continue };
        for entry in entries {
            let path = entry.unwrap().path();
            if path.is_dir() {
                dirs.push(path);
            } else {
                files.insert(path.clone(), std::fs::read(&path).unwrap_or_default());
            }
        }
    }
    files
}
