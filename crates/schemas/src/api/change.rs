//! Changes of the registry: register, set a mode, bind a topic, delete.

use capstan_meta::record::{Extra, Key, Stored};
use capstan_meta::settle::{Next, Progress, settle};
use capstan_meta::{Store, Txn, clock};

use super::ids::{MAX_SUBJECT_ID, MAX_VERSION};
use super::{Registry, SEE_WITHIN, definitions};
use crate::compat::{self, Mode, Rules};
use crate::error::SchemaError;
use crate::format::Definition;
use crate::keys::{
    DefaultModeKey, IdKey, NextIdKey, Subject, SubjectKey, SubjectModeKey, VersionKey, Versions,
};
use crate::spec::{IdRecord, SubjectMode, SubjectRecord, VersionRecord};

/// A version to be registered.
#[derive(Clone, Debug)]
pub struct NewVersion {
    /// The schema.
    pub definition: Definition,
    /// What it is for.
    pub description: String,
    /// The registrant.
    pub created_by: String,
    /// Free words.
    pub tags: Vec<String>,
    /// What it must not break.
    pub rules: Rules,
}

impl NewVersion {
    /// A version without a description.
    #[must_use]
    pub fn new(definition: Definition, created_by: impl Into<String>) -> NewVersion {
        let (description, tags) = (String::new(), Vec::new());
        let created_by = created_by.into();
        NewVersion { definition, description, created_by, tags, rules: Rules::default() }
    }
}

/// The answer to a registration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Registered {
    /// The id of the subject.
    pub schema_id: u64,
    /// The version that the schema has.
    pub version: u32,
    /// Whether this registration made it.
    pub is_new_version: bool,
    /// Identifies the schema.
    pub fingerprint: String,
}

/// What a registration reads.
struct Seen {
    subject: Option<Stored<SubjectRecord>>,
    next_id: Option<Stored<u64>>,
    default_mode: Option<Stored<Mode>>,
}

impl Registry {
    /// Registers a schema as the next version of a subject. The same schema again is the version that it is already.
    pub async fn register(&self, subject: &Subject, new: &NewVersion) -> Result<Registered, SchemaError> {
        let read = || look(&self.store, subject);
        let now = clock::since_epoch().as_secs();
        let decide = |seen: &Seen, progress| register(subject, new, seen, progress, now);
        let registered = settle(&self.store, &format!("subject {subject}"), read, decide).await?;
        self.view.catch_up(SEE_WITHIN).await?;
        Ok(registered)
    }

    /// Sets how new versions of a subject must relate to earlier ones.
    pub async fn set_mode(&self, subject: &Subject, mode: Mode) -> Result<(), SchemaError> {
        let own = SubjectModeKey { subject: subject.clone() };
        self.change(
            subject,
            |record| (record.compatibility_mode != mode).then(|| record.compatibility_mode = mode),
            |txn| txn.then(own.put(&SubjectMode { mode })),
        )
        .await
    }

    /// Sets the mode that new subjects get.
    pub async fn set_default_mode(&self, mode: Mode) -> Result<(), SchemaError> {
        self.store.commit(Txn::new().then(DefaultModeKey {}.put(&mode))).await?;
        self.view.catch_up(SEE_WITHIN).await?;
        Ok(())
    }

    /// Notes that a topic uses a subject: its versions cannot be deleted from then on.
    pub async fn bind(&self, subject: &Subject, topic: &str) -> Result<(), SchemaError> {
        let add = |record: &mut SubjectRecord| {
            let is_new = !record.topics_using.iter().any(|known| known == topic);
            is_new.then(|| record.topics_using.push(topic.to_owned()))
        };
        self.change(subject, add, |txn| txn).await
    }

    /// Notes that a topic uses a subject no longer.
    pub async fn unbind(&self, subject: &Subject, topic: &str) -> Result<(), SchemaError> {
        let remove = |record: &mut SubjectRecord| {
            let is_known = record.topics_using.iter().any(|known| known == topic);
            is_known.then(|| record.topics_using.retain(|known| known != topic))
        };
        self.change(subject, remove, |txn| txn).await
    }

