//! The operations of the registry. Reads come from a view; each change is one guarded transaction.

mod change;
mod ids;

use std::sync::Arc;
use std::time::Duration;

use capstan_meta::Store;
use capstan_meta::record::RecordError;
use capstan_meta::view::{Ranges, Snapshot, View, ViewOptions};

use crate::compat::{self, Mode, Problem, Rules};
use crate::error::SchemaError;
use crate::format::{Definition, SchemaType};
use crate::keys::{DefaultModeKey, IdKey, Subject, SubjectKey, Subjects};
use crate::spec::{SubjectRecord, VersionRecord};

pub use change::{NewVersion, Registered};
pub use ids::VersionId;

/// How long a read waits for what was written before it.
const SEE_WITHIN: Duration = Duration::from_secs(5);

/// The registry of one cluster. Clones are the same.
#[derive(Clone, Debug)]
pub struct Registry {
    store: Store,
    view: Arc<View>,
}

/// One version with the subject it belongs to.
#[derive(Clone, Debug, PartialEq)]
pub struct VersionInfo {
    /// The id of the subject.
    pub schema_id: u64,
    /// The subject.
    pub subject: Subject,
    /// The mode of the subject.
    pub mode: Mode,
    /// The version.
    pub version: VersionRecord,
}

/// A line of the list of subjects.
#[derive(Clone, Debug, PartialEq)]
pub struct SubjectSummary {
    /// The subject.
    pub subject: Subject,
    /// Its id.
    pub schema_id: u64,
    /// The language of its newest version.
    pub schema_type: SchemaType,
    /// The newest version.
    pub latest_version: u32,
    /// Its mode.
    pub mode: Mode,
    /// The words of its newest version.
    pub tags: Vec<String>,
}

/// Which version is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Which {
    /// The newest.
    Latest,
    /// This one.
    Version(u32),
}

impl Registry {
    /// Opens a view of all schemas.
    pub async fn open(store: Store) -> Result<Registry, SchemaError> {
        let ranges = Ranges::new().with(&Subjects {});
        let view = View::open(store.clone(), ranges, ViewOptions::default()).await?;
        Ok(Registry { store, view: Arc::new(view) })
    }

    /// Every subject, in the order of the names.
    #[must_use]
    pub fn subjects(&self) -> Vec<SubjectSummary> {
        let listing = self.view.snapshot().list(&Subjects {});
        let summary = |(key, stored): (&SubjectKey, &capstan_meta::record::Stored<SubjectRecord>)| {
            let latest = stored.record.versions.last()?;
            Some(SubjectSummary {
                subject: key.subject.clone(),
                schema_id: stored.record.id,
                schema_type: latest.schema_def.schema_type(),
                latest_version: latest.version,
                mode: stored.record.compatibility_mode,
                tags: latest.tags.clone(),
            })
        };
        listing.iter().filter_map(summary).collect()
    }

    /// The record of a subject.
    pub async fn subject(&self, subject: &Subject) -> Result<SubjectRecord, SchemaError> {
        let key = SubjectKey { subject: subject.clone() };
        let found = self.find(|snapshot| Ok(snapshot.get(&key).map_err(RecordError::from)?)).await?;
        found.map(|stored| stored.record.clone()).ok_or_else(|| SchemaError::NoSubject(subject.clone()))
    }

    /// One version of a subject.
    pub async fn version(&self, subject: &Subject, which: Which) -> Result<VersionInfo, SchemaError> {
        let record = self.subject(subject).await?;
        info(subject, &record, which)
    }

    /// One version of the subject with this id; the newest where none is named.
    pub async fn by_id(&self, schema_id: u64, which: Which) -> Result<VersionInfo, SchemaError> {
        let key = IdKey { id: schema_id };
        let found = self.find(|snapshot| Ok(snapshot.get(&key).map_err(RecordError::from)?)).await?;
        let found = found.ok_or(SchemaError::NoId(schema_id))?;
        self.version(&Subject::new(found.record.subject.clone())?, which).await
    }

    /// The mode of a subject, or the default where the subject does not exist.
    pub async fn mode(&self, subject: &Subject) -> Result<Mode, SchemaError> {
        match self.subject(subject).await {
            Ok(record) => Ok(record.compatibility_mode),
            Err(SchemaError::NoSubject(_)) => self.default_mode(),
            Err(error) => Err(error),
        }
    }

    /// The mode that new subjects get.
    pub fn default_mode(&self) -> Result<Mode, SchemaError> {
        let found = self.view.snapshot().get(&DefaultModeKey {}).map_err(RecordError::from)?;
        Ok(found.map_or_else(Mode::default, |stored| stored.record))
    }

    /// Why this schema could not become the next version of a subject, by the subject's mode or by another.
    pub async fn check(
        &self,
        subject: &Subject,
        new: &Definition,
        mode: Option<Mode>,
    ) -> Result<Vec<Problem>, SchemaError> {
        self.check_by(Rules::default(), subject, new, mode).await
    }

    /// The same by other rules.
    pub async fn check_by(
        &self,
        rules: Rules,
        subject: &Subject,
        new: &Definition,
        mode: Option<Mode>,
    ) -> Result<Vec<Problem>, SchemaError> {
        let record = self.subject(subject).await?;
        let mode = mode.unwrap_or(record.compatibility_mode);
        Ok(compat::problems_by(rules, mode, new, &definitions(&record)?))
    }

    /// Looks twice: a schema that another process has just registered may not be in the view yet.
    async fn find<T>(
        &self,
        look: impl Fn(&Snapshot) -> Result<Option<T>, SchemaError>,
    ) -> Result<Option<T>, SchemaError> {
        match look(&self.view.snapshot())? {
            Some(found) => Ok(Some(found)),
            None => look(&*self.view.catch_up(SEE_WITHIN).await?),
        }
    }
}

fn info(subject: &Subject, record: &SubjectRecord, which: Which) -> Result<VersionInfo, SchemaError> {
    let wanted = match which {
        Which::Latest => record.latest_version,
        Which::Version(version) => version,
    };
    let version = record.versions.iter().find(|version| version.version == wanted);
    let version = version.ok_or_else(|| SchemaError::NoVersion(subject.clone(), wanted))?.clone();
    let (schema_id, mode) = (record.id, record.compatibility_mode);
    Ok(VersionInfo { schema_id, subject: subject.clone(), mode, version })
}

/// All versions of a subject, parsed, oldest first.
fn definitions(record: &SubjectRecord) -> Result<Vec<(u32, Definition)>, SchemaError> {
    let parse = |version: &VersionRecord| Ok((version.version, Definition::of_stored(&version.schema_def)?));
    record.versions.iter().map(parse).collect()
}
