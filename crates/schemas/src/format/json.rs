//! JSON Schemas: checked against the meta-schema of their draft, kept as the document they are.

use serde_json::Value;

/// Nesting of a schema beyond which it is refused.
const MAX_DEPTH: usize = 64;

pub(super) fn parse(text: &str) -> Result<Value, String> {
    let schema = serde_json::from_str::<Value>(text).map_err(|error| error.to_string())?;
    if !matches!(schema, Value::Object(_) | Value::Bool(_)) {
        return Err("a JSON Schema is an object or a boolean".to_owned());
    }
    if depth(&schema) > MAX_DEPTH {
        return Err(format!("nested deeper than {MAX_DEPTH} levels"));
    }
    compile(&schema)?;
    Ok(schema)
}

/// The validator of payloads. References to other documents are not followed.
pub(super) fn compile(schema: &Value) -> Result<jsonschema::Validator, String> {
    jsonschema::validator_for(schema).map_err(|error| error.to_string())
}

fn depth(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth).max().unwrap_or(0),
        Value::Object(fields) => 1 + fields.values().map(depth).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}