    /// Deletes one version. Its number is not given again; the last version takes the subject with it.
    pub async fn delete_version(&self, subject: &Subject, version: u32) -> Result<(), SchemaError> {
        let key = SubjectKey { subject: subject.clone() };
        let read = || async { Ok::<_, SchemaError>(self.store.read(&key).await?) };
        settle(&self.store, &format!("subject {subject}"), read, |seen, progress| {
            delete_version(subject, version, seen.as_ref(), progress)
        })
        .await?;
        self.view.catch_up(SEE_WITHIN).await?;
        Ok(())
    }

    /// Deletes a subject with all its versions and returns their numbers.
    pub async fn delete_subject(&self, subject: &Subject) -> Result<Vec<u32>, SchemaError> {
        let versions = self.subject(subject).await?.versions.iter().map(|version| version.version).collect();
        let key = SubjectKey { subject: subject.clone() };
        let read = || async { Ok::<_, SchemaError>(self.store.read(&key).await?) };
        settle(&self.store, &format!("subject {subject}"), read, |seen, progress| match seen {
            None if progress.maybe_ours() => Ok(Next::Done(())),
            None => Err(SchemaError::NoSubject(subject.clone())),
            Some(seen) => {
                refuse_if_used(subject, &seen.record, seen.record.latest_version)?;
                Ok(Next::Last(remove(subject, seen), ()))
            }
        })
        .await?;
        self.view.catch_up(SEE_WITHIN).await?;
        Ok(versions)
    }

    /// Changes the record of a subject; `edit` returns nothing where it is already as wanted.
    async fn change(
        &self,
        subject: &Subject,
        edit: impl Fn(&mut SubjectRecord) -> Option<()>,
        with: impl Fn(Txn) -> Txn,
    ) -> Result<(), SchemaError> {
        let key = SubjectKey { subject: subject.clone() };
        let read = || async { Ok::<_, SchemaError>(self.store.read(&key).await?) };
        settle(&self.store, &format!("subject {subject}"), read, |seen, _| {
            let seen = seen.as_ref().ok_or_else(|| SchemaError::NoSubject(subject.clone()))?;
            let mut record = seen.record.clone();
            if edit(&mut record).is_none() {
                return Ok(Next::Done(()));
            }
            record.updated_at = clock::since_epoch().as_secs();
            Ok(Next::Commit(with(Txn::new().when(key.unchanged(seen)).then(key.replace(seen, &record)))))
        })
        .await?;
        self.view.catch_up(SEE_WITHIN).await?;
        Ok(())
    }
}

async fn look(store: &Store, subject: &Subject) -> Result<Seen, SchemaError> {
    Ok(Seen {
        subject: store.read(&SubjectKey { subject: subject.clone() }).await?,
        next_id: store.read(&NextIdKey {}).await?,
        default_mode: store.read(&DefaultModeKey {}).await?,
    })
}

fn register(
    subject: &Subject,
    new: &NewVersion,
    seen: &Seen,
    progress: Progress,
    now: u64,
) -> Result<Next<Registered>, SchemaError> {
    let fingerprint = new.definition.fingerprint();
    let Some(known) = &seen.subject else { return first_version(subject, new, seen, now) };
    let record = &known.record;
    if let Some(same) = record.versions.iter().find(|version| version.fingerprint == fingerprint) {
        let (schema_id, version) = (record.id, same.version);
        let is_new_version = progress.maybe_ours();
        return Ok(Next::Done(Registered { schema_id, version, is_new_version, fingerprint }));
    }
    let mode = record.compatibility_mode;
    let problems = compat::problems_by(new.rules, mode, &new.definition, &definitions(record)?);
    if !problems.is_empty() {
        return Err(SchemaError::Incompatible { subject: subject.clone(), mode, problems });
    }
    let number = record.highest_version.unwrap_or(record.latest_version) + 1;
    if number > MAX_VERSION {
        return Err(SchemaError::Full("more than 2,048 versions of one subject"));
    }
    let version = version_record(new, number, now);
    let mut changed = record.clone();
    changed.latest_version = number;
    changed.highest_version = None;
    changed.updated_at = now;
    changed.versions.push(version.clone());
    let key = SubjectKey { subject: subject.clone() };
    let txn = Txn::new()
        .when(key.unchanged(known))
        .then(key.replace(known, &changed))
        .then(VersionKey { subject: subject.clone(), version: number }.put(&version));
    Ok(Next::Commit(txn))
}

