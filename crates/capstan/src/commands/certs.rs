//! `capstan certs`: a private authority, the certificates of hosts, and tokens with which hosts join.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{Authority, Description, HOST_LIFE, HostNames, KeyRequest, describe};
use capstan_access::enroll::{self, NewHost};
use capstan_control::keys::HostId;
use capstan_control::time::rfc3339;
use serde_json::json;

use crate::commands::access::parse_span;
use crate::config::HostTls;
use crate::context::Context;
use crate::daemon;
use crate::exit::Exit;
use crate::output::{Format, say};

/// Where certificates are, unless `tls.dir` says otherwise.
const DIR: &str = "certs";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum CertsCommand {
    /// Make a private authority and the certificate of this host
    #[command(
        after_help = "Example:\n  capstan certs init --dir /etc/capstan/certs --host box1 --address 10.0.0.1"
    )]
    Init(InitArgs),
    /// Sign the certificate of another host or server, with a key made here
    #[command(
        after_help = "Example:\n  capstan certs issue etcd1 --dir /etc/capstan/certs --address 10.0.0.1 --to etcd1"
    )]
    Issue(IssueArgs),
    /// Replace the certificate of this host now; running hosts do so by themselves
    Renew(DirArg),
    /// Show the certificates in a directory or in files
    Show {
        #[command(flatten)]
        dir: DirArg,
        /// PEM files, instead of a directory
        files: Vec<PathBuf>,
    },
    /// Make a token with which a new host joins the cluster; it is printed once
    #[command(after_help = "Example:\n  capstan certs token box2 --address 10.0.0.2 --role redis")]
    Token(TokenArgs),
    /// Renew the certificate of a host no more; the present one stays valid until its end
    Revoke {
        /// The host
        host: String,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct DirArg {
    /// The directory (default: the setting tls.dir, else certs)
    #[arg(long, value_name = "DIR")]
    dir: Option<PathBuf>,
}

#[derive(Debug, clap::Args)]
pub(crate) struct InitArgs {
    #[command(flatten)]
    dir: DirArg,
    /// This host (default: the setting host.id)
    #[arg(long, value_name = "HOST")]
    host: Option<String>,
    /// An address at which other hosts reach this one; may be repeated
    #[arg(long, value_name = "IP")]
    address: Vec<IpAddr>,
    /// The name of the authority
    #[arg(long, default_value = "capstan authority")]
    name: String,
    /// How long the authority is valid (default 1825d)
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "1825d", hide_default_value = true)]
    life: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct IssueArgs {
    /// The name of the host or server
    host: String,
    #[command(flatten)]
    dir: DirArg,
    /// An address at which it is reached; may be repeated
    #[arg(long, value_name = "IP", required = true)]
    address: Vec<IpAddr>,
    /// The directory that its files are written to
    #[arg(long, value_name = "DIR")]
    to: PathBuf,
    /// How long it is valid (default 7d)
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "7d", hide_default_value = true)]
    life: Duration,
}

#[derive(Debug, clap::Args)]
pub(crate) struct TokenArgs {
    /// The new host
    host: String,
    /// An address at which other hosts will reach it; may be repeated
    #[arg(long, value_name = "IP", required = true)]
    address: Vec<IpAddr>,
    /// A role of the new host: fleet, redis, topics or docs; may be repeated
    #[arg(long, value_name = "ROLE")]
    role: Vec<String>,
    /// How long the token is valid (at most 7d)
    #[arg(long, value_name = "SPAN", value_parser = parse_span, default_value = "1h")]
    expires: Duration,
}

pub(crate) async fn run(command: CertsCommand, context: &mut Context) -> Result<Exit> {
    match command {
        CertsCommand::Init(args) => init(args, context),
        CertsCommand::Issue(args) => issue(args, context),
        CertsCommand::Renew(dir) => renew(dir, context).await,
        CertsCommand::Show { dir, files } => show(&dir, files, context),
        CertsCommand::Token(args) => token(args, context).await,
        CertsCommand::Revoke { host } => revoke(&host, context).await,
    }
}

/// The directory that was asked for, else that of the settings, else the usual one. The settings may name files that are
/// not there yet, so they are not checked.
fn directory(arg: &DirArg, context: &Context) -> Result<PathBuf> {
    let set = context.layers()?.text_of("tls.dir");
    let set = Some(set).filter(|set| !set.is_empty()).map(PathBuf::from);
    Ok(arg.dir.clone().or(set).unwrap_or_else(|| PathBuf::from(DIR)))
}

fn init(args: InitArgs, context: &mut Context) -> Result<Exit> {
    let dir = directory(&args.dir, context)?;
    for name in [files::AUTHORITY, files::AUTHORITY_KEY, files::HOST] {
        let file = dir.join(name);
        ensure!(!file.exists(), "{} exists already; nothing was changed", file.display());
    }
    let host: HostId =
        args.host.map_or_else(|| context.config().map(|config| config.host.id), Ok)?.parse()?;
    files::make_dir(&dir)?;
    let (authority, key) = Authority::create(&args.name, args.life)?;
    // The key first: an authority without its key would be of no use.
    files::replace(&dir.join(files::AUTHORITY_KEY), key.reveal(), Readers::Owner)?;
    files::replace(&dir.join(files::AUTHORITY), authority.certificate(), Readers::All)?;
    let names = HostNames { host, addresses: args.address };
    write_host(&dir, &authority, &names, HOST_LIFE)?;
    say(format!(
        "{} can sign certificates of every host: keep it on the machines whose processes sign, and a copy offline.",
        dir.join(files::AUTHORITY_KEY).display()
    ));
    say(format!("Next: set tls.dir = \"{}\" and start the host.", dir.display()));
    report(&[dir.join(files::AUTHORITY), dir.join(files::HOST)], context)
}

