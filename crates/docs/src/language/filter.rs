//! Which documents? A filter, parsed once and asked about many documents.

use std::cmp::Ordering;

use bson::{Bson, Document};

use super::order::{compare, is_comparable};
use super::path::Path;
use super::{MAX_DEPTH, MAX_TERMS, Refusal};

/// A condition on documents. All of several fields of one object must hold.
#[derive(Clone, Debug, PartialEq)]
pub enum Filter {
    /// All of them; without any, every document.
    All(Vec<Filter>),
    /// At least one of them.
    Any(Vec<Filter>),
    /// None of them (`$nor`, and `$not` with an array).
    None(Vec<Filter>),
    /// A test of one field.
    Field(Path, Test),
}

/// A test of the values of a field. A field that is missing counts as null.
#[derive(Clone, Debug, PartialEq)]
pub enum Test {
    /// Equal, or an array with an equal element, or an object that has at least these fields.
    Eq(Bson),
    /// None of the values is equal.
    Ne(Bson),
    /// Compares as asked, with values of the same kind only.
    Range(Range, Bson),
    /// Equal to one of them.
    In(Vec<Bson>),
    /// Equal to none of them.
    NotIn(Vec<Bson>),
    /// A text that contains this one.
    Like(String),
    /// The field is there, or is not.
    Exists(bool),
    /// The test does not hold.
    Not(Box<Test>),
    /// All tests hold.
    All(Vec<Test>),
}

/// How a range test compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Range {
    /// `$gt`
    Above,
    /// `$ge`, `$gte`
    From,
    /// `$lt`
    Below,
    /// `$le`, `$lte`
    UpTo,
}

impl Range {
    fn admits(self, ordering: Ordering) -> bool {
        match self {
            Range::Above => ordering == Ordering::Greater,
            Range::From => ordering != Ordering::Less,
            Range::Below => ordering == Ordering::Less,
            Range::UpTo => ordering != Ordering::Greater,
        }
    }
}

impl Filter {
    /// The filter that every document passes.
    #[must_use]
    pub fn everything() -> Filter {
        Filter::All(Vec::new())
    }

    /// Reads a filter.
    pub fn parse(document: &Document) -> Result<Filter, Refusal> {
        let mut terms = 0;
        parse(document, 0, &mut terms)
    }

    /// Whether the document passes.
    #[must_use]
    pub fn matches(&self, document: &Document) -> bool {
        match self {
            Filter::All(filters) => filters.iter().all(|filter| filter.matches(document)),
            Filter::Any(filters) => filters.iter().any(|filter| filter.matches(document)),
            Filter::None(filters) => !filters.iter().any(|filter| filter.matches(document)),
            Filter::Field(path, test) => test.holds(&path.values(document)),
        }
    }

    /// The tests that every matching document passes: what an index can be used for.
    #[must_use]
    pub fn required(&self) -> Vec<(&Path, &Test)> {
        match self {
            Filter::All(filters) => filters.iter().flat_map(Filter::required).collect(),
            Filter::Field(path, Test::All(tests)) => tests.iter().map(|test| (path, test)).collect(),
            Filter::Field(path, test) => vec![(path, test)],
            Filter::Any(_) | Filter::None(_) => Vec::new(),
        }
    }

    /// The value that the field must equal, if the filter says so.
    #[must_use]
    pub fn equal_to(&self, field: &str) -> Option<&Bson> {
        self.required().into_iter().find_map(|(path, test)| match test {
            Test::Eq(value) if path.text() == field => Some(value),
            _ => None,
        })
    }
}

fn parse(document: &Document, depth: usize, terms: &mut usize) -> Result<Filter, Refusal> {
    *terms += document.len();
    if depth > MAX_DEPTH || *terms > MAX_TERMS {
        return Err(Refusal::new("the filter is nested too deeply or has too many conditions"));
    }
    let fields = document.iter().map(|(name, value)| match name.as_str() {
        "$and" => Ok(Filter::All(parse_list(name, value, depth, terms)?)),
        "$or" => Ok(Filter::Any(parse_list(name, value, depth, terms)?)),
        "$nor" | "$not" => Ok(Filter::None(parse_list(name, value, depth, terms)?)),
        field => Ok(Filter::Field(Path::parse(field)?, parse_test(value)?)),
    });
    let mut filters = fields.collect::<Result<Vec<_>, Refusal>>()?;
    Ok(if filters.len() == 1 { filters.remove(0) } else { Filter::All(filters) })
}

fn parse_list(name: &str, value: &Bson, depth: usize, terms: &mut usize) -> Result<Vec<Filter>, Refusal> {
    let items: Vec<&Bson> = match value {
        Bson::Array(items) => items.iter().collect(),
        // `$not` and `$nor` with a single condition.
        single @ Bson::Document(_) => vec![single],
        _ => return Err(Refusal::new(format!("{name} takes an array of conditions"))),
    };
    let filters = items.into_iter().map(|item| match item {
        Bson::Document(inner) => parse(inner, depth + 1, terms),
        _ => Err(Refusal::new(format!("{name} takes an array of conditions"))),
    });
    filters.collect()
}

