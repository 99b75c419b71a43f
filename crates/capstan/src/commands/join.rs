//! `capstan join`: makes this machine a host of a cluster, with a token that is used once.

use std::collections::BTreeMap;
use std::io::Read as _;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use capstan_access::certs::files::{self, Readers};
use capstan_access::certs::{KeyRequest, describe};
use capstan_access::enroll::Ticket;
use capstan_access::tls::{check_pair, pinned_client};
use serde::Deserialize;
use serde_json::json;

use crate::config::{Config, HostRole, Invalid, KEYS, Layers, Sources, Value};
use crate::context::Context;
use crate::exit::Exit;
use crate::https;
use crate::output::{Format, say};

/// The longest text that is read as a token.
const MAX_TOKEN_BYTES: u64 = 4096;
/// Where the certificates are, below the directory.
const CERTS: &str = "certs";
/// The settings of the host.
const SETTINGS: &str = "host.toml";
/// The authority of the metadata store, where it is another one.
const META_AUTHORITY: &str = "meta-ca.pem";
const BEGIN: &str = "-----BEGIN CERTIFICATE-----";

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Settings given with --set are written to the file as well.\nExample:\n  capstan join - --dir /etc/capstan < token\n  \
    capstan host --config /etc/capstan/host.toml"
)]
pub(crate) struct JoinArgs {
    /// The token that `capstan certs token` printed; - reads it from stdin, where no other user of the machine sees it
    token: String,
    /// Where the certificates and the settings of the host are written
    #[arg(long, value_name = "DIR", default_value = "/etc/capstan")]
    dir: PathBuf,
}

/// What the cluster answers.
#[derive(Deserialize)]
struct Welcomed {
    host: String,
    addresses: Vec<IpAddr>,
    roles: Vec<String>,
    chain: String,
    settings: BTreeMap<String, String>,
    meta_authority: Option<String>,
}

pub(crate) async fn run(args: JoinArgs, context: &mut Context) -> Result<Exit> {
    let ticket = Ticket::parse(&read_token(args.token)?)
        .context("this is not a token of `capstan certs token`; copy all of it")?;
    let dir = std::path::absolute(&args.dir)?;
    let given = given(context)?;
    // Everything that can be wrong here is, before the token is used up.
    prepare(&dir)?;
    let KeyRequest { key, request } = KeyRequest::generate()?;
    let welcomed = ask(&ticket, &request).await?;
    let authority = authority_of(&welcomed.chain, &ticket)?;
    let own = format!("{}{}", welcomed.chain, key.reveal());
    check_pair(&own).context("the certificate does not belong to the key of this machine")?;
    files::replace(&dir.join(CERTS).join(files::HOST), &own, Readers::Owner)?;
    files::replace(&dir.join(CERTS).join(files::AUTHORITY), authority, Readers::All)?;
    if let Some(pem) = &welcomed.meta_authority {
        files::replace(&dir.join(META_AUTHORITY), pem, Readers::All)?;
    }
    let text = settings_file(&settings(&welcomed, &dir, given))?;
    let file = dir.join(SETTINGS);
    files::replace(&file, &text, Readers::Owner)?;
    report(&welcomed.host, &file, context)?;
    check(&file, text)
}

/// From stdin if that was asked for: a command line can be read by every user of the machine.
fn read_token(given: String) -> Result<String> {
    if given != "-" {
        return Ok(given);
    }
    let mut text = String::new();
    std::io::stdin().lock().take(MAX_TOKEN_BYTES).read_to_string(&mut text).context("cannot read stdin")?;
    Ok(text)
}

/// The settings of `--set`, which must exist and be readable.
fn given(context: &Context) -> Result<Vec<(String, String)>> {
    for (name, text) in &context.options.set {
        setting(name, text).map_err(|problem| Invalid(vec![format!("--set {name}: {problem}")]))?;
    }
    Ok(context.options.set.clone())
}

/// Makes the directories. A machine that has joined already is left alone.
fn prepare(dir: &Path) -> Result<()> {
    for name in [SETTINGS, META_AUTHORITY, "certs/host.pem", "certs/ca.pem"] {
        let file = dir.join(name);
        ensure!(
            !file.exists(),
            "{} exists: this machine has joined already; nothing was changed",
            file.display()
        );
    }
    files::make_dir(&dir.join(CERTS))?;
    // Writable?
    let probe = dir.join(CERTS).join(files::HOST);
    files::replace(&probe, "", Readers::Owner)?;
    std::fs::remove_file(&probe).with_context(|| format!("cannot remove {}", probe.display()))
}

