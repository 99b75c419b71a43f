//! `capstan access`: users, service accounts, access keys, roles and grants.

use std::io::{self, IsTerminal as _, Read as _};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use capstan_access::api::{self, Change, IssuedKey, Listed, NewIdentity, NewKey};
use capstan_access::keys::{IdentityName, KeyId, RoleName};
use capstan_access::password;
use capstan_access::spec::IdentityKind;
use capstan_access::{Anonymous, Grant, Guard, Identity, Object, Secret, Verb, decide};
use capstan_control::time::rfc3339;
use serde_json::json;

use crate::config::span;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

#[derive(Debug, clap::Subcommand)]
pub(crate) enum AccessCommand {
    /// List users, accounts, access keys and roles
    List,
    /// Create users, set their passwords, disable and remove them
    #[command(subcommand)]
    User(UserCommand),
    /// Create service accounts, disable and remove them
    #[command(subcommand)]
    Account(AccountCommand),
    /// Issue, rotate and revoke access keys
    #[command(subcommand)]
    Key(KeyCommand),
    /// Make roles, give and take them
    #[command(subcommand)]
    Role(RoleCommand),
    /// Give and take single grants
    #[command(subcommand)]
    Grant(GrantCommand),
    /// Say whether a user or account may do something, and why
    #[command(after_help = "Example:\n  capstan access why ann operate redis:cluster/cache-1")]
    Why {
        /// The user or account
        name: String,
        /// view, operate, read, write, produce, consume or admin
        verb: String,
        /// The object, such as redis:cluster/cache-1 or meta:/capstan/hosts
        object: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct NewArgs {
    /// Its name
    name: String,
    /// A role: viewer, operator, admin or one of your own; may be repeated
    #[arg(long, value_name = "ROLE")]
    role: Vec<String>,
    /// A grant, such as redis:cluster/cache-*:write; may be repeated
    #[arg(long, value_name = "GRANT")]
    grant: Vec<String>,
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum UserCommand {
    /// Create a user
    Create {
        #[command(flatten)]
        new: NewArgs,
        /// Read the password from stdin; without it the user signs in with access keys only
        #[arg(long)]
        password_stdin: bool,
    },
    /// Set a user's password, read from stdin
    Password {
        /// The user
        name: String,
    },
    /// Refuse a user and everything that it has
    Disable {
        /// The user
        name: String,
    },
    /// Accept a disabled user again
    Enable {
        /// The user
        name: String,
    },
    /// Remove a user with its keys and sessions
    Remove {
        /// The user
        name: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum AccountCommand {
    /// Create a service account
    Create(NewArgs),
    /// Refuse an account and everything that it has
    Disable {
        /// The account
        name: String,
    },
    /// Accept a disabled account again
    Enable {
        /// The account
        name: String,
    },
    /// Remove an account with its keys and sessions
    Remove {
        /// The account
        name: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum KeyCommand {
    /// Issue an access key; it is printed once
    Create {
        /// The user or account that it stands for
        name: String,
        /// How long it is valid (such as 12h or 90d); without it, until it is revoked
        #[arg(long, value_name = "SPAN", value_parser = parse_span)]
        expires: Option<Duration>,
        /// Limit the key to this grant; may be repeated
        #[arg(long, value_name = "GRANT")]
        scope: Vec<String>,
        /// What it is for
        #[arg(long, default_value = "", hide_default_value = true)]
        note: String,
    },
    /// Issue a key in place of another one, which stays valid for a while
    Rotate {
        /// The public part of the key
        id: String,
        /// How long the old key stays valid
        #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "24h")]
        overlap: Duration,
    },
    /// Revoke a key at once
    Revoke {
        /// The public part of the key
        id: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum RoleCommand {
    /// Make a role, or change what it allows
    Set {
        /// The role
        role: String,
        /// What it allows
        #[arg(required = true)]
        grants: Vec<String>,
    },
    /// Remove a role
    Remove {
        /// The role
        role: String,
    },
    /// Give a role to a user or account
    Give {
        /// The role
        role: String,
        /// The user or account
        name: String,
    },
    /// Take a role from a user or account
    Take {
        /// The role
        role: String,
        /// The user or account
        name: String,
    },
}

#[derive(Debug, clap::Subcommand)]
pub(crate) enum GrantCommand {
    /// Grant something to a user or account
    Add {
        /// The user or account
        name: String,
        /// service:object:verb, such as topics:namespace/orders:produce
        grant: String,
    },
    /// Take a grant from a user or account
    Remove {
        /// The user or account
        name: String,
        /// The grant, as it is listed
        grant: String,
    },
}

/// A time span; days as well, because keys live for months.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    let days = text.strip_suffix('d').and_then(|days| days.parse::<u64>().ok());
    let days = days.and_then(|days| days.checked_mul(86_400)).map(Duration::from_secs);
    days.or_else(|| span(text)).ok_or_else(|| "write a time span such as 30m, 12h or 90d".to_owned())
}

pub(crate) async fn run(command: AccessCommand, context: &mut Context) -> Result<Exit> {
    match command {
        AccessCommand::List => list(context).await,
        AccessCommand::User(command) => user(command, context).await,
        AccessCommand::Account(command) => account(command, context).await,
        AccessCommand::Key(command) => key(command, context).await,
        AccessCommand::Role(command) => role(command, context).await,
        AccessCommand::Grant(command) => grant(command, context).await,
        AccessCommand::Why { name, verb, object } => why(&name, &verb, &object, context).await,
    }
}

async fn user(command: UserCommand, context: &mut Context) -> Result<Exit> {
    match command {
        UserCommand::Create { new, password_stdin } => {
            let password = if password_stdin { Some(read_password(EXAMPLE)?) } else { None };
            create(new, IdentityKind::User, password, context).await
        }
        UserCommand::Password { name } => {
            change(&name, Change::SetPassword(read_password(EXAMPLE)?), "password set", context).await
        }
        UserCommand::Disable { name } => change(&name, Change::SetDisabled(true), "disabled", context).await,
        UserCommand::Enable { name } => change(&name, Change::SetDisabled(false), "enabled", context).await,
        UserCommand::Remove { name } => remove(&name, context).await,
    }
}

async fn account(command: AccountCommand, context: &mut Context) -> Result<Exit> {
    match command {
        AccountCommand::Create(new) => create(new, IdentityKind::Account, None, context).await,
        AccountCommand::Disable { name } => {
            change(&name, Change::SetDisabled(true), "disabled", context).await
        }
        AccountCommand::Enable { name } => {
            change(&name, Change::SetDisabled(false), "enabled", context).await
        }
        AccountCommand::Remove { name } => remove(&name, context).await,
    }
}

async fn create(
    args: NewArgs,
    kind: IdentityKind,
    password: Option<Secret>,
    context: &mut Context,
) -> Result<Exit> {
    let new = NewIdentity {
        name: IdentityName::new(&args.name)?,
        kind,
        password,
        roles: args.role.iter().map(RoleName::new).collect::<Result<_, _>>()?,
        grants: grants(&args.grant)?,
    };
    api::identity_create(&context.store().await?, &new, &context.operator()).await?;
    if new.password.is_none() {
        say(format!("Next: capstan access key create {}", new.name));
    }
    done(context, &format!("{kind} {} created", new.name))
}

async fn change(name: &str, change: Change, what: &str, context: &mut Context) -> Result<Exit> {
    let name = IdentityName::new(name)?;
    api::identity_change(&context.store().await?, &name, &change, &context.operator()).await?;
    done(context, &format!("{name}: {what}"))
}

async fn remove(name: &str, context: &mut Context) -> Result<Exit> {
    let name = IdentityName::new(name)?;
    api::identity_remove(&context.store().await?, &name, &context.operator()).await?;
    done(context, &format!("{name} removed"))
}

async fn key(command: KeyCommand, context: &mut Context) -> Result<Exit> {
    let (store, actor) = (context.store().await?, context.operator());
    match command {
        KeyCommand::Create { name, expires, scope, note } => {
            let scope = if scope.is_empty() { None } else { Some(grants(&scope)?) };
            let new = NewKey { identity: IdentityName::new(name)?, note, scope, ttl: expires };
            issued(&api::key_create(&store, &new, &actor).await?, context)
        }
        KeyCommand::Rotate { id, overlap } => {
            issued(&api::key_rotate(&store, &KeyId::new(id)?, overlap, &actor).await?, context)
        }
        KeyCommand::Revoke { id } => {
            api::key_revoke(&store, &KeyId::new(&id)?, &actor).await?;
            done(context, &format!("access key {id} revoked"))
        }
    }
}

/// Prints a new key: the one time that it is shown.
fn issued(key: &IssuedKey, context: &mut Context) -> Result<Exit> {
    let ends = key.expires_at.map(rfc3339);
    match context.out.format {
        Format::Json => {
            let value = json!({ "id": key.id, "key": key.text.reveal(), "expires_at": ends });
            context.out.json(&value)?;
        }
        Format::Table => {
            context.out.line(key.text.reveal())?;
            let ends = ends.map_or_else(|| "until it is revoked".to_owned(), |ends| format!("until {ends}"));
            say(format!("Access key {}, valid {ends}. It is not shown again.", key.id));
        }
    }
    Ok(Exit::Done)
}

async fn role(command: RoleCommand, context: &mut Context) -> Result<Exit> {
    match command {
        RoleCommand::Set { role, grants: texts } => {
            let (role, grants) = (RoleName::new(role)?, grants(&texts)?);
            api::role_set(&context.store().await?, &role, &grants, &context.operator()).await?;
            done(context, &format!("role {role} set"))
        }
        RoleCommand::Remove { role } => {
            let role = RoleName::new(role)?;
            api::role_remove(&context.store().await?, &role, &context.operator()).await?;
            done(context, &format!("role {role} removed"))
        }
        RoleCommand::Give { role, name } => {
            change(&name, Change::AddRole(RoleName::new(&role)?), &format!("has role {role}"), context).await
        }
        RoleCommand::Take { role, name } => {
            let what = format!("does not have role {role} any more");
            change(&name, Change::RemoveRole(RoleName::new(&role)?), &what, context).await
        }
    }
}

async fn grant(command: GrantCommand, context: &mut Context) -> Result<Exit> {
    match command {
        GrantCommand::Add { name, grant } => {
            change(&name, Change::AddGrant(grant.parse()?), &format!("has {grant}"), context).await
        }
        GrantCommand::Remove { name, grant } => {
            let what = format!("does not have {grant} any more");
            change(&name, Change::RemoveGrant(grant.parse()?), &what, context).await
        }
    }
}

async fn why(name: &str, verb: &str, object: &str, context: &mut Context) -> Result<Exit> {
    let (name, verb, object) = (IdentityName::new(name)?, verb.parse::<Verb>()?, object.parse::<Object>()?);
    let guard = Guard::open(context.store().await?, Anonymous::Refused).await?;
    let (policy, identity) = (guard.policy(), Identity::named(name.clone()));
    let decision = decide(&policy, &identity, verb, &object);
    let allowed = decision.is_allowed();
    match context.out.format {
        Format::Json => {
            let value = json!({ "identity": name, "verb": verb.word(), "object": object.to_string(),
                "allowed": allowed, "because": decision.to_string() });
            context.out.json(&value)?;
        }
        Format::Table => context.out.line(format!("{name} {verb} {object}: {decision}"))?,
    }
    Ok(if allowed { Exit::Done } else { Exit::Failed })
}

async fn list(context: &mut Context) -> Result<Exit> {
    let listed = api::list(&context.store().await?).await?;
    match context.out.format {
        Format::Json => context.out.json(&listed)?,
        Format::Table => tables(&listed, context)?,
    }
    for problem in &listed.problems {
        say(format!("capstan: {problem}"));
    }
    Ok(if listed.problems.is_empty() { Exit::Done } else { Exit::Failed })
}

fn tables(listed: &Listed, context: &mut Context) -> Result<()> {
    let words = |texts: Vec<String>| if texts.is_empty() { "-".to_owned() } else { texts.join(" ") };
    let identities = listed.identities.iter().map(|line| {
        let state = if line.disabled { "disabled" } else { "enabled" };
        let roles = words(line.roles.iter().map(ToString::to_string).collect());
        let grants = words(line.grants.iter().map(ToString::to_string).collect());
        [line.name.to_string(), line.kind.to_string(), state.to_owned(), roles, grants]
    });
    context.out.table(["NAME", "KIND", "STATE", "ROLES", "GRANTS"], identities.collect())?;
    context.out.line("")?;
    let time = |at: Option<u64>| at.map_or_else(|| "-".to_owned(), rfc3339);
    let keys = listed.keys.iter().map(|line| {
        let scope = line.scope.iter().flatten().map(ToString::to_string).collect();
        [
            line.id.to_string(),
            line.identity.to_string(),
            time(line.expires_at),
            time(line.last_used_at),
            words(scope),
            line.note.clone(),
        ]
    });
    context.out.table(["KEY", "OF", "EXPIRES", "LAST USED", "SCOPE", "NOTE"], keys.collect())?;
    context.out.line("")?;
    let roles = listed.roles.iter().map(|line| {
        let kind = if line.built_in { "built in" } else { "own" };
        [line.name.clone(), kind.to_owned(), line.grants.join(" ")]
    });
    context.out.table(["ROLE", "KIND", "GRANTS"], roles.collect())
}

fn done(context: &mut Context, text: &str) -> Result<Exit> {
    match context.out.format {
        Format::Json => context.out.json(&json!({ "done": text }))?,
        Format::Table => context.out.line(text)?,
    }
    Ok(Exit::Done)
}

fn grants(texts: &[String]) -> Result<Vec<Grant>> {
    Ok(texts.iter().map(|text| text.parse()).collect::<Result<_, _>>()?)
}

/// How a password is set.
const EXAMPLE: &str = "capstan access user password ann";

/// A password from stdin: never from the command line, which every process of the machine can read.
pub(crate) fn read_password(example: &str) -> Result<Secret> {
    if io::stdin().is_terminal() {
        bail!("pipe the password in, such as: {example} < password-file");
    }
    let mut text = String::new();
    let limit = u64::try_from(password::MAX_BYTES + 2)?;
    io::stdin().take(limit).read_to_string(&mut text).context("cannot read the password from stdin")?;
    Ok(Secret::new(text.trim_end_matches(['\r', '\n'])))
}