fn issue(args: IssueArgs, context: &mut Context) -> Result<Exit> {
    let dir = directory(&args.dir, context)?;
    let authority = files::read_authority(&dir.join(files::AUTHORITY), &dir.join(files::AUTHORITY_KEY))?;
    ensure!(
        !args.to.join(files::AUTHORITY_KEY).exists(),
        "{} has an authority of its own; name another directory",
        args.to.display()
    );
    files::make_dir(&args.to)?;
    let names = HostNames { host: args.host.parse()?, addresses: args.address };
    files::replace(&args.to.join(files::AUTHORITY), authority.certificate(), Readers::All)?;
    write_host(&args.to, &authority, &names, args.life)?;
    report(&[args.to.join(files::HOST)], context)
}

fn write_host(dir: &Path, authority: &Authority, names: &HostNames, life: Duration) -> Result<()> {
    let KeyRequest { key, request } = KeyRequest::generate()?;
    let chain = authority.sign(&request, names, life)?;
    files::replace(&dir.join(files::HOST), &format!("{chain}{}", key.reveal()), Readers::Owner)?;
    Ok(())
}

async fn renew(arg: DirArg, context: &mut Context) -> Result<Exit> {
    let dir = directory(&arg, context)?;
    let ca_key = Some(dir.join(files::AUTHORITY_KEY)).filter(|file| file.is_file());
    let life = context.config().ok().and_then(|config| config.tls).map_or(HOST_LIFE, |own| own.life);
    let (ca, host) = (dir.join(files::AUTHORITY), dir.join(files::HOST));
    let own = HostTls { ca, host, ca_key, life, renew_every: None };
    let store = if own.ca_key.is_some() { None } else { Some(context.store().await?) };
    daemon::renew(&own, store.as_ref()).await?;
    report(&[own.host], context)
}

fn show(arg: &DirArg, files: Vec<PathBuf>, context: &mut Context) -> Result<Exit> {
    let dir = directory(arg, context)?;
    let of_dir = [files::AUTHORITY, files::HOST].map(|name| dir.join(name));
    report(if files.is_empty() { &of_dir } else { &files }, context)
}

/// Prints what the certificates in these files say.
fn report(files: &[PathBuf], context: &mut Context) -> Result<Exit> {
    let mut found: Vec<(&PathBuf, Description)> = Vec::new();
    for file in files {
        let chain = describe(files::read(file)?.as_bytes());
        let chain = chain.with_context(|| format!("{} cannot be used", file.display()))?;
        found.extend(chain.into_iter().map(|one| (file, one)));
    }
    match context.out.format {
        Format::Json => {
            let lines = found.iter().map(|(file, one)| json!({ "file": file, "certificate": one }));
            context.out.json(&json!({ "certificates": lines.collect::<Vec<_>>() }))?;
        }
        Format::Table => {
            let line = |(file, one): &(&PathBuf, Description)| {
                let addresses = one.addresses.iter().map(ToString::to_string);
                let names: Vec<String> = one.names.iter().cloned().chain(addresses).collect();
                let kind = if one.is_authority { "authority" } else { "host" };
                let names = if names.is_empty() { "-".to_owned() } else { names.join(" ") };
                [
                    file.display().to_string(),
                    one.subject.clone(),
                    kind.to_owned(),
                    rfc3339(one.not_after),
                    names,
                ]
            };
            let lines = found.iter().map(line).collect();
            context.out.table(["FILE", "SUBJECT", "KIND", "ENDS", "NAMES"], lines)?;
        }
    }
    Ok(Exit::Done)
}

async fn token(args: TokenArgs, context: &mut Context) -> Result<Exit> {
    let new =
        NewHost { host: args.host.parse()?, addresses: args.address, roles: args.role, ttl: args.expires };
    let ticket = enroll::ticket_create(&context.store().await?, &new, &context.operator()).await?;
    let text = ticket.text();
    match context.out.format {
        Format::Json => context.out.json(&json!({ "host": new.host, "token": text.reveal() }))?,
        Format::Table => {
            context.out.line(text.reveal())?;
            let seconds = new.ttl.as_secs();
            say(format!(
                "It lets one machine join as {} within {seconds} s, and is not shown again.",
                new.host
            ));
            say("On that machine: capstan join - --dir /etc/capstan   # and paste it");
        }
    }
    Ok(Exit::Done)
}

async fn revoke(host: &str, context: &mut Context) -> Result<Exit> {
    let host: HostId = host.parse()?;
    enroll::host_revoke(&context.store().await?, &host, &context.operator()).await?;
    match context.out.format {
        Format::Json => context.out.json(&json!({ "revoked": host }))?,
        Format::Table => context.out.line(format!("the certificate of {host} is renewed no more"))?,
    }
    Ok(Exit::Done)
}
