//! Ids of single versions.
//!
//! The document gives one id to a subject. Serialisers of the Confluent kind write an id of four bytes before each
//! payload and expect it to name one version. Such an id is computed from the two numbers, so that nothing else has to
//! be stored and the id of a subject is also the id of its first version.

use crate::error::SchemaError;

/// Bits of a version id that hold the subject's id.
const SUBJECT_BITS: u32 = 20;
/// The highest version that fits into a positive number of four bytes.
pub(super) const MAX_VERSION: u32 = 1 << (31 - SUBJECT_BITS);
/// The highest id of a subject.
pub(super) const MAX_SUBJECT_ID: u64 = (1 << SUBJECT_BITS) - 1;

/// Names one version of one subject.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct VersionId(pub u64);

impl VersionId {
    /// The id of a version.
    pub fn new(schema_id: u64, version: u32) -> Result<VersionId, SchemaError> {
        if schema_id > MAX_SUBJECT_ID {
            return Err(SchemaError::Full("more than 1,048,575 subjects"));
        }
        if !(1..=MAX_VERSION).contains(&version) {
            return Err(SchemaError::Full("more than 2,048 versions of one subject"));
        }
        Ok(VersionId(u64::from(version - 1) << SUBJECT_BITS | schema_id))
    }

    /// The id of the subject.
    #[must_use]
    pub fn schema_id(self) -> u64 {
        self.0 & MAX_SUBJECT_ID
    }

    /// The version; none where the number is too large to be an id.
    #[must_use]
    pub fn version(self) -> Option<u32> {
        u32::try_from(self.0 >> SUBJECT_BITS).ok()?.checked_add(1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_names_its_subject_and_version_and_fits_into_four_bytes() {
        assert_eq!(VersionId::new(7, 1).unwrap().0, 7);
        for (schema_id, version) in [(1, 1), (7, 2), (MAX_SUBJECT_ID, MAX_VERSION)] {
            let id = VersionId::new(schema_id, version).unwrap();
            assert_eq!((id.schema_id(), id.version()), (schema_id, Some(version)));
            assert!(i32::try_from(id.0).is_ok());
        }
        assert!(VersionId::new(MAX_SUBJECT_ID + 1, 1).is_err());
        assert!(VersionId::new(1, MAX_VERSION + 1).is_err());
        assert_eq!(VersionId(u64::MAX).version(), None);
    }
}
