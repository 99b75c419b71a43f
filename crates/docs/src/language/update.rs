//! How does a document change? An update, parsed once and applied to documents.

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::order::compare;
use super::path::Path;
use super::{MAX_TERMS, Refusal};

/// Changes of a document, in the order in which they were given.
#[derive(Clone, Debug, PartialEq)]
pub struct Update(Vec<(Path, Change)>);

#[derive(Clone, Debug, PartialEq)]
enum Change {
    Set(Bson),
    Unset,
    Inc(Bson),
    Min(Bson),
    Max(Bson),
    Push(Vec<Bson>),
    AddToSet(Vec<Bson>),
    Pop { first: bool },
    Rename(Path),
}

impl Update {
    /// Reads an update: operators with their fields.
    pub fn parse(document: &Document) -> Result<Update, Refusal> {
        if document.is_empty() {
            return Err(Refusal::new("the update is empty"));
        }
        let mut changes = Vec::new();
        for (operator, fields) in document {
            let Bson::Document(fields) = fields else {
                return Err(Refusal::new(format!("{operator} takes an object of fields")));
            };
            for (field, operand) in fields {
                changes.push((Path::parse(field)?, Change::parse(operator, operand)?));
            }
        }
        if changes.len() > MAX_TERMS {
            return Err(Refusal::new("the update has too many changes"));
        }
        Ok(Update(changes))
    }

    /// The fields that are changed.
    pub fn paths(&self) -> impl Iterator<Item = &Path> {
        self.0.iter().flat_map(|(path, change)| {
            let target = if let Change::Rename(target) = change { Some(target) } else { None };
            std::iter::once(path).chain(target)
        })
    }

    /// Applies every change, or none.
    pub fn apply(&self, document: &Document) -> Result<Document, Refusal> {
        let mut next = document.clone();
        for (path, change) in &self.0 {
            change.apply(path, &mut next)?;
        }
        Ok(next)
    }
}

impl Change {
    fn parse(operator: &str, operand: &Bson) -> Result<Change, Refusal> {
        match operator {
            "$set" => Ok(Change::Set(operand.clone())),
            "$unset" => Ok(Change::Unset),
            "$inc" if is_number(operand) => Ok(Change::Inc(operand.clone())),
            "$inc" => Err(Refusal::new("$inc takes a number")),
            "$min" => Ok(Change::Min(operand.clone())),
            "$max" => Ok(Change::Max(operand.clone())),
            "$push" => Ok(Change::Push(each(operand)?)),
            "$addToSet" => Ok(Change::AddToSet(each(operand)?)),
            "$pop" => match number(operand) {
                Some(1.0) => Ok(Change::Pop { first: false }),
                Some(-1.0) => Ok(Change::Pop { first: true }),
                Some(_) | None => Err(Refusal::new("$pop takes 1 (last) or -1 (first)")),
            },
            "$rename" => match operand {
                Bson::String(target) => Ok(Change::Rename(Path::parse(target)?)),
                _ => Err(Refusal::new("$rename takes the new name")),
            },
            unknown => Err(Refusal::new(format!("unknown update operator {unknown}"))),
        }
    }

    fn apply(&self, path: &Path, document: &mut Document) -> Result<(), Refusal> {
        match self {
            Change::Set(value) => *path.make(document)? = value.clone(),
            Change::Unset => {
                path.remove(document);
            }
            Change::Inc(by) => inc(path, document, by)?,
            Change::Min(bound) => replace_if(path, document, bound, Ordering::Greater),
            Change::Max(bound) => replace_if(path, document, bound, Ordering::Less),
            Change::Push(items) => array(path, document)?.extend(items.iter().cloned()),
            Change::AddToSet(items) => add_to_set(path, document, items)?,
            Change::Pop { first } => pop(path, document, *first)?,
            Change::Rename(target) => rename(path, document, target)?,
        }
        Ok(())
    }
}

fn each(operand: &Bson) -> Result<Vec<Bson>, Refusal> {
    match operand.as_document().and_then(|inner| inner.get("$each")) {
        Some(Bson::Array(items)) => Ok(items.clone()),
        Some(_) => Err(Refusal::new("$each takes an array")),
        None => Ok(vec![operand.clone()]),
    }
}

fn is_number(value: &Bson) -> bool {
    number(value).is_some()
}

fn number(value: &Bson) -> Option<f64> {
    match value {
        Bson::Int32(number) => Some(f64::from(*number)),
        Bson::Int64(number) => Some(*number as f64),
        Bson::Double(number) => Some(*number),
        _ => None,
    }
}

fn inc(path: &Path, document: &mut Document, by: &Bson) -> Result<(), Refusal> {
    let place = path.make(document)?;
    let next = match (&*place, by) {
        (Bson::Null, by) => Some(by.clone()),
        (Bson::Double(_), _) | (_, Bson::Double(_)) => {
            number(place).zip(number(by)).map(|(one, other)| Bson::Double(one + other))
        }
        (one, other) => integer(one).zip(integer(other)).and_then(|(a, b)| a.checked_add(b)).map(shortest),
    };
    *place = next.ok_or_else(|| path.refuse("it is not a number, or the sum is too large"))?;
    Ok(())
}

fn integer(value: &Bson) -> Option<i64> {
    match value {
        Bson::Int32(number) => Some(i64::from(*number)),
        Bson::Int64(number) => Some(*number),
        _ => None,
    }
}

fn shortest(number: i64) -> Bson {
    i32::try_from(number).map_or(Bson::Int64(number), Bson::Int32)
}

/// `$min` and `$max` leave a missing field alone.
fn replace_if(path: &Path, document: &mut Document, bound: &Bson, present: Ordering) {
    if let Some(place) = path.get_mut(document)
        && compare(place, bound) == present
    {
        *place = bound.clone();
    }
}

fn array<'d>(path: &Path, document: &'d mut Document) -> Result<&'d mut Vec<Bson>, Refusal> {
    let place = path.make(document)?;
    if *place == Bson::Null {
        *place = Bson::Array(Vec::new());
    }
    place.as_array_mut().ok_or_else(|| path.refuse("it is not an array"))
}

/// On a missing array it does nothing.
fn add_to_set(path: &Path, document: &mut Document, items: &[Bson]) -> Result<(), Refusal> {
    let Some(place) = path.get_mut(document) else { return Ok(()) };
    let set = place.as_array_mut().ok_or_else(|| path.refuse("it is not an array"))?;
    for item in items {
        if !set.iter().any(|known| compare(known, item) == Ordering::Equal) {
            set.push(item.clone());
        }
    }
    Ok(())
}

fn pop(path: &Path, document: &mut Document, first: bool) -> Result<(), Refusal> {
    let place = path.get_mut(document).ok_or_else(|| path.refuse("it is not there"))?;
    let items = place.as_array_mut().ok_or_else(|| path.refuse("it is not an array"))?;
    if first && !items.is_empty() {
        items.remove(0);
    } else if !first {
        items.pop();
    }
    Ok(())
}

fn rename(path: &Path, document: &mut Document, target: &Path) -> Result<(), Refusal> {
    if target.get(document).is_some() {
        return Err(path.refuse(&format!("`{}` is there already", target.text())));
    }
    let value = path.remove(document).ok_or_else(|| path.refuse("it is not there"))?;
    *target.make(document)? = value;
    Ok(())
}
