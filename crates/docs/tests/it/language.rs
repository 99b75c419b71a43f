//! The query and update language, as tables.

use bson::{Bson, Document};
use capstan_docs::language::{Filter, Projection, Sort, Update, from_json, parse_query, to_json};
use serde_json::{Value, json};

fn doc(value: Value) -> Document {
    from_json(value).unwrap().as_document().unwrap().clone()
}

#[test]
fn filters_select_as_specified() {
    let document = doc(json!({
        "_id": "ab12", "s": "green apple", "n": 5, "f": 2.5, "z": 0, "e": "", "no": false, "nil": null,
        "sub": { "x": 1, "y": "b" }, "tags": ["a", "b"], "list": [{ "k": 1 }, { "k": 7 }],
    }));
    let table = [
        (json!({}), true),
        (json!({ "n": 5 }), true),
        (json!({ "n": 5.0 }), true),
        (json!({ "n": "5" }), false),
        (json!({ "z": 0, "e": "", "no": false }), true),
        (json!({ "z": 1 }), false),
        (json!({ "nil": null, "missing": null }), true),
        (json!({ "n": null }), false),
        (json!({ "sub.x": 1 }), true),
        (json!({ "sub": { "x": 1 } }), true),
        (json!({ "sub": { "x": 2 } }), false),
        (json!({ "tags": "b" }), true),
        (json!({ "tags": ["a", "b"] }), true),
        (json!({ "list.k": 7 }), true),
        (json!({ "n": { "$gt": 4, "$lt": 6 } }), true),
        (json!({ "n": { "$gt": 5 } }), false),
        (json!({ "n": { "$ge": 5 }, "f": { "$le": 2.5 } }), true),
        (json!({ "n": { "$gte": 6 } }), false),
        (json!({ "n": { "$lte": 5 } }), true),
        (json!({ "s": { "$gt": 5 } }), false),
        (json!({ "n": { "$ne": 5 } }), false),
        (json!({ "missing": { "$ne": 5 } }), true),
        (json!({ "n": { "$in": [1, 5] } }), true),
        (json!({ "n": { "$nin": [1, 5] } }), false),
        (json!({ "s": { "$like": "apple" } }), true),
        (json!({ "s": { "$like": "pear" } }), false),
        (json!({ "n": { "$exists": true }, "missing": { "$exists": false } }), true),
        (json!({ "n": { "$not": { "$gt": 5 } } }), true),
        (json!({ "$and": [{ "n": 5 }, { "$or": [{ "z": 1 }, { "f": 2.5 }] }] }), true),
        (json!({ "$or": [{ "n": 6 }, { "z": 1 }] }), false),
        (json!({ "$nor": [{ "n": 6 }, { "z": 1 }] }), true),
        (json!({ "$not": [{ "n": 5 }, { "z": 1 }] }), false),
    ];
    for (filter, expected) in table {
        let parsed = Filter::parse(&doc(filter.clone())).unwrap();
        assert_eq!(parsed.matches(&document), expected, "{filter}");
    }
}

#[test]
fn filters_that_are_not_understood_are_refused() {
    for filter in [
        json!({ "n": { "$regexp": "x" } }),
        json!({ "$where": "1" }),
        json!({ "n": { "$in": 5 } }),
        json!({ "$and": 5 }),
        json!({ "n": { "$gt": 1, "x": 2 } }),
        json!({ "a..b": 1 }),
        json!({ "n": { "$like": 3 } }),
    ] {
        assert!(Filter::parse(&doc(filter.clone())).is_err(), "{filter}");
    }
    let mut deep = json!({ "a": 1 });
    for _ in 0..70 {
        deep = json!({ "$and": [deep] });
    }
    assert!(from_json(deep).is_err());
}

