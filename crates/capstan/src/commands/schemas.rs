//! `capstan schemas`: subjects of the schema registry, their versions, and the topics that are bound to them.

use std::io::Read as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use capstan_schemas::api::{NewVersion, Which};
use capstan_schemas::format::MAX_SCHEMA_BYTES;
use capstan_schemas::{Definition, Mode, Registry, SchemaType, Subject};
use capstan_topics::spec::{TopicName, ValidationPolicy};
use capstan_topics::wire::danube_schema::ConfigureTopicSchemaRequest;
use capstan_topics::wire::danube_schema::schema_registry_client::SchemaRegistryClient;
use serde_json::json;

use super::topics::{channel, done, refused};
use crate::commands::action::OperatorAction;
use crate::context::Context;
use crate::exit::Exit;
use crate::output::{Format, say};

/// Who registered a version that came over the command line.
const REGISTRANT: &str = "capstan";

#[derive(Debug, clap::Subcommand)]
pub(crate) enum SchemasCommand {
    /// List the subjects
    List,
    /// Print the schema of a subject
    Show {
        /// The subject
        subject: Subject,
        /// This version instead of the newest
        #[arg(long, value_name = "NUMBER")]
        version: Option<u32>,
    },
    /// Register a schema as the next version of a subject
    Register {
        /// The subject; made if it is not there
        subject: Subject,
        #[command(flatten)]
        schema: SchemaArgs,
    },
    /// Say whether a schema could be the next version, and what it would break
    Check {
        /// The subject
        subject: Subject,
        #[command(flatten)]
        schema: SchemaArgs,
        /// By this mode instead of the subject's own
        #[arg(long, value_name = "MODE")]
        mode: Option<Mode>,
    },
    /// Delete a subject that no topic uses, or one version of it
    Delete {
        /// The subject
        subject: Subject,
        /// Only this version
        #[arg(long, value_name = "NUMBER")]
        version: Option<u32>,
    },
    /// Print or set how new versions of a subject must relate to earlier ones
    Compat {
        /// The subject
        subject: Subject,
        /// none, backward, forward or full; with _transitive: to all earlier versions
        mode: Option<Mode>,
    },
    /// Bind a subject to a topic and say what becomes of messages that do not fit
    Bind {
        /// The subject
        subject: Subject,
        /// The topic
        topic: TopicName,
        /// none, warn or enforce
        #[arg(long, value_name = "POLICY", default_value = "enforce")]
        validation: ValidationPolicy,
        /// Check the payload of every message against the schema
        #[arg(long)]
        payloads: bool,
    },
}

#[derive(Debug, clap::Args)]
pub(crate) struct SchemaArgs {
    /// The file with the schema; - for stdin
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// avro, json_schema, protobuf, string, bytes or number; by default from the file's ending: avsc, json, proto
    #[arg(long = "type", value_name = "TYPE")]
    schema_type: Option<SchemaType>,
}

impl SchemaArgs {
    fn read(&self) -> Result<Definition> {
        let schema_type = match self.schema_type {
            Some(known) => known,
            None => by_ending(&self.file).with_context(|| {
                format!("cannot tell the type of {}; name it with --type", self.file.display())
            })?,
        };
        let limit = u64::try_from(MAX_SCHEMA_BYTES)? + 1;
        let mut text = String::new();
        let read = match self.file.as_os_str() == "-" {
            true => std::io::stdin().lock().take(limit).read_to_string(&mut text),
            false => {
                std::fs::File::open(&self.file).and_then(|file| file.take(limit).read_to_string(&mut text))
            }
        };
        read.with_context(|| format!("cannot read {}", self.file.display()))?;
        Ok(Definition::parse(schema_type, &text)?)
    }
}

fn by_ending(file: &Path) -> Option<SchemaType> {
    match file.extension()?.to_str()? {
        "avsc" => Some(SchemaType::Avro),
        "json" => Some(SchemaType::JsonSchema),
        "proto" => Some(SchemaType::Protobuf),
        _ => None,
    }
}

impl SchemasCommand {
    /// The operator action that it is, for the record of events.
    pub(super) fn action(&self) -> Option<OperatorAction> {
        let of = |action: &str, subject: &Subject| {
            OperatorAction::new(action, format!("schema subject {subject}"))
        };
        match self {
            SchemasCommand::Register { subject, .. } => Some(of("registered a version of", subject)),
            SchemasCommand::Delete { subject, version: None } => Some(of("deleted", subject)),
            SchemasCommand::Delete { subject, version: Some(version) } => {
                Some(of(&format!("deleted version {version} of"), subject))
            }
            SchemasCommand::Compat { subject, mode: Some(mode) } => {
                Some(of("set the compatibility of", subject).because(&mode.to_string()))
            }
            SchemasCommand::Bind { subject, topic, .. } => {
                Some(of("bound", subject).because(&format!("to topic {topic}")))
            }
            SchemasCommand::Compat { mode: None, .. } | SchemasCommand::List => None,
            SchemasCommand::Show { .. } | SchemasCommand::Check { .. } => None,
        }
    }
}

