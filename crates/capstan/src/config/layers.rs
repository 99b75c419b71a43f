//! Where values come from: defaults, the file, the environment, flags; the later one wins, and every mistake is kept.

use std::collections::BTreeMap;
use std::fmt;
use std::path::PathBuf;

use toml::Spanned;
use toml::de::{DeString, DeTable, DeValue};

use super::keys::{self, KEYS, Key, Kind};
use super::suggest::nearest;
use super::value::Value;

/// All sources of settings.
#[derive(Debug, Default)]
pub(crate) struct Sources {
    /// The file's name and text.
    pub(crate) file: Option<(PathBuf, String)>,
    /// Environment variables, all of them.
    pub(crate) environment: Vec<(String, String)>,
    /// Flags: how the user wrote it, which setting it means, the value.
    pub(crate) flags: Vec<Flag>,
}

/// A flag that sets a setting.
#[derive(Clone, Debug)]
pub(crate) struct Flag {
    /// As on the command line, for messages.
    pub(crate) written: String,
    /// The setting.
    pub(crate) path: String,
    /// The value's text.
    pub(crate) text: String,
}

impl Flag {
    /// The flag `name` with this value, which sets `path`.
    pub(crate) fn new(name: &str, path: &str, text: impl fmt::Display) -> Flag {
        Flag { written: name.to_owned(), path: path.to_owned(), text: text.to_string() }
    }

    /// The flag as it was written, without the value of a secret.
    fn shown(&self, key: &Key) -> String {
        match self.written.split_once('=') {
            Some((name, _)) if key.kind == Kind::Secret => format!("{name}=<redacted>"),
            Some(_) | None => self.written.clone(),
        }
    }
}

/// The origin of a setting's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// The default.
    Default,
    /// The file, at `name:line:column`.
    File(String),
    /// The environment variable of this name.
    Environment(String),
    /// A flag, as it was written.
    Flag(String),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Origin::Default => f.write_str("default"),
            Origin::File(place) => f.write_str(place),
            Origin::Environment(name) => write!(f, "environment {name}"),
            Origin::Flag(written) => f.write_str(written),
        }
    }
}

/// One setting as it stands.
#[derive(Clone, Debug)]
pub(crate) struct Setting {
    /// Its value.
    pub(crate) value: Value,
    /// Its origin.
    pub(crate) origin: Origin,
}

/// All settings by name, and every error with its position.
#[derive(Debug, Default)]
pub(crate) struct Layers {
    /// The effective settings.
    pub(crate) settings: BTreeMap<&'static str, Setting>,
    /// What is wrong.
    pub(crate) problems: Vec<String>,
}

/// Variables that begin like ours and are none of our settings: options of the command line and of the tests.
const NOT_SETTINGS: &[&str] = &["CAPSTAN_CONFIG", "CAPSTAN_META", "CAPSTAN_OUTPUT", "CAPSTAN_BIN"];

impl Layers {
    /// Combines the sources.
    pub(crate) fn of(sources: &Sources) -> Layers {
        let mut layers = Layers::default();
        for key in KEYS {
            layers.text(key, key.default, Origin::Default);
        }
        if let Some((name, text)) = &sources.file {
            layers.file(&name.display().to_string(), text);
        }
        for (name, text) in &sources.environment {
            layers.variable(name, text);
        }
        for flag in &sources.flags {
            layers.flag(flag);
        }
        layers
    }

    /// The text of a setting, before anything is checked; empty: unset.
    pub(crate) fn text_of(&self, path: &str) -> String {
        match self.settings.get(path).map(|setting| &setting.value) {
            Some(Value::Text(text)) => text.clone(),
            Some(_) | None => String::new(),
        }
    }

    fn text(&mut self, key: &'static Key, text: &str, origin: Origin) {
        // An empty default of a number or address cannot be read; there is none, and a test holds that.
        match Value::from_text(key.kind, text) {
            Ok(value) => self.set(key, value, origin),
            Err(problem) => self.problems.push(format!("{origin}: {}: {problem}", key.path)),
        }
    }

