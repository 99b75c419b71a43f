//! Who may do what in this process: the guard of its listeners, the key of the local user, the first admin.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;

use anyhow::{Context as _, Result};
use capstan_access::{Anonymous, Guard, Secret, api};
use capstan_meta::Store;

use crate::output::Out;

/// The access key of the user who runs `capstan up`, in the data directory. Only that user can read it.
const KEY_FILE: &str = "access.key";

/// Opens the guard.
pub(crate) async fn open_guard(store: &Store, anonymous: Anonymous) -> Result<Guard> {
    Ok(Guard::open(store.clone(), anonymous).await?)
}

/// The access key in a data directory, if there is one.
pub(crate) fn key_of_dir(dir: &Path) -> Result<Option<Secret>> {
    let path = dir.join(KEY_FILE);
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some(Secret::new(text.trim()))),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error).with_context(|| format!("cannot read {}", path.display())),
    }
}

/// Sees to it that the data directory has a valid key of the local user.
pub(crate) async fn sign_local_user_in(store: &Store, dir: &Path) -> Result<()> {
    let present = key_of_dir(dir)?;
    let key = api::local_key(store, present.as_ref()).await?;
    if present.as_ref() == Some(&key) {
        return Ok(());
    }
    let (path, partial) = (dir.join(KEY_FILE), dir.join(format!("{KEY_FILE}.part")));
    let write = || {
        let mut file =
            OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(&partial)?;
        file.write_all(key.reveal().as_bytes())?;
        file.write_all(b"\n")?;
        std::fs::rename(&partial, &path)
    };
    write().with_context(|| format!("cannot write {}", path.display()))
}

/// Makes the first admin of a cluster, and prints its access key: this one time, on stdout and in no log.
pub(crate) async fn first_admin(store: &Store, out: &mut Out) -> Result<()> {
    let Some(key) = api::first_admin(store, "first start").await? else { return Ok(()) };
    tracing::info!(user = api::FIRST_ADMIN, key = %key.id, "first admin created");
    out.line(format!(
        "First start: the access key of user {}, which is not shown again:\n{}",
        api::FIRST_ADMIN,
        key.text.reveal()
    ))?;
    out.flush()
}
