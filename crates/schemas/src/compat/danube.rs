//! JSON Schema as the public Danube broker compares it: properties of the top level, by name, type and whether they are
//! required. It refuses some changes that readers could live with (a required property that disappears) and accepts some
//! that they could not (another `const`).

use std::collections::BTreeSet;

use serde_json::Value;

use super::Problem;

/// What a new version must not do in the mode `backward`.
pub(super) fn backward(old: &Value, new: &Value) -> Vec<Problem> {
    let (was_required, is_required) = (required(old), required(new));
    let removed = was_required.iter().filter(|name| property(new, name).is_none());
    let removed = removed.map(|name| problem(name, "the required property is removed"));
    let tightened = is_required
        .iter()
        .filter(|name| property(old, name).is_some() && !was_required.contains(*name))
        .map(|name| problem(name, "the optional property becomes required"));
    removed.chain(tightened).chain(retyped(old, new)).collect()
}

/// What a new version must not do in the mode `forward`.
pub(super) fn forward(old: &Value, new: &Value) -> Vec<Problem> {
    let is_required = required(new);
    let added = is_required.iter().filter(|name| property(old, name).is_none());
    let added = added.map(|name| problem(name, "a required property is added"));
    added.chain(retyped(old, new)).collect()
}

/// Properties of both versions whose types differ. One without a type has any.
fn retyped(old: &Value, new: &Value) -> impl Iterator<Item = Problem> {
    let names = old.get("properties").and_then(Value::as_object).into_iter().flat_map(|known| known.keys());
    names.filter_map(move |name| {
        let (from, to) = (property(old, name)?.get("type")?, property(new, name)?.get("type")?);
        (from != to).then(|| problem(name, "the type of the property changes"))
    })
}

fn property<'a>(schema: &'a Value, name: &str) -> Option<&'a Value> {
    schema.get("properties")?.get(name)
}

fn required(schema: &Value) -> BTreeSet<&str> {
    let listed = schema.get("required").and_then(Value::as_array);
    listed.into_iter().flatten().filter_map(Value::as_str).collect()
}

fn problem(name: &str, reason: &str) -> Problem {
    Problem::new(&format!("/{name}"), reason)
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn schema(properties: &[(&str, &str)], required: &[&str]) -> Value {
        let properties = properties.iter().map(|(name, kind)| ((*name).to_owned(), json!({"type": kind})));
        json!({"properties": properties.collect::<serde_json::Map<_, _>>(), "required": required})
    }

    #[test]
    fn versions_are_compared_by_required_properties_and_types() {
        let one = schema(&[("id", "integer")], &["id"]);
        let two = schema(&[("id", "integer"), ("name", "string")], &["id"]);
        let strict = schema(&[("id", "integer"), ("name", "string")], &["id", "name"]);
        let text = schema(&[("id", "string")], &["id"]);
        let cases = [
            ("an optional property is added", &one, &two, true, true),
            ("an optional property is removed", &two, &one, true, true),
            ("a required property is added", &one, &strict, true, false),
            ("a required property is removed", &strict, &one, false, true),
            ("an optional property becomes required", &two, &strict, false, true),
            ("a type changes", &one, &text, false, false),
        ];
        for (change, old, new, is_backward, is_forward) in cases {
            assert_eq!(backward(old, new).is_empty(), is_backward, "backward: {change}");
            assert_eq!(forward(old, new).is_empty(), is_forward, "forward: {change}");
        }
    }

    #[test]
    fn what_is_no_object_is_compared_without_complaint() {
        for schema in [json!(true), json!({"properties": 1, "required": "id"}), json!({"required": [1]})] {
            assert_eq!(backward(&schema, &schema), []);
            assert_eq!(forward(&schema, &schema), []);
        }
    }
}