#[test]
fn updates_change_as_specified() {
    let before = json!({ "_id": "a", "n": 5, "sub": { "x": 1 }, "list": [1, 2, 3] });
    let table = [
        (
            json!({ "$set": { "n": 6, "new.path.deep": 1 } }),
            json!({ "n": 6, "new": { "path": { "deep": 1 } } }),
        ),
        (json!({ "$unset": { "sub.x": "" } }), json!({ "sub": {} })),
        (json!({ "$inc": { "n": 2, "m": 1 } }), json!({ "n": 7, "m": 1 })),
        (json!({ "$inc": { "n": 0.5 } }), json!({ "n": 5.5 })),
        (json!({ "$min": { "n": 3, "q": 1 } }), json!({ "n": 3 })),
        (json!({ "$max": { "n": 3 } }), json!({ "n": 5 })),
        (json!({ "$max": { "n": 9 } }), json!({ "n": 9 })),
        (json!({ "$push": { "list": 4, "other": 1 } }), json!({ "list": [1, 2, 3, 4], "other": [1] })),
        (json!({ "$push": { "list": { "$each": [4, 5] } } }), json!({ "list": [1, 2, 3, 4, 5] })),
        (json!({ "$addToSet": { "list": 2, "none": 1 } }), json!({ "list": [1, 2, 3] })),
        (json!({ "$addToSet": { "list": { "$each": [3, 4] } } }), json!({ "list": [1, 2, 3, 4] })),
        (json!({ "$pop": { "list": 1 } }), json!({ "list": [1, 2] })),
        (json!({ "$pop": { "list": -1 } }), json!({ "list": [2, 3] })),
        (json!({ "$rename": { "n": "m" } }), json!({ "m": 5 })),
    ];
    for (update, expected) in table {
        let parsed = Update::parse(&doc(update.clone())).unwrap();
        let after = to_json(Bson::Document(parsed.apply(&doc(before.clone())).unwrap()));
        for (field, value) in expected.as_object().unwrap() {
            assert_eq!(after[field], *value, "{update}");
        }
        assert!(update.get("$rename").is_none() || after.get("n").is_none());
    }
    for refused in [
        json!({ "$rename": { "n": "sub" } }),
        json!({ "$rename": { "missing": "m" } }),
        json!({ "$inc": { "list": 1 } }),
        json!({ "$push": { "n": 1 } }),
        json!({ "$pop": { "n": 1 } }),
        json!({ "$set": { "n.x": 1 } }),
    ] {
        let parsed = Update::parse(&doc(refused.clone())).unwrap();
        assert!(parsed.apply(&doc(before.clone())).is_err(), "{refused}");
    }
    for unknown in
        [json!({}), json!({ "$mul": { "n": 2 } }), json!({ "n": 1 }), json!({ "$inc": { "n": "x" } })]
    {
        assert!(Update::parse(&doc(unknown.clone())).is_err(), "{unknown}");
    }
}

#[test]
fn query_strings_are_read_with_nested_brackets() {
    let query = parse_query(
        "query[xy]=k1&query[n][$in][]=1&query[n][$in][]=2&options[limit]=5&projection[]=a&p=a%20b+c",
    );
    let query = query.unwrap();
    let filter = Filter::parse(query.get_document("query").unwrap()).unwrap();
    assert!(filter.matches(&doc(json!({ "xy": "k1", "n": 2 }))));
    assert!(!filter.matches(&doc(json!({ "xy": "k1", "n": 3 }))));
    assert_eq!(query.get("p"), Some(&Bson::Symbol("a b c".to_owned())));
    let nested = parse_query("query[$or][0][n][$gt]=3&query[$or][1][t]=true").unwrap();
    let filter = Filter::parse(nested.get_document("query").unwrap()).unwrap();
    assert!(filter.matches(&doc(json!({ "n": 4 }))) && filter.matches(&doc(json!({ "t": true }))));
    assert!(!filter.matches(&doc(json!({ "n": 3 }))));
    for wrong in ["a[b=1", "a=%zz", "a=%f", "a=%ff", "a=1&a[b]=2"] {
        assert!(parse_query(wrong).is_err(), "{wrong}");
    }
}

#[test]
fn projections_and_sorts() {
    let document = doc(json!({ "_id": "a", "x": 1, "sub": { "y": 2, "z": 3 } }));
    let shown = |projection: Value| {
        let projection = Projection::parse(&from_json(projection).unwrap()).unwrap();
        to_json(Bson::Document(projection.apply(document.clone())))
    };
    assert_eq!(shown(json!([])), json!({ "_id": "a", "x": 1, "sub": { "y": 2, "z": 3 } }));
    assert_eq!(shown(json!(["sub.y"])), json!({ "_id": "a", "sub": { "y": 2 } }));
    assert_eq!(shown(json!({ "x": 1 })), json!({ "_id": "a", "x": 1 }));
    assert_eq!(shown(json!({ "sub": 0 })), json!({ "_id": "a", "x": 1 }));
    let sort = Sort::parse(&from_json(json!({ "x": -1 })).unwrap()).unwrap();
    assert!(sort.compare(&document, &doc(json!({ "_id": "b", "x": 2 }))).is_gt());
    assert!(Sort::parse(&from_json(json!({ "x": 2 })).unwrap()).is_err());
}
