//! In which order are documents returned?

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::Refusal;
use super::order::compare;
use super::path::Path;

/// Fields and directions, the most important first. Without any, documents come in the order of their ids.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sort(Vec<(Path, Direction)>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Direction {
    Ascending,
    Descending,
}

impl Sort {
    /// Reads `{field: 1, other: -1}`.
    pub fn parse(value: &Bson) -> Result<Sort, Refusal> {
        let Bson::Document(fields) = value else {
            return Err(Refusal::new("sort is an object of fields with 1 or -1"));
        };
        let fields = fields.iter().map(|(name, direction)| {
            let text = match direction {
                Bson::Symbol(text) | Bson::String(text) => text.clone(),
                other => other.to_string(),
            };
            let direction = match text.as_str() {
                "1" => Direction::Ascending,
                "-1" => Direction::Descending,
                _ => return Err(Refusal::new("sort is an object of fields with 1 or -1")),
            };
            Ok((Path::parse(name)?, direction))
        });
        Ok(Sort(fields.collect::<Result<_, _>>()?))
    }

    /// Whether documents stay in the order of their ids.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Compares two documents; equal ones by their ids.
    #[must_use]
    pub fn compare(&self, one: &Document, other: &Document) -> Ordering {
        let fields = self.0.iter().map(|(path, direction)| {
            let ordering =
                compare(path.get(one).unwrap_or(&Bson::Null), path.get(other).unwrap_or(&Bson::Null));
            match direction {
                Direction::Ascending => ordering,
                Direction::Descending => ordering.reverse(),
            }
        });
        let decided = fields.into_iter().find(|ordering| *ordering != Ordering::Equal);
        decided.unwrap_or_else(|| {
            compare(one.get("_id").unwrap_or(&Bson::Null), other.get("_id").unwrap_or(&Bson::Null))
        })
    }
}
