//! How the text of a setting becomes its value, from TOML and from plain text.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::Duration;

use toml::de::{DeTable, DeValue};

use super::keys::Kind;

/// The value of one setting; the [`Kind`] of its key determines the variant.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    /// Text, Secret, Path and Choice; empty: unset.
    Text(String),
    /// Address.
    Address(SocketAddr),
    /// Flag.
    Flag(bool),
    /// Count.
    Count(u64),
    /// Span.
    Span(Duration),
    /// List.
    List(Vec<String>),
    /// Labels.
    Labels(BTreeMap<String, String>),
}

impl Value {
    /// Parses plain text (a variable, a flag, a default); the error says what is expected.
    pub(crate) fn from_text(kind: Kind, text: &str) -> Result<Value, String> {
        match kind {
            Kind::Text | Kind::Secret | Kind::Path => Ok(Value::Text(text.to_owned())),
            Kind::Choice(words) => choice(words, text),
            Kind::Address => address(text),
            Kind::Flag => text.parse().map(Value::Flag).map_err(|_| wrong(text, "true or false")),
            Kind::Count => text.parse().map(Value::Count).map_err(|_| wrong(text, "a whole number")),
            Kind::Span => {
                span(text).map(Value::Span).ok_or_else(|| wrong(text, "a time span such as 500ms, 10s or 5m"))
            }
            Kind::List => Ok(Value::List(split(text).map(str::to_owned).collect())),
            Kind::Labels => split(text).map(label).collect::<Result<_, _>>().map(Value::Labels),
        }
    }

    /// Parses a value of the file.
    pub(crate) fn from_toml(kind: Kind, value: &DeValue<'_>) -> Result<Value, String> {
        match (kind, value) {
            (Kind::Flag, DeValue::Boolean(flag)) => Ok(Value::Flag(*flag)),
            (Kind::Count, DeValue::Integer(number)) => number
                .as_str()
                .replace('_', "")
                .parse()
                .map(Value::Count)
                .map_err(|_| wrong(number.as_str(), "a whole number")),
            (Kind::List, DeValue::Array(items)) => {
                let texts = items.iter().map(|item| item.get_ref().as_str().map(str::to_owned));
                texts
                    .collect::<Option<_>>()
                    .map(Value::List)
                    .ok_or_else(|| "every item must be a string".to_owned())
            }
            (Kind::Labels, DeValue::Table(table)) => labels(table),
            (Kind::Flag | Kind::Count | Kind::List | Kind::Labels, other) => {
                Err(format!("expected {}, found {}", expected(kind), found(other)))
            }
            (_, DeValue::String(text)) => Value::from_text(kind, text),
            // A number is accepted where a text consists of digits, such as the number of a host.
            (Kind::Text, DeValue::Integer(number)) => Ok(Value::Text(number.as_str().replace('_', ""))),
            (_, other) => Err(format!("expected {}, found {}", expected(kind), found(other))),
        }
    }

    /// Whether it has no value.
    pub(crate) fn is_unset(&self) -> bool {
        match self {
            Value::Text(text) => text.is_empty(),
            Value::List(items) => items.is_empty(),
            Value::Labels(labels) => labels.is_empty(),
            Value::Address(_) | Value::Flag(_) | Value::Count(_) | Value::Span(_) => false,
        }
    }

    /// The value as JSON; the TOML form is the same, except for labels.
    pub(crate) fn to_json(&self) -> serde_json::Value {
        match self {
            Value::Text(text) => text.as_str().into(),
            Value::Address(address) => address.to_string().into(),
            Value::Flag(flag) => (*flag).into(),
            Value::Count(count) => (*count).into(),
            Value::Span(span) => span_text(*span).into(),
            Value::List(items) => items.clone().into(),
            Value::Labels(labels) => {
                labels.iter().map(|(name, value)| (name.clone(), value.clone())).collect()
            }
        }
    }

