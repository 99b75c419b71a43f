//! `capstan redis user`: users of a cluster, as ACL rules of Redis.

use anyhow::{Result, bail};
use capstan_redis::api::{self, UserPage};
use capstan_redis::decide::Change;
use capstan_redis::nmctl::PasswordHash;
use capstan_redis::{ClusterName, acl};
use serde_json::json;

use super::clusters::attended;
use crate::commands::access::read_password;
use crate::commands::action::OperatorAction;

use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum UserCommand {
    /// Create a user, or change its rules
    Set(SetArgs),
    /// List the users of a cluster
    List {
        /// The cluster
        cluster: ClusterName,
    },
    /// Print the rules of a user; passwords as the first digits of their SHA-256
    Show {
        /// The cluster
        cluster: ClusterName,
        /// The user
        name: String,
    },
    /// Delete a user and disconnect its clients
    Delete {
        /// The cluster
        cluster: ClusterName,
        /// The user
        name: String,
    },
}

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Rules are those of `ACL SETUSER`, applied to the rules that the user has: on off nopass >PASSWORD <PASSWORD \
    resetpass\n~PATTERN %R~PATTERN %W~PATTERN allkeys resetkeys &CHANNEL allchannels resetchannels +COMMAND -COMMAND +COMMAND|SUB\n\
    +@CATEGORY -@CATEGORY allcommands nocommands (SELECTOR) clearselectors reset. Quote them: the shell uses > < ~ & | ( )\n\
    Examples:\n  capstan redis user set demo app 'on ~app:* +@read +@write' --password-stdin < password-file\n  \
    capstan redis user set demo default off"
)]
pub(crate) struct SetArgs {
    /// The cluster
    cluster: ClusterName,
    /// The user; `default` is the user of clients without AUTH
    name: String,
    /// Add a password that is read from stdin, which other processes cannot see
    #[arg(long)]
    password_stdin: bool,
    /// The rules, several in quotes; if the first begins with a hyphen, after `--`
    rules: Vec<String>,
}

impl UserCommand {
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let object = |cluster: &ClusterName| format!("redis cluster {cluster}");
        match self {
            // Rules may contain passwords.
            UserCommand::Set(SetArgs { cluster, name, .. }) => {
                Some(OperatorAction::new(format!("changed user {name} of"), object(cluster)))
            }
            UserCommand::Delete { cluster, name } => {
                Some(OperatorAction::new(format!("deleted user {name} of"), object(cluster)))
            }
            UserCommand::List { .. } | UserCommand::Show { .. } => None,
        }
    }
}

pub(super) async fn run(command: UserCommand, context: &mut Context) -> Result<Exit> {
    match command {
        UserCommand::Set(args) => set(args, context).await,
        UserCommand::List { cluster } => list(&cluster, context).await,
        UserCommand::Show { cluster, name } => show(&cluster, &name, context).await,
        UserCommand::Delete { cluster, name } => delete(&cluster, &name, context).await,
    }
}

async fn set(args: SetArgs, context: &mut Context) -> Result<Exit> {
    let SetArgs { cluster, name, password_stdin, mut rules } = args;
    if password_stdin {
        rules.push(format!("#{}", password(&cluster, &name)?));
    }
    let store = context.store().await?;
    let changed = api::user_set(&store, &cluster, &name, &rules.join(" ")).await?;
    let word = match changed.change {
        Change::Made => "changed",
        Change::Already => "already",
    };
    match context.out.format {
        Format::Json => {
            let user = UserPage::of(&name, &changed.rules);
            context.out.json(&json!({ "cluster": cluster, "change": word, "user": user }))?;
        }
        Format::Table => {
            let text = match changed.change {
                Change::Made => "its clients get the new rules at once",
                Change::Already => "it has these rules already",
            };
            context.out.line(format!("user {name} of cluster {cluster}: {text}"))?;
        }
    }
    advise(&cluster, &name, &changed.rules, changed.is_open);
    attended(&store).await
}

/// The hash of a password that is piped in.
fn password(cluster: &ClusterName, name: &str) -> Result<PasswordHash> {
    let example = format!("capstan redis user set {cluster} {name} --password-stdin");
    let password = read_password(&example)?;
    if password.reveal().is_empty() {
        bail!("the password on stdin is empty");
    }
    Ok(PasswordHash::of(password.reveal().as_bytes()))
}

/// What is easily overlooked: a new user is off, and clients without `AUTH` are still admitted.
fn advise(cluster: &ClusterName, name: &str, rules: &acl::Rules, is_open: bool) {
    if name == "default" {
        return;
    }
    if !rules.is_on() {
        say(format!(
            "user {name} cannot authenticate: it is off; `capstan redis user set {cluster} {name} on`"
        ));
    } else if !rules.needs_no_password() && rules.passwords().is_empty() {
        say(format!("user {name} cannot authenticate: it has no password; set one with --password-stdin"));
    }
    if is_open {
        say(format!(
            "clients without AUTH still connect as user default; `capstan redis user set {cluster} default off` stops that"
        ));
    }
}

async fn list(cluster: &ClusterName, context: &mut Context) -> Result<Exit> {
    let users = api::users(&context.store().await?, cluster).await?;
    match context.out.format {
        Format::Json => context.out.json(&json!({ "users": users }))?,
        Format::Table => {
            let rows = users.iter().map(|user| {
                let rules = [user.keys.as_str(), &user.channels, &user.commands, &user.selectors.join(" ")];
                let rules: Vec<&str> = rules.into_iter().filter(|rule| !rule.is_empty()).collect();
                [user.name.clone(), state(user).to_owned(), passwords(user), rules.join(" ")]
            });
            context.out.table(["USER", "STATE", "PASSWORDS", "RULES"], rows.collect())?;
            if users.is_empty() {
                say(format!("cluster {cluster} has no users: every client may connect"));
            }
        }
    }
    Ok(Exit::Done)
}

fn state(user: &UserPage) -> &'static str {
    if user.on { "on" } else { "off" }
}

fn passwords(user: &UserPage) -> String {
    if user.nopass { "any".to_owned() } else { user.passwords.len().to_string() }
}

async fn show(cluster: &ClusterName, name: &str, context: &mut Context) -> Result<Exit> {
    let user = api::user(&context.store().await?, cluster, name).await?;
    if context.out.format == Format::Json {
        context.out.json(&user)?;
        return Ok(Exit::Done);
    }
    let passwords = if user.nopass { "any".to_owned() } else { user.passwords.join(" ") };
    let rows = vec![
        ["user".to_owned(), user.name.clone()],
        ["state".to_owned(), state(&user).to_owned()],
        ["passwords".to_owned(), passwords],
        ["commands".to_owned(), user.commands],
        ["keys".to_owned(), user.keys],
        ["channels".to_owned(), user.channels],
        ["selectors".to_owned(), user.selectors.join(" ")],
    ];
    context.out.table(["FIELD", "VALUE"], rows)?;
    Ok(Exit::Done)
}

async fn delete(cluster: &ClusterName, name: &str, context: &mut Context) -> Result<Exit> {
    let store = context.store().await?;
    api::user_delete(&store, cluster, name).await?;
    let text = format!("deleted user {name} of cluster {cluster}; its clients are disconnected");
    match context.out.format {
        Format::Json => {
            context.out.json(&json!({ "cluster": cluster, "change": "deleted", "user": name }))?
        }
        Format::Table => context.out.line(text)?,
    }
    attended(&store).await
}
