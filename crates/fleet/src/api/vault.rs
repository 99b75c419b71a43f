//! What is kept for Vault: the key that unseals it, and for a while the root token. Neither is ever printed by accident.

use std::fmt;
use std::time::Duration;

use capstan_meta::record::Key;
use serde::{Deserialize, Serialize};
use tokio::time::{Instant, sleep};

use super::Fleet;
use crate::error::FleetError;
use crate::http;

/// How long a server that is just starting is waited for.
const WAIT_FOR_SERVER: Duration = Duration::from_secs(10);
/// Pause between two attempts to reach it.
const PAUSE: Duration = Duration::from_millis(250);
/// How long one request may take.
const REQUEST_WITHIN: Duration = Duration::from_secs(5);

/// Which secret.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum VaultSecret {
    /// Unseals a server when it starts.
    UnsealKey,
    /// The root token, while a server is being set up.
    RootToken,
}

impl fmt::Display for VaultSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            VaultSecret::UnsealKey => "vault unseal key",
            VaultSecret::RootToken => "vault root token",
        })
    }
}

/// A secret: printed only by the call that asks for it by name.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    /// Keeps this text.
    #[must_use]
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text, for the caller that needs it.
    #[must_use]
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(redacted)")
    }
}

/// What became of an attempt to unseal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(tag = "state", rename_all = "snake_case")]
pub enum Unsealed {
    /// There is no key: nothing was done, and that is fine.
    NoKey,
    /// The server is open.
    Open,
    /// The server took the key and wants more of them.
    StillSealed {
        /// How many it has.
        progress: u32,
        /// How many it wants.
        threshold: u32,
    },
}

#[derive(Deserialize)]
struct SealStatus {
    sealed: bool,
    #[serde(default)]
    progress: u32,
    #[serde(default)]
    t: u32,
}

impl Fleet {
    /// Keeps a secret.
    pub async fn vault_set(&self, which: VaultSecret, secret: &Secret) -> Result<(), FleetError> {
        let text = secret.reveal().trim().to_owned();
        if text.is_empty() {
            return Err(FleetError::Invalid(format!("the {which} is empty")));
        }
        let put = match which {
            VaultSecret::UnsealKey => self.tree.vault_unseal().put(&text),
            VaultSecret::RootToken => self.tree.vault_root_token().put(&text),
        };
        self.store.put(put).await?;
        Ok(())
    }

    /// Reads a secret.
    pub async fn vault_show(&self, which: VaultSecret) -> Result<Secret, FleetError> {
        let found = match which {
            VaultSecret::UnsealKey => self.store.read(&self.tree.vault_unseal()).await?,
            VaultSecret::RootToken => self.store.read(&self.tree.vault_root_token()).await?,
        };
        let found = found.ok_or_else(|| FleetError::NotFound(which.to_string()))?;
        Ok(Secret(found.record))
    }

    /// Forgets a secret.
    pub async fn vault_remove(&self, which: VaultSecret) -> Result<(), FleetError> {
        let delete = match which {
            VaultSecret::UnsealKey => self.tree.vault_unseal().delete(),
            VaultSecret::RootToken => self.tree.vault_root_token().delete(),
        };
        match self.store.delete(delete).await?.deleted {
            0 => Err(FleetError::NotFound(which.to_string())),
            _ => Ok(()),
        }
    }

    /// Sends the key to the Vault server at this address, which may just be starting.
    pub async fn vault_unseal(&self, address: &str) -> Result<Unsealed, FleetError> {
        let key = match self.vault_show(VaultSecret::UnsealKey).await {
            Ok(key) => key,
            Err(FleetError::NotFound(_)) => return Ok(Unsealed::NoKey),
            Err(error) => return Err(error),
        };
        let url = format!("{}/v1/sys/unseal", address.trim_end_matches('/'));
        let body = serde_json::json!({ "key": key.reveal() });
        let deadline = Instant::now() + WAIT_FOR_SERVER;
        loop {
            match http::put_json(&url, &body, REQUEST_WITHIN).await {
                Ok(answer) => return opened(&answer),
                // A server that answers and refuses will refuse again.
                Err(http::HttpError::Status(status, _)) => {
                    let text = format!("vault at {address} refused the unseal key: status {status}");
                    return Err(FleetError::Elsewhere(text));
                }
                Err(http::HttpError::Unreachable(_)) if Instant::now() < deadline => sleep(PAUSE).await,
                Err(http::HttpError::Unreachable(why)) => {
                    return Err(FleetError::Elsewhere(format!(
                        "vault at {address} cannot be reached: {why}"
                    )));
                }
            }
        }
    }
}

fn opened(answer: &[u8]) -> Result<Unsealed, FleetError> {
    let status: SealStatus = serde_json::from_slice(answer)
        .map_err(|error| FleetError::Elsewhere(format!("vault answered what it should not: {error}")))?;
    Ok(match status.sealed {
        false => Unsealed::Open,
        true => Unsealed::StillSealed { progress: status.progress, threshold: status.t },
    })
}