    /// The value in TOML syntax.
    pub(crate) fn to_toml(&self) -> String {
        let Value::Labels(labels) = self else { return self.to_json().to_string() };
        let pairs: Vec<_> =
            labels.iter().map(|(name, value)| format!("{name} = {}", serde_json::json!(value))).collect();
        if pairs.is_empty() { "{}".to_owned() } else { format!("{{ {} }}", pairs.join(", ")) }
    }
}

fn wrong(text: &str, right: &str) -> String {
    format!("\"{text}\" is not {right}")
}

fn expected(kind: Kind) -> &'static str {
    match kind {
        Kind::Text | Kind::Secret | Kind::Path | Kind::Choice(_) => "a string",
        Kind::Address => "a string with ip:port",
        Kind::Flag => "true or false",
        Kind::Count => "a whole number",
        Kind::Span => "a string with a time span",
        Kind::List => "an array of strings",
        Kind::Labels => "a table of strings",
    }
}

fn found(value: &DeValue<'_>) -> &'static str {
    match value {
        DeValue::String(_) => "a string",
        DeValue::Integer(_) | DeValue::Float(_) => "a number",
        DeValue::Boolean(_) => "true or false",
        DeValue::Datetime(_) => "a date",
        DeValue::Array(_) => "an array",
        DeValue::Table(_) => "a table",
    }
}

fn choice(words: &[&str], text: &str) -> Result<Value, String> {
    if words.contains(&text) {
        Ok(Value::Text(text.to_owned()))
    } else {
        Err(wrong(text, &words.join(" or ")))
    }
}

fn address(text: &str) -> Result<Value, String> {
    let numeric = text.replace("localhost:", "127.0.0.1:");
    numeric
        .parse()
        .map(Value::Address)
        .map_err(|_| wrong(text, "an address: write ip:port, such as 127.0.0.1:7700"))
}

/// Parses `500ms`, `10s`, `5m`, `2h`.
pub(crate) fn span(text: &str) -> Option<Duration> {
    let digits = text.find(|c: char| !c.is_ascii_digit())?;
    let number: u64 = text[..digits].parse().ok()?;
    let millis = match &text[digits..] {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// The same for an option of a command.
pub(crate) fn parse_span(text: &str) -> Result<Duration, String> {
    span(text).ok_or_else(|| "write a time span such as 500ms, 30s or 10m".to_owned())
}

fn span_text(span: Duration) -> String {
    if span.subsec_millis() == 0 { format!("{}s", span.as_secs()) } else { format!("{}ms", span.as_millis()) }
}

fn split(text: &str) -> impl Iterator<Item = &str> {
    text.split(',').map(str::trim).filter(|item| !item.is_empty())
}

fn label(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or_else(|| wrong(text, "a label: write name=value"))?;
    Ok((name.trim().to_owned(), value.trim().to_owned()))
}

fn labels(table: &DeTable<'_>) -> Result<Value, String> {
    let read = |(name, value): (&toml::Spanned<_>, &toml::Spanned<DeValue<'_>>)| {
        let name: &std::borrow::Cow<'_, str> = name.get_ref();
        match value.get_ref().as_str() {
            Some(text) => Ok((name.to_string(), text.to_owned())),
            None => Err(format!("label `{name}`: expected a string, found {}", found(value.get_ref()))),
        }
    };
    table.iter().map(read).collect::<Result<_, _>>().map(Value::Labels)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn spans_carry_their_unit() {
        assert_eq!(span("500ms"), Some(Duration::from_millis(500)));
        assert_eq!(span("5m"), Some(Duration::from_secs(300)));
        for nonsense in ["", "5", "s", "-1s", "1.5s", "5 s", "99999999999999999999h"] {
            assert_eq!(span(nonsense), None, "{nonsense}");
        }
    }

    #[test]
    fn addresses_are_numeric_or_localhost() {
        let value = Value::from_text(Kind::Address, "localhost:80");
        assert_eq!(value, Ok(Value::Address(SocketAddr::from(([127, 0, 0, 1], 80)))));
        assert!(Value::from_text(Kind::Address, "0.0.0.0").is_err());
        assert!(Value::from_text(Kind::Address, "[::1]:80").is_ok());
    }
}
