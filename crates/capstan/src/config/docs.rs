//! The settings of the document store.

use std::net::SocketAddr;
use std::num::NonZeroU64;
use std::path::{Path, PathBuf};

use capstan_docs::node::is_queue;

use super::{Reader, Value};

/// The maximum number of copies of a token.
const MAX_COPIES: u64 = 5;
/// The maximum number of hex digits of a token's name.
const MAX_DIGITS: u64 = 4;
const MIB: u64 = 1024 * 1024;

/// Section `docs`.
#[derive(Clone, Debug)]
pub(crate) struct Docs {
    /// The address of the API; port 0: any free one.
    pub(crate) listen: SocketAddr,
    /// The directory of this host's engine.
    pub(crate) dir: PathBuf,
    /// The directory of this host's backups.
    pub(crate) backup_dir: PathBuf,
    pub(crate) copies: usize,
    pub(crate) token_digits: u8,
    /// Whether new nodes take part by themselves.
    pub(crate) auto_add: bool,
    pub(crate) cache_bytes: u64,
    /// Bytes per second of copies that leave this host; none: no limit.
    pub(crate) move_bytes_per_second: Option<NonZeroU64>,
    /// The RabbitMQ of new copies; none: they travel directly.
    pub(crate) queue: Option<String>,
}

impl Reader<'_> {
    pub(super) fn docs(&mut self, meta_dir: &Path) -> Option<Docs> {
        let listen = self.address("docs.listen")?;
        if listen.ip().is_unspecified() {
            self.problem("docs.listen", "must be a specific address: it is advertised to the other nodes");
        }
        if self.own_certificates().is_none() {
            self.closed(listen, "docs.listen", "docs.allow_insecure", "or set `tls.dir`, ");
        }
        let (copies, digits) = (self.count("docs.copies"), self.count("docs.token_digits"));
        if !(1..=MAX_COPIES).contains(&copies) {
            self.problem("docs.copies", &format!("must be between 1 and {MAX_COPIES}"));
        }
        if !(1..=MAX_DIGITS).contains(&digits) {
            self.problem("docs.token_digits", &format!("must be between 1 and {MAX_DIGITS}"));
        }
        let place = |text: String, unset: PathBuf| if text.is_empty() { unset } else { PathBuf::from(text) };
        let dir = place(self.text("docs.dir"), meta_dir.join("docs"));
        let backup_dir = place(self.text("docs.backup_dir"), dir.join("backups"));
        Some(Docs {
            listen,
            dir,
            backup_dir,
            copies: usize::try_from(copies).unwrap_or(1),
            token_digits: u8::try_from(digits).unwrap_or(1),
            auto_add: self.value("docs.auto_add") == Some(Value::Flag(true)),
            cache_bytes: self.count("docs.cache_mib").saturating_mul(MIB),
            move_bytes_per_second: self.docs_pace(),
            queue: self.docs_queue(),
        })
    }

    fn docs_pace(&mut self) -> Option<NonZeroU64> {
        let pace = NonZeroU64::new(self.count("docs.move_bytes_per_second"))?;
        if pace.get() < MIB {
            self.problem("docs.move_bytes_per_second", &format!("must be 0, or at least {MIB}"));
        }
        Some(pace)
    }

    /// The text is not repeated in a problem: it has a password.
    fn docs_queue(&mut self) -> Option<String> {
        let queue = Some(self.text("docs.queue")).filter(|text| !text.is_empty())?;
        if !is_queue(&queue) {
            self.problem("docs.queue", "must be amqp://user:password@host:port/vhost");
        }
        Some(queue)
    }
}
