//! Settings of the fleet, of the roles of a host, and of the local hosts of `capstan up`.

use std::path::PathBuf;
use std::time::Duration;

use capstan_fleet::release::SourceSpec;
use capstan_fleet::{Lrn, Tree};

use super::Reader;

/// The maximum number of local hosts; more would be a load test.
const UP_HOSTS_MAX: u64 = 64;

/// A role of a host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum HostRole {
    /// Its software is updated with the fleet.
    Fleet,
    /// It offers Redis nodes behind a proxy.
    Redis,
    /// It keeps copies of topics.
    Topics,
    /// It keeps copies of documents.
    Docs,
}

impl HostRole {
    const ALL: [HostRole; 4] = [HostRole::Fleet, HostRole::Redis, HostRole::Topics, HostRole::Docs];

    /// Its name in the settings and in the host's record.
    pub(crate) fn name(self) -> &'static str {
        match self {
            HostRole::Fleet => "fleet",
            HostRole::Redis => "redis",
            HostRole::Topics => "topics",
            HostRole::Docs => "docs",
        }
    }
}

/// Section `fleet`.
#[derive(Clone, Debug)]
pub(crate) struct Fleet {
    /// The keys of the fleet.
    pub(crate) tree: Tree,
    pub(crate) lrn: Option<Lrn>,
    pub(crate) root: PathBuf,
    pub(crate) dir: PathBuf,
    pub(crate) source: Option<SourceSpec>,
    pub(crate) trust: Option<PathBuf>,
    pub(crate) leader_ttl: Duration,
}

impl Reader<'_> {
    pub(super) fn roles(&mut self) -> Vec<HostRole> {
        let mut roles = Vec::new();
        for name in self.list("host.roles") {
            match HostRole::ALL.into_iter().find(|role| role.name() == name) {
                Some(role) => roles.push(role),
                None => {
                    let known = HostRole::ALL.map(HostRole::name).join(", ");
                    self.problem("host.roles", &format!("\"{name}\" is not a role; there are: {known}"));
                }
            }
        }
        roles
    }

    pub(super) fn fleet(&mut self, roles: &[HostRole]) -> Option<Fleet> {
        let lrn = self.lrn();
        let trust = self.existing("fleet.trust");
        if roles.contains(&HostRole::Fleet) {
            if self.text("fleet.lrn").is_empty() {
                self.problem("host.roles", "`fleet` needs `fleet.lrn`, the number of this host in the fleet");
            }
            if trust.is_none() {
                self.problem("host.roles", "`fleet` needs `fleet.trust`; see `capstan fleet release keygen`");
            }
        }
        Some(Fleet {
            lrn,
            trust,
            root: PathBuf::from(self.text("fleet.root")),
            dir: PathBuf::from(self.text("fleet.dir")),
            source: self.source(),
            leader_ttl: self.lease("fleet.leader_ttl"),
            tree: self.tree()?,
        })
    }

    pub(super) fn up_hosts(&mut self) -> u32 {
        let count = self.count("up.hosts");
        if count > UP_HOSTS_MAX {
            self.problem("up.hosts", &format!("at most {UP_HOSTS_MAX}"));
        }
        u32::try_from(count).unwrap_or_default()
    }

    fn tree(&mut self) -> Option<Tree> {
        let prefix = self.text("fleet.prefix");
        let tree = Tree::at(&prefix);
        if let Err(error) = &tree {
            self.problem("fleet.prefix", &error.to_string());
        }
        tree.ok()
    }

    fn lrn(&mut self) -> Option<Lrn> {
        let text = self.text("fleet.lrn");
        if text.is_empty() {
            return None;
        }
        let lrn = text.parse();
        if lrn.is_err() {
            self.problem("fleet.lrn", &format!("\"{text}\" is not a whole number"));
        }
        lrn.ok()
    }

    fn source(&mut self) -> Option<SourceSpec> {
        let text = self.text("fleet.source");
        if text.is_empty() {
            return None;
        }
        let source = text.parse();
        if let Err(error) = &source {
            self.problem("fleet.source", &format!("{error}"));
        }
        source.ok()
    }
}