fn parse_test(value: &Bson) -> Result<Test, Refusal> {
    let Bson::Document(operators) = value else { return Ok(Test::Eq(value.clone())) };
    let known = operators.keys().filter(|name| name.starts_with('$')).count();
    if known == 0 {
        return Ok(Test::Eq(value.clone()));
    }
    if known != operators.len() {
        return Err(Refusal::new("a condition mixes operators and field names"));
    }
    let tests = operators.iter().map(|(name, operand)| parse_operator(name, operand));
    let mut tests = tests.collect::<Result<Vec<_>, _>>()?;
    Ok(if tests.len() == 1 { tests.remove(0) } else { Test::All(tests) })
}

fn parse_operator(name: &str, operand: &Bson) -> Result<Test, Refusal> {
    let operand_list = || match operand {
        Bson::Array(items) => Ok(items.clone()),
        _ => Err(Refusal::new(format!("{name} takes an array"))),
    };
    match name {
        "$eq" => Ok(Test::Eq(operand.clone())),
        "$ne" => Ok(Test::Ne(operand.clone())),
        "$gt" => Ok(Test::Range(Range::Above, operand.clone())),
        "$ge" | "$gte" => Ok(Test::Range(Range::From, operand.clone())),
        "$lt" => Ok(Test::Range(Range::Below, operand.clone())),
        "$le" | "$lte" => Ok(Test::Range(Range::UpTo, operand.clone())),
        "$in" => Ok(Test::In(operand_list()?)),
        "$nin" => Ok(Test::NotIn(operand_list()?)),
        "$like" => match operand {
            Bson::String(text) | Bson::Symbol(text) => Ok(Test::Like(text.clone())),
            _ => Err(Refusal::new("$like takes a text")),
        },
        "$exists" => match operand {
            Bson::Boolean(there) => Ok(Test::Exists(*there)),
            Bson::Symbol(text) if text == "true" || text == "false" => Ok(Test::Exists(text == "true")),
            _ => Err(Refusal::new("$exists takes true or false")),
        },
        "$not" => Ok(Test::Not(Box::new(parse_test(operand)?))),
        unknown => Err(Refusal::new(format!("unknown operator {unknown}"))),
    }
}

impl Test {
    fn holds(&self, values: &[&Bson]) -> bool {
        match self {
            Test::Eq(wanted) => is_any_equal(values, wanted),
            Test::Ne(wanted) => !is_any_equal(values, wanted),
            Test::Range(range, bound) => candidates(values).any(|value| is_in_range(value, *range, bound)),
            Test::In(wanted) => wanted.iter().any(|wanted| is_any_equal(values, wanted)),
            Test::NotIn(wanted) => !wanted.iter().any(|wanted| is_any_equal(values, wanted)),
            Test::Like(part) => candidates(values)
                .any(|value| value.as_str().is_some_and(|text| text.contains(part.as_str()))),
            Test::Exists(there) => values.is_empty() != *there,
            Test::Not(test) => !test.holds(values),
            Test::All(tests) => tests.iter().all(|test| test.holds(values)),
        }
    }
}

/// The values, and the elements of those that are arrays.
fn candidates<'v>(values: &'v [&'v Bson]) -> impl Iterator<Item = &'v Bson> {
    values.iter().copied().flat_map(|value| {
        let items = value.as_array().map(Vec::as_slice).unwrap_or_default();
        std::iter::once(value).chain(items)
    })
}

fn is_any_equal(values: &[&Bson], wanted: &Bson) -> bool {
    if values.is_empty() {
        return *wanted == Bson::Null;
    }
    candidates(values).any(|value| is_equal(value, wanted))
}

fn is_equal(value: &Bson, wanted: &Bson) -> bool {
    match (value, wanted) {
        (Bson::Document(value), Bson::Document(wanted)) => {
            wanted.iter().all(|(name, wanted)| value.get(name).is_some_and(|value| is_equal(value, wanted)))
        }
        (value, Bson::Symbol(text)) => {
            typed_like(value, text).is_some_and(|wanted| compare(value, &wanted) == Ordering::Equal)
        }
        (value, wanted) => compare(value, wanted) == Ordering::Equal,
    }
}

fn is_in_range(value: &Bson, range: Range, bound: &Bson) -> bool {
    match bound {
        Bson::Symbol(text) => {
            typed_like(value, text).is_some_and(|bound| range.admits(compare(value, &bound)))
        }
        bound => is_comparable(value, bound) && range.admits(compare(value, bound)),
    }
}

/// A text from a query string has no type: it is read as what it is compared with.
fn typed_like(value: &Bson, text: &str) -> Option<Bson> {
    match value {
        Bson::String(_) | Bson::Symbol(_) => Some(Bson::String(text.to_owned())),
        Bson::Int32(_) | Bson::Int64(_) | Bson::Double(_) | Bson::Decimal128(_) => {
            text.parse().map(Bson::Int64).or_else(|_| text.parse().map(Bson::Double)).ok()
        }
        Bson::Boolean(_) => text.parse().ok().map(Bson::Boolean),
        Bson::Null | Bson::Undefined => (text == "null" || text.is_empty()).then_some(Bson::Null),
        Bson::ObjectId(_) => bson::oid::ObjectId::parse_str(text).ok().map(Bson::ObjectId),
        Bson::DateTime(_) => bson::DateTime::parse_rfc3339_str(text).ok().map(Bson::DateTime),
        _ => None,
    }
}