pub(crate) async fn run(command: SchemasCommand, context: &mut Context) -> Result<Exit> {
    if let SchemasCommand::Bind { subject, topic, validation, payloads } = command {
        return bind(&subject, &topic, validation, payloads, context).await;
    }
    let registry = Registry::open(context.store().await?).await?;
    match command {
        SchemasCommand::List => list(&registry, context),
        SchemasCommand::Show { subject, version } => show(&registry, &subject, version, context).await,
        SchemasCommand::Register { subject, schema } => {
            let new = NewVersion::new(schema.read()?, REGISTRANT);
            let made = registry.register(&subject, &new).await?;
            let is_new = made.is_new_version;
            match context.out.format {
                Format::Json => context.out.json(&json!({
                    "subject": subject.as_str(), "id": made.schema_id, "version": made.version, "new": is_new,
                    "fingerprint": made.fingerprint,
                }))?,
                Format::Table => {
                    let what = if is_new { "registered" } else { "was registered before:" };
                    say(format!(
                        "{what} version {} of subject {subject}, id {}",
                        made.version, made.schema_id
                    ));
                }
            }
            Ok(Exit::Done)
        }
        SchemasCommand::Check { subject, schema, mode } => {
            let problems = registry.check(&subject, &schema.read()?, mode).await?;
            let problems: Vec<String> = problems.iter().map(ToString::to_string).collect();
            match context.out.format {
                Format::Json => {
                    context.out.json(&json!({ "compatible": problems.is_empty(), "problems": problems }))?;
                }
                Format::Table if problems.is_empty() => {
                    context.out.line(format!("compatible with subject {subject}"))?;
                }
                Format::Table => problems.iter().try_for_each(|problem| context.out.line(problem))?,
            }
            Ok(if problems.is_empty() { Exit::Done } else { Exit::Failed })
        }
        SchemasCommand::Delete { subject, version: None } => {
            let versions = registry.delete_subject(&subject).await?;
            done(context, &format!("deleted subject {subject}, versions: {}", versions.len()))
        }
        SchemasCommand::Delete { subject, version: Some(version) } => {
            registry.delete_version(&subject, version).await?;
            done(context, &format!("deleted version {version} of subject {subject}"))
        }
        SchemasCommand::Compat { subject, mode: None } => {
            let mode = registry.subject(&subject).await?.compatibility_mode;
            match context.out.format {
                Format::Json => context.out.json(&json!({ "mode": mode.name() }))?,
                Format::Table => context.out.line(mode.name())?,
            }
            Ok(Exit::Done)
        }
        SchemasCommand::Compat { subject, mode: Some(mode) } => {
            registry.set_mode(&subject, mode).await?;
            done(context, &format!("compatibility of subject {subject}: {}", mode.name()))
        }
        SchemasCommand::Bind { .. } => Ok(Exit::Done),
    }
}

fn list(registry: &Registry, context: &mut Context) -> Result<Exit> {
    let subjects = registry.subjects();
    match context.out.format {
        Format::Json => {
            let lines = subjects.iter().map(|known| {
                json!({
                    "subject": known.subject.as_str(), "id": known.schema_id, "type": known.schema_type.name(),
                    "version": known.latest_version, "mode": known.mode.name(),
                })
            });
            context.out.json_list("subjects", &lines.collect::<Vec<_>>())?;
        }
        Format::Table => {
            let rows = subjects.iter().map(|known| {
                [
                    known.subject.to_string(),
                    known.schema_id.to_string(),
                    known.schema_type.to_string(),
                    known.latest_version.to_string(),
                    known.mode.name().to_owned(),
                ]
            });
            context.out.table(["SUBJECT", "ID", "TYPE", "VERSION", "COMPATIBILITY"], rows.collect())?;
        }
    }
    Ok(Exit::Done)
}

async fn show(
    registry: &Registry,
    subject: &Subject,
    version: Option<u32>,
    context: &mut Context,
) -> Result<Exit> {
    let which = version.map_or(Which::Latest, Which::Version);
    let found = registry.version(subject, which).await?;
    let (record, text) = (registry.subject(subject).await?, found.version.schema_def.text());
    match context.out.format {
        Format::Json => {
            let versions: Vec<u32> = record.versions.iter().map(|version| version.version).collect();
            context.out.json(&json!({
                "subject": subject.as_str(), "id": found.schema_id, "version": found.version.version,
                "versions": versions, "type": found.version.schema_def.schema_type().name(),
                "mode": found.mode.name(), "fingerprint": found.version.fingerprint,
                "topics": record.topics_using, "schema": text,
            }))?;
        }
        Format::Table => context.out.line(text.trim_end())?,
    }
    Ok(Exit::Done)
}

async fn bind(
    subject: &Subject,
    topic: &TopicName,
    validation: ValidationPolicy,
    payloads: bool,
    context: &mut Context,
) -> Result<Exit> {
    let request = ConfigureTopicSchemaRequest {
        topic_name: topic.to_string(),
        schema_subject: subject.to_string(),
        validation_policy: validation.to_string(),
        enable_payload_validation: payloads,
    };
    let mut registry = SchemaRegistryClient::new(channel(context).await?);
    registry.configure_topic_schema(request).await.map_err(refused)?;
    done(context, &format!("topic {topic} has the schema of subject {subject}; validation: {validation}"))
}
