//! Which fields of a document are shown?

use bson::{Bson, Document};

use super::Refusal;
use super::path::Path;

/// The fields to show; without any, all of them.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Projection {
    shown: Vec<Path>,
    hidden: Vec<Path>,
}

impl Projection {
    /// Reads a list of names (`["a", "b.c"]`) or an object (`{a: 1}` or `{a: 0}`).
    pub fn parse(value: &Bson) -> Result<Projection, Refusal> {
        let mut projection = Projection::default();
        match value {
            Bson::Null => {}
            Bson::String(name) | Bson::Symbol(name) if name.is_empty() => {}
            Bson::String(name) | Bson::Symbol(name) => projection.shown.push(Path::parse(name)?),
            Bson::Array(names) => {
                for name in names {
                    match name {
                        Bson::String(name) | Bson::Symbol(name) => projection.shown.push(Path::parse(name)?),
                        _ => return Err(Refusal::new("a projection lists field names")),
                    }
                }
            }
            Bson::Document(fields) => {
                for (name, wanted) in fields {
                    let list = if is_yes(wanted)? { &mut projection.shown } else { &mut projection.hidden };
                    list.push(Path::parse(name)?);
                }
            }
            _ => return Err(Refusal::new("a projection is a list of field names or an object")),
        }
        Ok(projection)
    }

    /// What is shown of a document. Its id always is, unless it is hidden explicitly.
    #[must_use]
    pub fn apply(&self, document: Document) -> Document {
        let mut out = if self.shown.is_empty() { document } else { self.pick(&document) };
        for path in &self.hidden {
            path.remove(&mut out);
        }
        out
    }

    fn pick(&self, document: &Document) -> Document {
        let mut out = Document::new();
        if let Some(id) = document.get("_id") {
            out.insert("_id", id.clone());
        }
        for path in &self.shown {
            if let Some(value) = path.get(document)
                && let Ok(place) = path.make(&mut out)
            {
                *place = value.clone();
            }
        }
        out
    }
}

fn is_yes(value: &Bson) -> Result<bool, Refusal> {
    match value {
        Bson::Boolean(flag) => Ok(*flag),
        Bson::Int32(number) => Ok(*number != 0),
        Bson::Int64(number) => Ok(*number != 0),
        Bson::Double(number) => Ok(*number != 0.0),
        Bson::Symbol(text) | Bson::String(text) => Ok(text != "0" && text != "false"),
        _ => Err(Refusal::new("a projection says 1 or 0 for a field")),
    }
}
