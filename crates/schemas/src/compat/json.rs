//! JSON Schema: is every document that the writer's schema allows also allowed by the reader's?
//!
//! Decided keyword by keyword, on the safe side: a keyword of the reader that is not understood here and differs from
//! the writer's is a problem, because nothing proves it harmless. One exception follows the practice of registries: a
//! property that only the reader's schema declares is taken as absent in earlier data, even if that schema left
//! additional properties open.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use super::Problem;

/// References followed on one path; recursive schemas end there.
const MAX_REFERENCES: usize = 32;

/// Keywords without influence on what is valid.
const ANNOTATIONS: [&str; 15] = [
    "$schema",
    "$id",
    "$comment",
    "$anchor",
    "$defs",
    "definitions",
    "title",
    "description",
    "default",
    "examples",
    "deprecated",
    "readOnly",
    "writeOnly",
    "contentMediaType",
    "format",
];

/// Lower bounds: the reader's may not be above the writer's.
const MINIMA: [&str; 5] = ["minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"];
/// Upper bounds: the reader's may not be below the writer's.
const MAXIMA: [&str; 5] = ["maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"];
/// Keywords with rules of their own below.
const STRUCTURAL: [&str; 12] = [
    "type",
    "enum",
    "const",
    "required",
    "properties",
    "additionalProperties",
    "items",
    "allOf",
    "anyOf",
    "oneOf",
    "$ref",
    "uniqueItems",
];

/// Why data written with one schema cannot be read with another.
pub(super) fn cannot_read(writer: &Value, reader: &Value) -> Vec<Problem> {
    let mut problems = Vec::new();
    Documents { writer, reader }.schemas(&Place::default(), writer, reader, &mut problems);
    problems
}

/// The two documents that references point into.
#[derive(Clone, Copy)]
struct Documents<'a> {
    writer: &'a Value,
    reader: &'a Value,
}

/// Where the comparison is.
#[derive(Clone, Default)]
struct Place {
    path: String,
    references: usize,
}

impl Place {
    fn below(&self, name: &str) -> Place {
        Place { path: format!("{}/{name}", self.path), references: self.references }
    }

    fn behind_reference(&self) -> Place {
        Place { path: self.path.clone(), references: self.references + 1 }
    }

    fn problem(&self, reason: impl Into<String>) -> Problem {
        Problem::new(&self.path, reason)
    }
}

type Fields = Map<String, Value>;

impl Documents<'_> {
    fn schemas(self, at: &Place, written: &Value, read: &Value, out: &mut Vec<Problem>) {
        if at.references > MAX_REFERENCES {
            return;
        }
        if let Some(reference) = reference(written) {
            return match target(self.writer, reference) {
                Some(target) => self.schemas(&at.behind_reference(), target, read, out),
                None => out.push(at.problem(format!("cannot follow the reference {reference}"))),
            };
        }
        if let Some(reference) = reference(read) {
            return match target(self.reader, reference) {
                Some(target) => self.schemas(&at.behind_reference(), written, target, out),
                None => out.push(at.problem(format!("cannot follow the reference {reference}"))),
            };
        }
        match (written, read) {
            (Value::Bool(false), _) | (_, Value::Bool(true)) => {}
            (_, Value::Bool(false)) => out.push(at.problem("the reader allows nothing here")),
            (Value::Object(from), Value::Object(to)) => self.objects(at, from, to, out),
            (_, Value::Object(to)) => self.objects(at, &Fields::new(), to, out),
            _ => out.push(at.problem("not a schema")),
        }
    }

    /// Whether every document of one schema is allowed by another.
    fn fits(self, at: &Place, written: &Value, read: &Value) -> bool {
        let mut problems = Vec::new();
        self.schemas(&at.behind_reference(), written, read, &mut problems);
        problems.is_empty()
    }

    fn objects(self, at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
        if let Some(branches) = choices(from) {
            let read = Value::Object(to.clone());
            let rejected = branches.iter().filter(|branch| !self.fits(at, branch, &read));
            let reason =
                |branch: &Value| at.problem(format!("the reader rejects the alternative {}", short(branch)));
            return out.extend(rejected.map(reason));
        }
        let written = Value::Object(from.clone());
        if let Some(branches) = choices(to) {
            if !branches.iter().any(|branch| self.fits(at, &written, branch)) {
                out.push(at.problem("none of the reader's alternatives accepts all earlier documents"));
            }
            return;
        }
        if from.get("allOf") != to.get("allOf") {
            let parts = to.get("allOf").and_then(Value::as_array).into_iter().flatten();
            if parts.into_iter().any(|part| !self.fits(at, &written, part)) {
                out.push(at.problem("a part of the reader's allOf may reject earlier documents"));
            }
        }
        kinds(at, from, to, out);
        values(at, from, to, out);
        bounds(at, from, to, out);
        required(at, from, to, out);
        self.properties(at, from, to, out);
        self.items(at, from, to, out);
        unknown(at, from, to, out);
    }

    fn properties(self, at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
        let (written, read) = (object(from, "properties"), object(to, "properties"));
        for (name, schema) in written.into_iter().flatten() {
            let below = at.below(name);
            match (read.and_then(|read| read.get(name)), to.get("additionalProperties")) {
                (Some(accepted), _) => self.schemas(&below, schema, accepted, out),
                (None, Some(Value::Bool(false))) => {
                    out.push(below.problem("the property is gone and the reader allows no others"));
                }
                (None, Some(others)) => self.schemas(&below, schema, others, out),
                (None, None) => {}
            }
        }
        match (from.get("additionalProperties"), to.get("additionalProperties")) {
            (Some(Value::Bool(false)), _) | (_, None | Some(Value::Bool(true))) => {}
            (None | Some(Value::Bool(true)), Some(Value::Bool(false))) => {
                out.push(at.problem("additional properties are no longer allowed"));
            }
            (written, Some(others)) => {
                let written = written.unwrap_or(&Value::Bool(true));
                self.schemas(&at.below("additionalProperties"), written, others, out);
            }
        }
    }

    fn items(self, at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
        if to.get("uniqueItems") == Some(&Value::Bool(true))
            && from.get("uniqueItems") != Some(&Value::Bool(true))
        {
            out.push(at.problem("items must be unique now"));
        }
        match (from.get("items"), to.get("items")) {
            (_, None) => {}
            (written, Some(read)) if written == Some(read) && !read.is_object() => {}
            (written, Some(read @ (Value::Object(_) | Value::Bool(_)))) => {
                let written = written.unwrap_or(&Value::Bool(true));
                self.schemas(&at.below("items"), written, read, out);
            }
            (_, Some(_)) => out.push(at.problem("cannot compare lists of item schemas")),
        }
    }
}

