//! Which entries of which index does a query look at? Pure over the filter.
//!
//! The entries of an index are ordered by value, then by the id of the document. The tests of one field are combined:
//! `$ge` and `$lt` become one range. A document with several values in the field (an array) passes each test with
//! another of them, so where tests are combined such documents are looked at too; each has an entry that says so
//! ([`several_values`]).

use std::collections::BTreeMap;

use bson::Bson;

use super::state::{Collection, short};
use crate::language::{Filter, Range, Test, sort_key};
use crate::storage::{behind, layout};

/// Keys of an index, from one on and before another.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Keys {
    pub(super) from: Vec<u8>,
    pub(super) before: Vec<u8>,
}

/// The entries that contain every document which the filter finds.
pub(super) struct Lookup {
    /// The field of the index.
    pub(super) field: String,
    /// The number of the index.
    pub(super) number: u32,
    pub(super) ranges: Vec<Keys>,
    /// Where in a key the value begins.
    pub(super) skip: usize,
}

/// How much an index narrows a query down; the best first.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Narrows {
    OneValue,
    SomeValues,
    BothSides,
    OneSide,
}

/// What the value in an index is for a document with several values in the field, beside the values themselves.
pub(super) fn several_values() -> Bson {
    Bson::MaxKey
}

/// Whether a key is an index entry of a document with several values.
pub(super) fn is_of_several_values(key: &[u8]) -> bool {
    layout::value_of_entry(key).is_some_and(|value| value.starts_with(&sort_key(&several_values())))
}

impl Keys {
    /// Whether these are all entries of documents with several values, and no others.
    pub(super) fn are_of_several_values(&self) -> bool {
        let value = layout::value_of_entry(&self.from);
        value.is_some_and(|value| value == sort_key(&several_values())) && self.before == behind(&self.from)
    }
}

/// The complete index that narrows the filter down best.
pub(super) fn lookup(collection: &Collection, filter: &Filter) -> Option<Lookup> {
    let mut fields: BTreeMap<String, Vec<&Test>> = BTreeMap::new();
    for (path, test) in filter.required() {
        fields.entry(path.text()).or_default().push(test);
    }
    let usable = fields.into_iter().filter_map(|(field, tests)| {
        let index = collection.spec.indexes.get(&field)?;
        if !collection.ready.contains(&index.number) {
            return None;
        }
        let prefix = layout::index(collection.spec.id, index.number);
        let (narrows, ranges) = ranges(&prefix, &tests)?;
        Some((narrows, Lookup { field, number: index.number, ranges, skip: prefix.len() }))
    });
    usable.min_by_key(|(narrows, _)| *narrows).map(|(_, lookup)| lookup)
}

/// The keys of the values that pass all tests of one field.
fn ranges(prefix: &[u8], tests: &[&Test]) -> Option<(Narrows, Vec<Keys>)> {
    let one = tests.iter().find_map(|test| match test {
        Test::Eq(value) => exactly(prefix, value),
        _ => None,
    });
    if let Some(keys) = one {
        return Some((Narrows::OneValue, vec![keys]));
    }
    let some = tests.iter().find_map(|test| match test {
        Test::In(values) => values.iter().map(|value| exactly(prefix, value)).collect::<Option<Vec<_>>>(),
        _ => None,
    });
    if let Some(keys) = some {
        return Some((Narrows::SomeValues, keys));
    }
    let sides = tests.iter().filter_map(|test| match test {
        Test::Range(range, bound) => side(prefix, *range, bound),
        _ => None,
    });
    let sides: Vec<Keys> = sides.collect();
    let from = sides.iter().map(|keys| &keys.from).max()?.clone();
    let before = sides.iter().map(|keys| &keys.before).min()?.clone();
    if sides.len() == 1 {
        return Some((Narrows::OneSide, sides));
    }
    let both = Some(Keys { from, before }).filter(|keys| keys.from < keys.before);
    Some((Narrows::BothSides, both.into_iter().chain(exactly(prefix, &several_values())).collect()))
}

fn exactly(prefix: &[u8], value: &Bson) -> Option<Keys> {
    is_indexed(value).then(|| {
        let from = [prefix, &sort_key(&short(value))].concat();
        Keys { before: behind(&from), from }
    })
}

fn side(prefix: &[u8], range: Range, bound: &Bson) -> Option<Keys> {
    if !is_indexed(bound) {
        return None;
    }
    let key = [prefix, &sort_key(&short(bound))].concat();
    // All values of the same kind begin with the same byte.
    let kind = key.get(..=prefix.len())?.to_vec();
    let end = behind(&kind);
    // Long texts are cut off in the index, so those that are as long as the bound are looked at.
    let is_cut = short(bound) != *bound;
    let (above, below) = (behind(&key), key.clone());
    Some(match range {
        Range::Above if !is_cut => Keys { from: above, before: end },
        Range::Above | Range::From => Keys { from: key, before: end },
        Range::Below if !is_cut => Keys { from: kind, before: below },
        Range::Below | Range::UpTo => Keys { from: kind, before: above },
    })
}

