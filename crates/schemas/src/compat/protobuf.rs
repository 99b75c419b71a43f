//! Protobuf: does a reader with one version of a file understand bytes written with another?
//!
//! Fields are compared by number within messages of the same full name. A field that only one side has is unknown to
//! the other and harmless, unless it is required there or its number was reserved.

use std::collections::BTreeMap;

use prost_reflect::{Cardinality, EnumDescriptor, FieldDescriptor, Kind, MessageDescriptor};

use super::Problem;
use crate::format::protobuf::ProtoFile;

/// Why data written with one file cannot be read with another.
pub(super) fn cannot_read(writer: &ProtoFile, reader: &ProtoFile) -> Vec<Problem> {
    if writer.package() != reader.package() {
        let (from, to) = (writer.package(), reader.package());
        return vec![Problem::new("", format!("the package changed from {from:?} to {to:?}"))];
    }
    let mut problems = Vec::new();
    let known = by_name(reader.messages());
    for written in writer.messages() {
        match known.get(written.full_name()) {
            Some(read) => messages(&written, read, &mut problems),
            None => problems.push(Problem::new(&path(&written), "the message is gone")),
        }
    }
    problems
}

fn by_name(messages: impl Iterator<Item = MessageDescriptor>) -> BTreeMap<String, MessageDescriptor> {
    messages.map(|message| (message.full_name().to_owned(), message)).collect()
}

fn path(message: &MessageDescriptor) -> String {
    format!("/{}", message.full_name())
}

fn messages(written: &MessageDescriptor, read: &MessageDescriptor, out: &mut Vec<Problem>) {
    let at = path(written);
    for field in read.fields() {
        match written.get_field(field.number()) {
            Some(source) => fields(&at, &source, &field, out),
            None => new_field(&at, written, &field, out),
        }
    }
    renumbered(&at, written, read, out);
    joined_oneof(&at, written, read, out);
    let known = by_name(read.child_messages());
    for nested in written.child_messages().filter(|nested| !nested.is_map_entry()) {
        match known.get(nested.full_name()) {
            Some(counterpart) => messages(&nested, counterpart, out),
            None => out.push(Problem::new(&path(&nested), "the message is gone")),
        }
    }
}

fn new_field(at: &str, written: &MessageDescriptor, field: &FieldDescriptor, out: &mut Vec<Problem>) {
    let (name, number) = (field.name(), field.number());
    if field.cardinality() == Cardinality::Required {
        out.push(Problem::new(&format!("{at}/{name}"), "the field is required and absent in the data"));
    }
    if written.reserved_ranges().any(|range| range.contains(&number)) {
        out.push(Problem::new(&format!("{at}/{name}"), format!("the number {number} was reserved")));
    }
    if written.reserved_names().any(|reserved| reserved == name) {
        out.push(Problem::new(&format!("{at}/{name}"), "the name was reserved"));
    }
}

fn fields(at: &str, written: &FieldDescriptor, read: &FieldDescriptor, out: &mut Vec<Problem>) {
    let at = format!("{at}/{}", read.name());
    if let Some(reason) = kind_problem(&written.kind(), &read.kind()) {
        out.push(Problem::new(&at, format!("field {}: {reason}", read.number())));
        return;
    }
    if written.is_list() != read.is_list() || written.is_map() != read.is_map() {
        let reason = "changed between one value and several";
        out.push(Problem::new(&at, format!("field {} {reason}", read.number())));
    }
    let (Cardinality::Required, false) = (read.cardinality(), written.cardinality() == Cardinality::Required)
    else {
        return;
    };
    out.push(Problem::new(&at, format!("field {} is required and may be absent in the data", read.number())));
}

/// The same name under another number is a new field with old values lost.
fn renumbered(at: &str, written: &MessageDescriptor, read: &MessageDescriptor, out: &mut Vec<Problem>) {
    for field in written.fields() {
        let counterpart = read.get_field_by_name(field.name());
        if let Some(moved) = counterpart.filter(|moved| moved.number() != field.number()) {
            let reason = format!("the number changed from {} to {}", field.number(), moved.number());
            out.push(Problem::new(&format!("{at}/{}", field.name()), reason));
        }
    }
}

/// Two fields that could be set together must not become alternatives: one of them would be dropped.
fn joined_oneof(at: &str, written: &MessageDescriptor, read: &MessageDescriptor, out: &mut Vec<Problem>) {
    for oneof in read.oneofs().filter(|oneof| !oneof.is_synthetic()) {
        let groups = oneof.fields().filter_map(|field| written.get_field(field.number()));
        let groups = groups.map(|source| {
            let within = source.containing_oneof().filter(|oneof| !oneof.is_synthetic());
            within.map_or_else(|| format!("field {}", source.number()), |oneof| oneof.name().to_owned())
        });
        let groups = groups.collect::<std::collections::BTreeSet<_>>();
        if groups.len() > 1 {
            let reason =
                format!("fields that could be set together are alternatives of {} now", oneof.name());
            out.push(Problem::new(at, reason));
        }
    }
}

/// Why bytes of one kind of field are not understood as another.
fn kind_problem(written: &Kind, read: &Kind) -> Option<String> {
    match (written, read) {
        (Kind::Message(from), Kind::Message(to)) if from.is_map_entry() && to.is_map_entry() => {
            let parts = [
                (from.map_entry_key_field(), to.map_entry_key_field()),
                (from.map_entry_value_field(), to.map_entry_value_field()),
            ];
            parts.iter().find_map(|(from, to)| kind_problem(&from.kind(), &to.kind()))
        }
        (Kind::Message(from), Kind::Message(to)) => (from.full_name() != to.full_name())
            .then(|| format!("the message type changed from {} to {}", from.full_name(), to.full_name())),
        (Kind::Enum(from), Kind::Enum(to)) => enum_problem(from, to),
        _ if encoding(written) == encoding(read) => None,
        _ => Some(format!("the type changed from {} to {}", name(written), name(read))),
    }
}

/// A symbol that is read as another one.
fn enum_problem(written: &EnumDescriptor, read: &EnumDescriptor) -> Option<String> {
    written.values().find_map(|value| {
        let counterpart = read.get_value_by_name(value.name())?;
        (counterpart.number() != value.number()).then(|| {
            let (from, to) = (value.number(), counterpart.number());
            format!("the enum value {} changed its number from {from} to {to}", value.name())
        })
    })
}

/// Kinds with equal bytes for equal values, as the language guide lists them.
#[derive(PartialEq, Eq)]
enum Encoding {
    Varint,
    ZigZag,
    Fixed32,
    Fixed64,
    Float,
    Double,
    Length,
    Message,
}

fn encoding(kind: &Kind) -> Encoding {
    match kind {
        Kind::Int32 | Kind::Int64 | Kind::Uint32 | Kind::Uint64 | Kind::Bool | Kind::Enum(_) => {
            Encoding::Varint
        }
        Kind::Sint32 | Kind::Sint64 => Encoding::ZigZag,
        Kind::Fixed32 | Kind::Sfixed32 => Encoding::Fixed32,
        Kind::Fixed64 | Kind::Sfixed64 => Encoding::Fixed64,
        Kind::Float => Encoding::Float,
        Kind::Double => Encoding::Double,
        Kind::String | Kind::Bytes => Encoding::Length,
        Kind::Message(_) => Encoding::Message,
    }
}

fn name(kind: &Kind) -> String {
    match kind {
        Kind::Message(message) => message.full_name().to_owned(),
        Kind::Enum(symbols) => symbols.full_name().to_owned(),
        scalar => format!("{scalar:?}").to_lowercase(),
    }
}