    fn set(&mut self, key: &'static Key, value: Value, origin: Origin) {
        self.settings.insert(key.path, Setting { value, origin });
    }

    fn file(&mut self, name: &str, text: &str) {
        let (table, errors) = DeTable::parse_recoverable(text);
        for error in errors {
            let place = error.span().map(|span| position(text, span.start)).unwrap_or_default();
            self.problems.push(format!("{name}{place}: {}", error.message()));
        }
        for (section, value) in in_file_order(table.get_ref()) {
            let place = format!("{name}{}", position(text, section.span().start));
            match (keys::sections().contains(&section.get_ref().as_ref()), value.get_ref()) {
                (true, DeValue::Table(entries)) => self.section(name, text, section.get_ref(), entries),
                (true, _) => {
                    self.problems.push(format!("{place}: `{}` is a section: write [{0}]", section.get_ref()))
                }
                (false, _) => self.unknown(&place, "section", section.get_ref(), &keys::sections()),
            }
        }
    }

    fn section(&mut self, name: &str, text: &str, section: &str, entries: &DeTable<'_>) {
        for (entry, value) in in_file_order(entries) {
            let path = format!("{section}.{}", entry.get_ref());
            let place = format!("{name}{}", position(text, entry.span().start));
            let Some(key) = keys::find(&path) else {
                self.unknown(&place, "key", &path, &paths());
                continue;
            };
            match Value::from_toml(key.kind, value.get_ref()) {
                Ok(value) => self.set(key, value, Origin::File(place)),
                Err(problem) => self.problems.push(format!("{place}: {path}: {problem}")),
            }
        }
    }

    /// Ignores foreign variables, but reports one that looks like a misspelling of ours.
    fn variable(&mut self, name: &str, text: &str) {
        if !name.starts_with("CAPSTAN_") || NOT_SETTINGS.contains(&name) {
            return;
        }
        if let Some(key) = KEYS.iter().find(|key| key.variable() == name) {
            return self.text(key, text, Origin::Environment(name.to_owned()));
        }
        let names: Vec<String> = KEYS.iter().map(Key::variable).collect();
        let known: Vec<&str> = names.iter().map(String::as_str).collect();
        let ours = keys::sections()
            .iter()
            .any(|section| name.starts_with(&format!("CAPSTAN_{}_", section.to_uppercase())));
        if ours || nearest(name, known.iter().copied()).is_some_and(|_| name.len() > 12) {
            self.unknown("environment", "variable", name, &known);
        }
    }

    fn flag(&mut self, flag: &Flag) {
        match keys::find(&flag.path) {
            Some(key) => self.text(key, &flag.text, Origin::Flag(flag.shown(key))),
            None => self.unknown(&flag.written, "key", &flag.path, &paths()),
        }
    }

    fn unknown(&mut self, place: &str, what: &str, name: &str, known: &[&str]) {
        let advice = match nearest(name, known.iter().copied()) {
            Some(known) => format!("did you mean `{known}`?"),
            None if what == "section" => format!("the sections are {}", known.join(", ")),
            None => "`capstan config show` lists every key".to_owned(),
        };
        self.problems.push(format!("{place}: unknown {what} `{name}`: {advice}"));
    }
}

/// A key or value of the file with its place.
type At<'i, T> = &'i Spanned<T>;

/// The entries of a table in file order: errors are reported in that order.
fn in_file_order<'t, 'i>(table: &'t DeTable<'i>) -> Vec<(At<'t, DeString<'i>>, At<'t, DeValue<'i>>)> {
    let mut entries: Vec<_> = table.iter().collect();
    entries.sort_by_key(|(key, _)| key.span().start);
    entries
}

fn paths() -> Vec<&'static str> {
    KEYS.iter().map(|key| key.path).collect()
}

