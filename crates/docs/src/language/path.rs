//! Where in a document? Dotted paths.

use bson::{Bson, Document};

use super::{MAX_DEPTH, Refusal};

/// Bytes of a dotted path.
const MAX_PATH: usize = 1_024;

/// A place in a document: field names, outermost first. A number is also an index of an array.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Path(Vec<String>);

impl Path {
    /// Reads `a.b.0`.
    pub fn parse(text: &str) -> Result<Path, Refusal> {
        let parts: Vec<String> = text.split('.').map(str::to_owned).collect();
        if text.len() > MAX_PATH || parts.len() > MAX_DEPTH {
            return Err(Refusal::new(format!(
                "a field name or a dotted path has at most {MAX_PATH} bytes and {MAX_DEPTH} levels"
            )));
        }
        // BSON ends a name with a NUL.
        if parts.iter().any(String::is_empty) || text.contains('\0') {
            return Err(Refusal::new(format!("`{text}` is not a field name or a dotted path")));
        }
        if parts.iter().any(|part| part.starts_with('$')) {
            return Err(Refusal::new(format!("`{text}` is not an operator that is known here")));
        }
        Ok(Path(parts))
    }

    /// The outermost field.
    #[must_use]
    pub fn root(&self) -> &str {
        self.0.first().map_or("", String::as_str)
    }

    /// The dotted text.
    #[must_use]
    pub fn text(&self) -> String {
        self.0.join(".")
    }

    /// The value there, if it is there; arrays only by index.
    #[must_use]
    pub fn get<'d>(&self, document: &'d Document) -> Option<&'d Bson> {
        let (first, rest) = self.0.split_first()?;
        rest.iter().try_fold(document.get(first)?, |value, part| step(value, part))
    }

    /// Every value that a filter looks at: an array on the way stands for each of its elements.
    #[must_use]
    pub fn values<'d>(&self, document: &'d Document) -> Vec<&'d Bson> {
        let mut found = Vec::new();
        if let Some((first, rest)) = self.0.split_first()
            && let Some(value) = document.get(first)
        {
            spread(value, rest, &mut found);
        }
        found
    }

    /// The place of the value, with parents made where they are missing.
    pub fn make<'d>(&self, document: &'d mut Document) -> Result<&'d mut Bson, Refusal> {
        let (last, parents) = self.ends()?;
        let mut place = document;
        for part in parents {
            let value = place.entry(part.clone()).or_insert(Bson::Document(Document::new()));
            place = match value {
                Bson::Document(inner) => inner,
                _ => return Err(self.refuse("a parent of it is not an object")),
            };
        }
        Ok(place.entry(last.clone()).or_insert(Bson::Null))
    }

    /// The place of a value that is there.
    #[must_use]
    pub fn get_mut<'d>(&self, document: &'d mut Document) -> Option<&'d mut Bson> {
        let (first, rest) = self.0.split_first()?;
        rest.iter().try_fold(document.get_mut(first)?, |value, part| match value {
            Bson::Document(inner) => inner.get_mut(part),
            Bson::Array(items) => items.get_mut(part.parse::<usize>().ok()?),
            _ => None,
        })
    }

    /// Takes the value away.
    pub fn remove(&self, document: &mut Document) -> Option<Bson> {
        let (last, parents) = self.0.split_last()?;
        let mut place = document;
        for part in parents {
            place = place.get_mut(part)?.as_document_mut()?;
        }
        place.remove(last)
    }

    pub(super) fn refuse(&self, why: &str) -> Refusal {
        Refusal::new(format!("cannot change `{}`: {why}", self.text()))
    }

    fn ends(&self) -> Result<(&String, &[String]), Refusal> {
        self.0.split_last().ok_or_else(|| Refusal::new("a field name is empty"))
    }
}

fn step<'d>(value: &'d Bson, part: &str) -> Option<&'d Bson> {
    match value {
        Bson::Document(inner) => inner.get(part),
        Bson::Array(items) => items.get(part.parse::<usize>().ok()?),
        _ => None,
    }
}

fn spread<'d>(value: &'d Bson, rest: &[String], found: &mut Vec<&'d Bson>) {
    let Some((part, rest)) = rest.split_first() else {
        found.push(value);
        return;
    };
    if let Some(inner) = step(value, part) {
        spread(inner, rest, found);
    } else if let Bson::Array(items) = value {
        for item in items {
            if let Some(inner) = step(item, part) {
                spread(inner, rest, found);
            }
        }
    }
}
