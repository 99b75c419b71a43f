//! `capstan fleet vault`: the secrets with which a Vault server is opened. They are printed by `show` and by nothing else.

use std::io::Read as _;
use std::path::PathBuf;

use anyhow::{Context as _, Result};
use capstan_fleet::api::{Secret, Unsealed, VaultSecret};
use clap::{Subcommand, ValueEnum};
use serde_json::json;

use super::fleet;
use super::reply::Reply;
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::Format;

/// A key or a token is a line.
const MAX_SECRET_BYTES: u64 = 4096;

/// Which secret.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub(crate) enum Which {
    UnsealKey,
    RootToken,
}

#[derive(Debug, Subcommand)]
pub(crate) enum VaultCommand {
    /// Store a secret; it is read from stdin, so that it appears in no process list
    Set {
        /// Which one: unseal-key or root-token
        #[arg(hide_possible_values = true)]
        which: Which,
        /// Read it from this file instead
        #[arg(long, value_name = "FILE")]
        file: Option<PathBuf>,
    },
    /// Print a secret
    Show {
        /// Which one: unseal-key or root-token
        #[arg(hide_possible_values = true)]
        which: Which,
    },
    /// Remove a secret
    Remove {
        /// Which one: unseal-key or root-token
        #[arg(hide_possible_values = true)]
        which: Which,
    },
    /// Send the unseal key to a Vault server; without a key nothing is done
    Unseal {
        /// The server, such as http://127.0.0.1:8200
        address: String,
    },
}

impl VaultCommand {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        match self {
            VaultCommand::Set { which, .. } => {
                Some(OperatorAction::new("set", format!("vault {}", which.name())))
            }
            VaultCommand::Show { which } => {
                Some(OperatorAction::new("showed", format!("vault {}", which.name())))
            }
            VaultCommand::Remove { which } => {
                Some(OperatorAction::new("removed", format!("vault {}", which.name())))
            }
            VaultCommand::Unseal { address } => {
                Some(OperatorAction::new("unsealed", format!("vault at {address}")))
            }
        }
    }
}

impl Which {
    fn name(self) -> &'static str {
        match self {
            Which::UnsealKey => "unseal key",
            Which::RootToken => "root token",
        }
    }

    fn secret(self) -> VaultSecret {
        match self {
            Which::UnsealKey => VaultSecret::UnsealKey,
            Which::RootToken => VaultSecret::RootToken,
        }
    }
}

pub(super) async fn run(command: VaultCommand, context: &mut Context) -> Result<Exit> {
    let fleet = fleet(context).await?;
    match command {
        VaultCommand::Set { which, file } => {
            let which = which.secret();
            fleet.vault_set(which, &read(file)?).await?;
            Reply::new("vault set", which, format!("stored the {which}")).give(context)
        }
        VaultCommand::Show { which } => {
            let secret = fleet.vault_show(which.secret()).await?;
            match context.out.format {
                Format::Json => context.out.json(&json!({ "secret": secret.reveal() }))?,
                Format::Table => context.out.line(secret.reveal())?,
            }
            Ok(Exit::Done)
        }
        VaultCommand::Remove { which } => {
            let which = which.secret();
            fleet.vault_remove(which).await?;
            Reply::new("vault remove", which, format!("removed the {which}")).give(context)
        }
        VaultCommand::Unseal { address } => {
            let unsealed = fleet.vault_unseal(&address).await?;
            told(&address, &unsealed, context)
        }
    }
}

fn told(address: &str, unsealed: &Unsealed, context: &mut Context) -> Result<Exit> {
    let (text, exit) = match unsealed {
        Unsealed::NoKey => ("no unseal key is stored; nothing was done".to_owned(), Exit::Done),
        Unsealed::Open => (format!("vault at {address} is unsealed"), Exit::Done),
        Unsealed::StillSealed { progress, threshold } => (
            format!("vault at {address} accepted the key and needs more: {progress} of {threshold}"),
            Exit::Waiting,
        ),
    };
    match context.out.format {
        Format::Json => context.out.json(unsealed)?,
        Format::Table => context.out.line(text)?,
    }
    Ok(exit)
}

fn read(file: Option<PathBuf>) -> Result<Secret> {
    let mut text = String::new();
    match &file {
        None => {
            std::io::stdin().take(MAX_SECRET_BYTES).read_to_string(&mut text).context("cannot read stdin")?
        }
        Some(path) => {
            let unreadable = || format!("cannot read {}", path.display());
            let file = std::fs::File::open(path).with_context(unreadable)?;
            file.take(MAX_SECRET_BYTES).read_to_string(&mut text).with_context(unreadable)?
        }
    };
    Ok(Secret::new(text))
}