/// Whether a test for the value can use an index. Null is also a missing field, which has no entry, and a text of a
/// query string may be a number.
fn is_indexed(value: &Bson) -> bool {
    !matches!(
        value,
        Bson::Null
            | Bson::Undefined
            | Bson::Symbol(_)
            | Bson::Document(_)
            | Bson::Array(_)
            | Bson::Binary(_)
            | Bson::Decimal128(_)
    )
}

/// The encoded id behind the value of an index entry.
pub(super) fn id_of_entry(key: &[u8], skip: usize) -> Option<Vec<u8>> {
    let rest = key.get(skip..)?;
    let length = crate::language::encoded_len(rest)?;
    rest.get(length..).map(<[u8]>::to_vec)
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};
    use capstan_meta::record::Extra;
    use capstan_testkit::seed::{rng, seeds};
    use rand::RngExt as _;

    use super::super::state::entries_of;
    use super::*;
    use crate::spec::{CollectionId, CollectionSpec, IndexSpec};

    fn collection() -> Collection {
        let index = |number| IndexSpec { number, ..IndexSpec::default() };
        let indexes = [("a".to_owned(), index(1)), ("o.a".to_owned(), index(2))].into();
        let spec = CollectionSpec {
            id: CollectionId(3),
            primary_key: vec!["_id".to_owned()],
            indexes,
            next_index: 3,
            extra: Extra::default(),
        };
        Collection { version: 1, spec, ready: [1, 2].into(), dropped: false }
    }

    /// Whether a query would look at the document.
    fn is_looked_at(collection: &Collection, lookup: &Lookup, document: &Document) -> bool {
        let index = &collection.spec.indexes[&lookup.field];
        let entries = entries_of(collection.spec.id, &lookup.field, index, document, &Bson::Int32(1));
        entries
            .iter()
            .any(|entry| lookup.ranges.iter().any(|keys| *entry >= keys.from && *entry < keys.before))
    }

    fn found(filter: Document, document: Document) -> bool {
        let collection = collection();
        let filter = Filter::parse(&filter).unwrap();
        is_looked_at(&collection, &lookup(&collection, &filter).unwrap(), &document)
    }

    #[test]
    fn two_bounds_of_a_field_are_one_range() {
        for (value, is_inside) in [(4, false), (5, true), (9, true), (10, false)] {
            assert_eq!(
                found(doc! { "a": { "$ge": 5, "$lt": 10 } }, doc! { "a": value }),
                is_inside,
                "{value}"
            );
            let filter = doc! { "$and": [{ "o.a": { "$gt": 4 } }, { "o.a": { "$le": 9 } }] };
            assert_eq!(found(filter, doc! { "o": { "a": value } }), is_inside, "{value}");
        }
        assert!(
            !found(doc! { "a": { "$gt": 5, "$lt": "x" } }, doc! { "a": 7 }),
            "nothing is a number and a text"
        );
    }

    #[test]
    fn the_index_that_narrows_best_is_used() {
        let collection = collection();
        let field = |filter: Document| lookup(&collection, &Filter::parse(&filter).unwrap()).unwrap().field;
        assert_eq!(field(doc! { "a": { "$gt": 1 }, "o.a": 5 }), "o.a");
        assert_eq!(field(doc! { "a": { "$gt": 1, "$lt": 3 }, "o.a": { "$gt": 5 } }), "a");
        assert_eq!(field(doc! { "a": { "$gt": 1, "$lt": 3 }, "o.a": { "$in": [1, 2] } }), "o.a");
    }

    /// Every document that passes a filter is looked at, with scalars, arrays and arrays of objects.
    #[test]
    fn no_document_is_overlooked() {
        let collection = collection();
        seeds(2_000, |seed| {
            let mut random = rng(seed);
            let mut value = || match random.random_range(0..8) {
                0 => Bson::Array(
                    (0..random.random_range(0..4)).map(|_| random.random_range(0..9).into()).collect(),
                ),
                1 => Bson::String(random.random_range(0..9).to_string()),
                2 => Bson::Double(f64::from(random.random_range(0..18)) / 2.0),
                _ => Bson::Int32(random.random_range(0..9)),
            };
            let document = match value() {
                Bson::Int32(3..) => doc! { "a": value(), "o": { "a": value() } },
                Bson::String(_) => doc! { "a": value() },
                _ => doc! { "o": [{ "a": value() }, { "a": value() }] },
            };
            let bounds = [value(), value(), value()];
            let names = ["$gt", "$ge", "$lt", "$le", "$eq", "$gt", "$ge", "$lt", "$le"];
            let field = if random.random_bool(0.5) { "a" } else { "o.a" };
            let mut tests = Document::new();
            for bound in bounds {
                tests.insert(names[random.random_range(0..names.len())], bound);
            }
            let filter = Filter::parse(&doc! { field: tests }).unwrap();
            if let Some(lookup) = lookup(&collection, &filter)
                && filter.matches(&document)
            {
                assert!(is_looked_at(&collection, &lookup, &document), "{filter:?} {document}");
            }
        });
    }
}