fn reference(schema: &Value) -> Option<&str> {
    schema.get("$ref")?.as_str()
}

/// The schema behind a reference into the same document.
fn target<'a>(document: &'a Value, reference: &str) -> Option<&'a Value> {
    reference.strip_prefix('#').and_then(|pointer| document.pointer(pointer))
}

/// The alternatives of a schema. `oneOf` counts as `anyOf`: alternatives are taken as exclusive.
fn choices(schema: &Fields) -> Option<&Vec<Value>> {
    schema.get("anyOf").or_else(|| schema.get("oneOf")).and_then(Value::as_array)
}

fn object<'a>(schema: &'a Fields, keyword: &str) -> Option<&'a Fields> {
    schema.get(keyword).and_then(Value::as_object)
}

fn strings<'a>(schema: &'a Fields, keyword: &str) -> BTreeSet<&'a str> {
    match schema.get(keyword) {
        Some(Value::String(word)) => BTreeSet::from([word.as_str()]),
        Some(Value::Array(words)) => words.iter().filter_map(Value::as_str).collect(),
        Some(_) | None => BTreeSet::new(),
    }
}

/// The JSON types that a schema allows; all of them where it names none.
fn types(schema: &Fields) -> BTreeSet<&str> {
    let named = strings(schema, "type");
    if named.is_empty() {
        BTreeSet::from(["null", "boolean", "number", "integer", "string", "array", "object"])
    } else {
        named
    }
}

fn kinds(at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
    let accepted = types(to);
    let is_accepted =
        |kind: &str| accepted.contains(kind) || kind == "integer" && accepted.contains("number");
    // What the values are limited to decides where the type is left out.
    if !from.contains_key("type") && (from.contains_key("enum") || from.contains_key("const")) {
        return;
    }
    let rejected = types(from).into_iter().filter(|kind| !is_accepted(kind)).collect::<Vec<_>>();
    if !rejected.is_empty() {
        let accepted = accepted.iter().copied().collect::<Vec<_>>().join(" or ");
        out.push(at.problem(format!("{} is no longer accepted, only {accepted}", rejected.join(" and "))));
    }
}

/// `enum` and `const`: the reader's values must contain the writer's.
fn values(at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
    let Some(accepted) = listed(to) else { return };
    match listed(from) {
        None => out.push(at.problem("only some values are accepted now")),
        Some(written) => {
            let gone = written.into_iter().filter(|value| !accepted.contains(value));
            out.extend(
                gone.map(|value| at.problem(format!("the value {} is no longer accepted", short(value)))),
            );
        }
    }
}

fn listed(schema: &Fields) -> Option<Vec<&Value>> {
    let one = schema.get("const").map(|value| vec![value]);
    one.or_else(|| schema.get("enum").and_then(Value::as_array).map(|values| values.iter().collect()))
}

fn bounds(at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
    let number = |schema: &Fields, keyword: &str| schema.get(keyword).and_then(Value::as_f64);
    for keyword in MINIMA {
        if let Some(read) = number(to, keyword)
            && number(from, keyword).is_none_or(|written| written < read)
            && !(keyword.starts_with("min") && keyword != "minimum" && read <= 0.0)
        {
            out.push(at.problem(format!("{keyword} is raised to {read}")));
        }
    }
    for keyword in MAXIMA {
        if let Some(read) = number(to, keyword)
            && number(from, keyword).is_none_or(|written| written > read)
        {
            out.push(at.problem(format!("{keyword} is lowered to {read}")));
        }
    }
}

fn required(at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
    let always_there = strings(from, "required");
    for name in strings(to, "required").into_iter().filter(|name| !always_there.contains(name)) {
        out.push(at.below(name).problem("the property is required now and may be absent in the data"));
    }
}

/// Keywords of the reader that have no rule here.
fn unknown(at: &Place, from: &Fields, to: &Fields, out: &mut Vec<Problem>) {
    let is_known = |keyword: &str| {
        [&ANNOTATIONS[..], &MINIMA, &MAXIMA, &STRUCTURAL].iter().any(|known| known.contains(&keyword))
    };
    let changed =
        to.iter().filter(|(keyword, value)| !is_known(keyword) && from.get(*keyword) != Some(value));
    out.extend(
        changed
            .map(|(keyword, _)| at.problem(format!("{keyword} differs, and compatibility cannot be proved"))),
    );
}

/// A value in a message.
fn short(value: &Value) -> String {
    const MOST: usize = 60;
    let text = value.to_string();
    if text.chars().count() <= MOST { text } else { text.chars().take(MOST).chain("...".chars()).collect() }
}
