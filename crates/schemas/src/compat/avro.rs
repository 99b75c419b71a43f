//! Avro's rules of schema resolution: which data a reader's schema can be resolved with.

use std::collections::BTreeSet;

use super::Problem;
use crate::format::avro::{AvroSchema, Field, Named, Primitive, Type};

/// Why data written with one schema cannot be read with another.
pub(super) fn cannot_read(writer: &AvroSchema, reader: &AvroSchema) -> Vec<Problem> {
    let mut walk = Walk { writer, reader, seen: BTreeSet::new(), problems: Vec::new() };
    walk.types("", &writer.root, &reader.root);
    walk.problems
}

struct Walk<'a> {
    writer: &'a AvroSchema,
    reader: &'a AvroSchema,
    /// Pairs of names that are being compared, or were: recursive types end there.
    seen: BTreeSet<(String, String)>,
    problems: Vec<Problem>,
}

impl Walk<'_> {
    fn fail(&mut self, path: &str, reason: impl Into<String>) {
        self.problems.push(Problem::new(path, reason));
    }

    fn types(&mut self, path: &str, written: &Type, read: &Type) {
        match (written, read) {
            (Type::Union(branches), _) => {
                for branch in branches {
                    self.branch(path, branch, read);
                }
            }
            (_, Type::Union(_)) => self.branch(path, written, read),
            (Type::Primitive(from), Type::Primitive(to)) if is_promoted(*from, *to) => {}
            (Type::Array(from), Type::Array(to)) => self.types(&format!("{path}/items"), from, to),
            (Type::Map(from), Type::Map(to)) => self.types(&format!("{path}/values"), from, to),
            (Type::Named(from), Type::Named(to)) => self.named(path, from, to),
            (
                Type::Primitive(_) | Type::Array(_) | Type::Map(_) | Type::Named(_),
                Type::Primitive(_) | Type::Array(_) | Type::Map(_) | Type::Named(_),
            ) => {
                let (from, to) = (describe(written), describe(read));
                self.fail(path, format!("{from} cannot be read as {to}"));
            }
        }
    }

    /// One written type that is not a union, read by anything.
    fn branch(&mut self, path: &str, written: &Type, read: &Type) {
        let Type::Union(accepted) = read else { return self.types(path, written, read) };
        if accepted.iter().any(|candidate| self.fits(written, candidate)) {
            return;
        }
        // A single candidate of the same shape gives the better explanation.
        match accepted.iter().find(|candidate| is_same_shape(written, candidate)) {
            Some(candidate) => self.types(path, written, candidate),
            None => {
                let accepted = accepted.iter().map(describe).collect::<Vec<_>>().join(", ");
                self.fail(path, format!("{} is not in the union of {accepted}", describe(written)));
            }
        }
    }

    /// Whether a written type can be read as this one, without recording anything.
    fn fits(&self, written: &Type, read: &Type) -> bool {
        let mut probe =
            Walk { writer: self.writer, reader: self.reader, seen: self.seen.clone(), problems: Vec::new() };
        probe.types("", written, read);
        probe.problems.is_empty()
    }

    fn named(&mut self, path: &str, from: &str, to: &str) {
        let (Some(written), Some(read)) = (self.writer.named.get(from), self.reader.named.get(to)) else {
            return self.fail(path, format!("the type {from} or {to} is not declared"));
        };
        if !is_same_name(from, to) && !read.aliases().iter().any(|alias| is_same_name(alias, from)) {
            return self.fail(path, format!("the name changed from {from} to {to}; add an alias"));
        }
        if !self.seen.insert((from.to_owned(), to.to_owned())) {
            return;
        }
        match (written, read) {
            (Named::Record { fields: from, .. }, Named::Record { fields: to, .. }) => {
                self.records(path, from, to);
            }
            (Named::Enum { symbols: from, .. }, Named::Enum { symbols: to, has_default, .. }) => {
                self.symbols(path, from, to, *has_default);
            }
            (Named::Fixed { size: from, .. }, Named::Fixed { size: to, .. }) => {
                if from != to {
                    self.fail(path, format!("the size of fixed changed from {from} to {to}"));
                }
            }
            (Named::Record { .. } | Named::Enum { .. } | Named::Fixed { .. }, _) => {
                let (from, to) = (written.kind(), read.kind());
                self.fail(path, format!("{from} cannot be read as {to}"));
            }
        }
    }

    fn records(&mut self, path: &str, written: &[Field], read: &[Field]) {
        for field in read {
            let at = format!("{path}/{}", field.name);
            let source = written
                .iter()
                .find(|candidate| candidate.name == field.name || field.aliases.contains(&candidate.name));
            match source {
                Some(source) => self.types(&at, &source.type_, &field.type_),
                None if field.has_default => {}
                None => self.fail(&at, "the field has no default and is absent in the data"),
            }
        }
    }

    fn symbols(&mut self, path: &str, written: &[String], read: &[String], has_default: bool) {
        if has_default {
            return;
        }
        for symbol in written.iter().filter(|symbol| !read.contains(symbol)) {
            self.fail(path, format!("the enum symbol {symbol} is gone and there is no default symbol"));
        }
    }
}

/// Whether a value of one primitive type is read as another.
fn is_promoted(from: Primitive, to: Primitive) -> bool {
    use Primitive::{Bytes, Double, Float, Int, Long, String};
    from == to
        || matches!(
            (from, to),
            (Int, Long | Float | Double)
                | (Long, Float | Double)
                | (Float, Double)
                | (String, Bytes)
                | (Bytes, String)
        )
}

/// Names match without their namespaces, as the specification says.
fn is_same_name(a: &str, b: &str) -> bool {
    fn last(name: &str) -> &str {
        name.rsplit('.').next().unwrap_or(name)
    }
    last(a) == last(b)
}

fn is_same_shape(a: &Type, b: &Type) -> bool {
    match (a, b) {
        (Type::Array(_), Type::Array(_)) | (Type::Map(_), Type::Map(_)) => true,
        (Type::Named(a), Type::Named(b)) => is_same_name(a, b),
        (Type::Primitive(_) | Type::Array(_) | Type::Map(_) | Type::Named(_) | Type::Union(_), _) => false,
    }
}

fn describe(type_: &Type) -> String {
    match type_ {
        Type::Primitive(primitive) => primitive.name().to_owned(),
        Type::Array(_) => "array".to_owned(),
        Type::Map(_) => "map".to_owned(),
        Type::Union(_) => "union".to_owned(),
        Type::Named(name) => name.clone(),
    }
}
