//! Which documents can be stored? What their fields may be called, and how deep they may be.

use bson::{Bson, Document};

use super::{MAX_DEPTH, Refusal};

/// Refuses a document that paths, filters or BSON could not name again: a field without a name, with `$` in front, or
/// with a dot or a NUL in it, on any level; or one with too many levels.
pub fn check_names(document: &Document) -> Result<(), Refusal> {
    check(document, 1)
}

fn check(document: &Document, depth: usize) -> Result<(), Refusal> {
    if depth > MAX_DEPTH {
        return Err(Refusal::new(format!("more than {MAX_DEPTH} levels of nesting")));
    }
    for (name, value) in document {
        if name.is_empty() || name.starts_with('$') || name.contains(['.', '\0']) {
            return Err(Refusal::new(format!("`{}` cannot be the name of a field", name.escape_debug())));
        }
        check_value(value, depth + 1)?;
    }
    Ok(())
}

fn check_value(value: &Bson, depth: usize) -> Result<(), Refusal> {
    match value {
        Bson::Document(inner) => check(inner, depth),
        Bson::Array(_) if depth > MAX_DEPTH => {
            Err(Refusal::new(format!("more than {MAX_DEPTH} levels of nesting")))
        }
        Bson::Array(items) => items.iter().try_for_each(|item| check_value(item, depth + 1)),
        _ => Ok(()),
    }
}
