//! Avro schemas as a tree with resolved names, made for comparing two of them.
//!
//! The text is checked by the `apache-avro` crate first, so this reader meets valid schemas only.

use std::collections::BTreeMap;

use serde_json::Value;

/// A valid Avro schema.
#[derive(Clone, Debug)]
pub(crate) struct AvroSchema {
    /// For reading payloads.
    pub(super) compiled: apache_avro::Schema,
    /// The schema itself.
    pub(crate) root: Type,
    /// Every record, enum and fixed by its full name.
    pub(crate) named: BTreeMap<String, Named>,
}

/// A type of an Avro schema.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Type {
    Primitive(Primitive),
    Array(Box<Type>),
    Map(Box<Type>),
    Union(Vec<Type>),
    /// A record, enum or fixed, by its full name.
    Named(String),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Primitive {
    Null,
    Boolean,
    Int,
    Long,
    Float,
    Double,
    Bytes,
    String,
}

/// A type that has a name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Named {
    Record { aliases: Vec<String>, fields: Vec<Field> },
    Enum { aliases: Vec<String>, symbols: Vec<String>, has_default: bool },
    Fixed { aliases: Vec<String>, size: u64 },
}

/// A field of a record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Field {
    pub(crate) name: String,
    pub(crate) aliases: Vec<String>,
    pub(crate) type_: Type,
    pub(crate) has_default: bool,
}

impl Primitive {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Primitive::Null => "null",
            Primitive::Boolean => "boolean",
            Primitive::Int => "int",
            Primitive::Long => "long",
            Primitive::Float => "float",
            Primitive::Double => "double",
            Primitive::Bytes => "bytes",
            Primitive::String => "string",
        }
    }

    fn of(name: &str) -> Option<Primitive> {
        Some(match name {
            "null" => Primitive::Null,
            "boolean" => Primitive::Boolean,
            "int" => Primitive::Int,
            "long" => Primitive::Long,
            "float" => Primitive::Float,
            "double" => Primitive::Double,
            "bytes" => Primitive::Bytes,
            "string" => Primitive::String,
            _ => return None,
        })
    }
}

impl Named {
    /// What kind of type it is.
    pub(crate) fn kind(&self) -> &'static str {
        match self {
            Named::Record { .. } => "record",
            Named::Enum { .. } => "enum",
            Named::Fixed { .. } => "fixed",
        }
    }

    /// Other full names that it answers to as a reader.
    pub(crate) fn aliases(&self) -> &[String] {
        match self {
            Named::Record { aliases, .. } | Named::Enum { aliases, .. } | Named::Fixed { aliases, .. } => {
                aliases
            }
        }
    }
}

impl AvroSchema {
    pub(super) fn parse(text: &str) -> Result<AvroSchema, String> {
        // First, because its errors name the line and column.
        let value = serde_json::from_str::<Value>(text).map_err(|error| error.to_string())?;
        let compiled = apache_avro::Schema::parse_str(text).map_err(|error| error.to_string())?;
        let mut named = BTreeMap::new();
        let root = Reader { named: &mut named }.type_of(&value, "")?;
        Ok(AvroSchema { compiled, root, named })
    }
}

/// Collects the named types of a schema while it is read.
struct Reader<'a> {
    named: &'a mut BTreeMap<String, Named>,
}

impl Reader<'_> {
    fn type_of(&mut self, value: &Value, namespace: &str) -> Result<Type, String> {
        match value {
            Value::String(name) => Ok(match Primitive::of(name) {
                Some(primitive) => Type::Primitive(primitive),
                None => Type::Named(full_name(name, namespace)),
            }),
            Value::Array(branches) => {
                let branches = branches.iter().map(|branch| self.type_of(branch, namespace));
                Ok(Type::Union(branches.collect::<Result<_, _>>()?))
            }
            Value::Object(_) => self.object(value, namespace),
            Value::Null | Value::Bool(_) | Value::Number(_) => Err(format!("{value} is not a type")),
        }
    }

    fn object(&mut self, value: &Value, namespace: &str) -> Result<Type, String> {
        match value.get("type") {
            Some(Value::String(word)) => match word.as_str() {
                "array" => Ok(Type::Array(Box::new(self.type_of(part(value, "items")?, namespace)?))),
                "map" => Ok(Type::Map(Box::new(self.type_of(part(value, "values")?, namespace)?))),
                "record" | "error" | "enum" | "fixed" => self.declare(value, word, namespace),
                _ => self.type_of(&Value::String(word.clone()), namespace),
            },
            Some(inner) => self.type_of(inner, namespace),
            None => Err("an object without \"type\" is not a type".to_owned()),
        }
    }

    fn declare(&mut self, value: &Value, word: &str, namespace: &str) -> Result<Type, String> {
        let own = value.get("namespace").and_then(Value::as_str).unwrap_or(namespace);
        let name = full_name(part(value, "name")?.as_str().unwrap_or_default(), own);
        let inner = name.rsplit_once('.').map_or("", |(namespace, _)| namespace).to_owned();
        let aliases = strings(value, "aliases").iter().map(|alias| full_name(alias, &inner)).collect();
        let named = match word {
            "enum" => {
                let has_default = value.get("default").is_some();
                Named::Enum { aliases, symbols: strings(value, "symbols"), has_default }
            }
            "fixed" => {
                let size = part(value, "size")?.as_u64().ok_or("the size of a fixed is a number")?;
                Named::Fixed { aliases, size }
            }
            _ => Named::Record { aliases, fields: self.fields(value, &inner)? },
        };
        self.named.insert(name.clone(), named);
        Ok(Type::Named(name))
    }

    fn fields(&mut self, value: &Value, namespace: &str) -> Result<Vec<Field>, String> {
        let fields = part(value, "fields")?.as_array().ok_or("the fields of a record are an array")?;
        let field = |field: &Value| {
            Ok(Field {
                name: part(field, "name")?.as_str().unwrap_or_default().to_owned(),
                aliases: strings(field, "aliases"),
                type_: self.type_of(part(field, "type")?, namespace)?,
                has_default: field.get("default").is_some(),
            })
        };
        fields.iter().map(field).collect()
    }
}

fn full_name(name: &str, namespace: &str) -> String {
    if name.contains('.') || namespace.is_empty() { name.to_owned() } else { format!("{namespace}.{name}") }
}

fn part<'a>(value: &'a Value, name: &str) -> Result<&'a Value, String> {
    value.get(name).ok_or_else(|| format!("{name:?} is missing"))
}

fn strings(value: &Value, name: &str) -> Vec<String> {
    let items = value.get(name).and_then(Value::as_array).into_iter().flatten();
    items.filter_map(Value::as_str).map(str::to_owned).collect()
}