/// Asks one process after the other; each must be one of the authority that the token names.
async fn ask(ticket: &Ticket, request: &str) -> Result<Welcomed> {
    let body = json!({ "token": ticket.token.text().reveal(), "request": request });
    let mut last = anyhow::anyhow!("the token names no process to ask");
    for signer in &ticket.signers {
        match https::post(pinned_client(&ticket.authority)?, *signer, "/api/v1/certs/join", &body).await {
            Ok(answer) => return serde_json::from_value(answer).context("the answer cannot be read"),
            Err(error) => last = error,
        }
    }
    Err(last.context("cannot join"))
}

/// The certificate of the authority at the end of a chain; it must be the one that the token names.
fn authority_of<'c>(chain: &'c str, ticket: &Ticket) -> Result<&'c str> {
    let pem = chain.rfind(BEGIN).and_then(|at| chain.get(at..)).context("the answer has no certificate")?;
    match describe(pem.as_bytes())?.as_slice() {
        [one] if one.is_authority && one.fingerprint == ticket.authority => Ok(pem),
        _ => bail!("the certificate is not of the authority of this token"),
    }
}

/// The settings of the new host, the later ones over the earlier ones.
fn settings(welcomed: &Welcomed, dir: &Path, given: Vec<(String, String)>) -> BTreeMap<String, String> {
    let mut settings = welcomed.settings.clone();
    let mut set = |name: &str, value: String| settings.insert(name.to_owned(), value);
    set("host.id", welcomed.host.clone());
    set("host.roles", welcomed.roles.join(","));
    set("tls.dir", dir.join(CERTS).display().to_string());
    if welcomed.meta_authority.is_some() {
        set("meta.tls_ca", dir.join(META_AUTHORITY).display().to_string());
    }
    if let Some(address) = welcomed.addresses.first() {
        let has = |role: HostRole| welcomed.roles.iter().any(|name| name == role.name());
        let at = |port: u16| std::net::SocketAddr::new(*address, port).to_string();
        set("http.listen", at(7700));
        if has(HostRole::Redis) {
            set("redis.listen", at(7711));
        }
        if has(HostRole::Topics) {
            set("topics.listen", at(6650));
        }
        if has(HostRole::Docs) {
            set("docs.listen", at(7751));
        }
        if has(HostRole::Topics) || has(HostRole::Docs) {
            set("holders.listen", at(7731));
        }
    }
    settings.extend(given);
    settings
}

fn setting(name: &str, text: &str) -> Result<Value, String> {
    let key = KEYS.iter().find(|key| key.path == name).ok_or("there is no such setting")?;
    Value::from_text(key.kind, text)
}

/// The settings as a file, in the order of the reference.
fn settings_file(settings: &BTreeMap<String, String>) -> Result<String> {
    let mut text = String::from("# Written by `capstan join`. It has secrets: only its owner reads it.\n");
    let mut section = "";
    for name in settings.keys().filter(|name| KEYS.iter().all(|key| key.path != name.as_str())) {
        say(format!("capstan: the cluster has a setting that this version does not know: {name}"));
    }
    for key in KEYS {
        let Some(given) = settings.get(key.path) else { continue };
        let value =
            setting(key.path, given).map_err(|problem| Invalid(vec![format!("{}: {problem}", key.path)]))?;
        let (of, name) = key.path.split_once('.').context("a setting without a section")?;
        if of != section {
            text.push_str(&format!("\n[{of}]\n"));
            section = of;
        }
        text.push_str(&format!("{name} = {}\n", value.to_toml()));
    }
    Ok(text)
}

fn report(host: &str, file: &Path, context: &mut Context) -> Result<()> {
    match context.out.format {
        Format::Json => context.out.json(&json!({ "host": host, "config": file }))?,
        Format::Table => context.out.line(format!("joined as {host}"))?,
    }
    context.out.flush()?;
    say(format!("Next: capstan host --config {}", file.display()));
    Ok(())
}

/// Says what the operator still has to decide, such as which plain ports may be reached from other machines.
fn check(file: &Path, text: String) -> Result<Exit> {
    let layers = Layers::of(&Sources { file: Some((file.to_owned(), text)), ..Sources::default() });
    match Config::of(&layers) {
        Ok(_) => Ok(Exit::Done),
        Err(invalid) => {
            Err(anyhow::Error::from(invalid).context("this machine has joined; before it can start"))
        }
    }
}