/// `:line:column` of a byte of the text, counted from 1.
fn position(text: &str, at: usize) -> String {
    let before = &text.as_bytes()[..at.min(text.len())];
    let line = before.iter().filter(|byte| **byte == b'\n').count() + 1;
    let column = before.iter().rev().take_while(|byte| **byte != b'\n').count() + 1;
    format!(":{line}:{column}")
}

/// What is printed for a setting; secrets are not.
pub(crate) fn shown(key: &Key, value: &Value) -> serde_json::Value {
    match key.kind {
        Kind::Secret if !value.is_unset() => "<redacted>".into(),
        Kind::Text | Kind::Secret | Kind::Path | Kind::Address | Kind::Flag | Kind::Count => value.to_json(),
        Kind::Span | Kind::List | Kind::Labels | Kind::Choice(_) => value.to_json(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn file(text: &str) -> Layers {
        Layers::of(&Sources { file: Some(("c.toml".into(), text.to_owned())), ..Sources::default() })
    }

    #[test]
    fn every_default_can_be_read() {
        assert_eq!(Layers::of(&Sources::default()).problems, Vec::<String>::new());
    }

    #[test]
    fn flags_win_over_environment_over_file_over_defaults() {
        let file = Some(("c.toml".into(), "[http]\nlisten = '127.0.0.1:1'\n[meta]\ndir = 'f'".to_owned()));
        let environment = vec![("CAPSTAN_HTTP_LISTEN".to_owned(), "127.0.0.1:2".to_owned())];
        let flags = vec![Flag::new("--port-base", "http.listen", "127.0.0.1:3")];
        let layers = Layers::of(&Sources { file, environment, flags });
        assert_eq!(layers.problems, Vec::<String>::new());
        assert_eq!(layers.settings["http.listen"].origin, Origin::Flag("--port-base".to_owned()));
        assert_eq!(layers.settings["meta.dir"].origin, Origin::File("c.toml:4:1".to_owned()));
        assert_eq!(layers.settings["meta.mode"].origin, Origin::Default);
    }

    #[test]
    fn the_origin_of_a_secret_does_not_name_it() {
        let flags = vec![Flag::new("--set redis.secret=hunter2", "redis.secret", "hunter2")];
        let layers = Layers::of(&Sources { flags, ..Sources::default() });
        let origin = layers.settings["redis.secret"].origin.to_string();
        assert_eq!(origin, "--set redis.secret=<redacted>");
    }

    #[test]
    fn a_file_with_many_mistakes_names_them_all_with_their_places() {
        let problems =
            file("[meta]\nlisen = 'x'\nhistory = 'many'\n[htpp]\n[log]\nformat = 'xml'\n").problems;
        assert_eq!(
            problems,
            [
                "c.toml:2:1: unknown key `meta.lisen`: did you mean `meta.listen`?",
                "c.toml:3:1: meta.history: expected a whole number, found a string",
                "c.toml:4:2: unknown section `htpp`: did you mean `http`?",
                "c.toml:6:1: log.format: \"xml\" is not text or json",
            ]
        );
    }

    #[test]
    fn foreign_variables_are_left_alone_and_slips_are_named() {
        let environment =
            ["CAPSTAN_SEED", "CAPSTAN_META", "CAPSTAN_HTPP_LISTEN", "CAPSTAN_META_COLOUR", "HOME"];
        let environment = environment.map(|name| (name.to_owned(), "1".to_owned())).to_vec();
        let problems = Layers::of(&Sources { environment, ..Sources::default() }).problems;
        assert_eq!(
            problems,
            [
                "environment: unknown variable `CAPSTAN_HTPP_LISTEN`: did you mean `CAPSTAN_HTTP_LISTEN`?",
                "environment: unknown variable `CAPSTAN_META_COLOUR`: `capstan config show` lists every key",
            ]
        );
    }
}
