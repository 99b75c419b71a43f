//! Query strings with nested brackets: `query[a][$in][]=1&options[limit]=5`.
//!
//! What comes from a query string has no type. It is kept as a BSON symbol, which a filter compares as the type of the
//! value that it meets.

use bson::{Bson, Document};

use super::{MAX_DEPTH, Refusal};

/// Parameters of one query string.
const MAX_PARAMETERS: usize = 2_000;

/// Reads a query string into one document. Lists are objects with the keys 0, 1, ... or parts named `[]`.
pub fn parse_query(query: &str) -> Result<Document, Refusal> {
    let mut root = Document::new();
    let parameters: Vec<&str> = query.split('&').filter(|part| !part.is_empty()).collect();
    if parameters.len() > MAX_PARAMETERS {
        return Err(Refusal::new("too many parameters"));
    }
    for parameter in parameters {
        let (name, value) = parameter.split_once('=').unwrap_or((parameter, ""));
        let (name, value) = (decode(name)?, decode(value)?);
        insert(&mut root, &parts(&name)?, value)?;
    }
    Ok(as_lists(root))
}

/// Decodes `%41` and `+`.
pub(crate) fn decode(text: &str) -> Result<String, Refusal> {
    let broken = || Refusal::new("the request line is not correctly percent-encoded UTF-8");
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        match byte {
            b'+' => out.push(b' '),
            b'%' => {
                let (high, low) = (bytes.next().ok_or_else(broken)?, bytes.next().ok_or_else(broken)?);
                let digits = [high, low];
                let digits = std::str::from_utf8(&digits).map_err(|_| broken())?;
                out.push(u8::from_str_radix(digits, 16).map_err(|_| broken())?);
            }
            other => out.push(other),
        }
    }
    String::from_utf8(out).map_err(|_| broken())
}

/// `a[b][]` is `a`, `b`, and nothing.
fn parts(name: &str) -> Result<Vec<&str>, Refusal> {
    let (first, rest) = name.split_once('[').unwrap_or((name, ""));
    let mut parts = vec![first];
    if !rest.is_empty() {
        let inner = rest
            .strip_suffix(']')
            .ok_or_else(|| Refusal::new(format!("`{name}` has brackets that do not match")))?;
        parts.extend(inner.split("]["));
    }
    if parts.len() > MAX_DEPTH {
        return Err(Refusal::new("too many brackets in a parameter"));
    }
    Ok(parts)
}

fn insert(place: &mut Document, parts: &[&str], value: String) -> Result<(), Refusal> {
    let Some((first, rest)) = parts.split_first() else { return Ok(()) };
    let name = if first.is_empty() { place.len().to_string() } else { (*first).to_owned() };
    if rest.is_empty() {
        match place.get_mut(&name) {
            // The same name again is a list.
            Some(Bson::Symbol(known)) => {
                let known = std::mem::take(known);
                place.insert(name, Bson::Array(vec![Bson::Symbol(known), Bson::Symbol(value)]));
            }
            Some(Bson::Array(items)) => items.push(Bson::Symbol(value)),
            Some(_) => return Err(Refusal::new(format!("`{name}` is given as a text and as an object"))),
            None => {
                place.insert(name, Bson::Symbol(value));
            }
        }
        return Ok(());
    }
    match place.entry(name.clone()).or_insert(Bson::Document(Document::new())) {
        Bson::Document(inner) => insert(inner, rest, value),
        _ => Err(Refusal::new(format!("`{name}` is given as a text and as an object"))),
    }
}

/// Objects whose keys are 0, 1, 2, ... are lists.
fn as_lists(document: Document) -> Document {
    document.into_iter().map(|(name, value)| (name, as_list(value))).collect()
}

fn as_list(value: Bson) -> Bson {
    match value {
        Bson::Document(inner) => {
            let numbered =
                !inner.is_empty() && inner.keys().enumerate().all(|(at, key)| *key == at.to_string());
            if numbered {
                Bson::Array(inner.into_iter().map(|(_, item)| as_list(item)).collect())
            } else {
                Bson::Document(as_lists(inner))
            }
        }
        other => other,
    }
}