fn first_version(
    subject: &Subject,
    new: &NewVersion,
    seen: &Seen,
    now: u64,
) -> Result<Next<Registered>, SchemaError> {
    let id = seen.next_id.as_ref().map_or(1, |next| next.record);
    if id > MAX_SUBJECT_ID {
        return Err(SchemaError::Full("more than 1,048,575 subjects"));
    }
    let version = version_record(new, 1, now);
    let record = SubjectRecord {
        compatibility_mode: seen.default_mode.as_ref().map_or_else(Mode::default, |stored| stored.record),
        created_at: now,
        created_by: new.created_by.clone(),
        id,
        latest_version: 1,
        subject: subject.to_string(),
        topics_using: Vec::new(),
        updated_at: now,
        versions: vec![version.clone()],
        highest_version: None,
        extra: Extra::default(),
    };
    let key = SubjectKey { subject: subject.clone() };
    let txn = Txn::new()
        .when(key.absent())
        .when(NextIdKey {}.as_seen(seen.next_id.as_ref()))
        .then(NextIdKey {}.put(&(id + 1)))
        .then(IdKey { id }.put(&IdRecord { schema_id: id, subject: subject.to_string() }))
        .then(key.put(&record))
        .then(VersionKey { subject: subject.clone(), version: 1 }.put(&version));
    Ok(Next::Commit(txn))
}

fn version_record(new: &NewVersion, version: u32, now: u64) -> VersionRecord {
    VersionRecord {
        created_at: now,
        created_by: new.created_by.clone(),
        version,
        fingerprint: new.definition.fingerprint(),
        is_deprecated: false,
        schema_def: new.definition.to_stored(),
        tags: new.tags.clone(),
        description: new.description.clone(),
        extra: Extra::default(),
    }
}

fn delete_version(
    subject: &Subject,
    version: u32,
    seen: Option<&Stored<SubjectRecord>>,
    progress: Progress,
) -> Result<Next<()>, SchemaError> {
    let gone = |error| if progress.maybe_ours() { Ok(Next::Done(())) } else { Err(error) };
    let Some(seen) = seen else { return gone(SchemaError::NoSubject(subject.clone())) };
    let record = &seen.record;
    if !record.versions.iter().any(|known| known.version == version) {
        return gone(SchemaError::NoVersion(subject.clone(), version));
    }
    refuse_if_used(subject, record, version)?;
    let mut changed = record.clone();
    changed.versions.retain(|known| known.version != version);
    let Some(latest) = changed.versions.last() else { return Ok(Next::Commit(remove(subject, seen))) };
    changed.highest_version = Some(record.highest_version.unwrap_or(record.latest_version))
        .filter(|highest| *highest > latest.version);
    changed.latest_version = latest.version;
    let key = SubjectKey { subject: subject.clone() };
    let txn = Txn::new()
        .when(key.unchanged(seen))
        .then(key.replace(seen, &changed))
        .then(VersionKey { subject: subject.clone(), version }.delete());
    Ok(Next::Commit(txn))
}

/// The newest version of a subject that topics are bound to stays.
fn refuse_if_used(subject: &Subject, record: &SubjectRecord, version: u32) -> Result<(), SchemaError> {
    match record.topics_using.first() {
        Some(user) if version == record.latest_version => {
            Err(SchemaError::InUse { subject: subject.clone(), version, user: user.clone() })
        }
        Some(_) | None => Ok(()),
    }
}

/// Removes everything of a subject. Its id is not given again.
fn remove(subject: &Subject, seen: &Stored<SubjectRecord>) -> Txn {
    use capstan_meta::record::Prefix as _;
    let key = SubjectKey { subject: subject.clone() };
    Txn::new()
        .when(key.unchanged(seen))
        .then(key.delete())
        .then(IdKey { id: seen.record.id }.delete())
        .then(SubjectModeKey { subject: subject.clone() }.delete())
        .then(Versions { subject: subject.clone() }.delete_all())
}
