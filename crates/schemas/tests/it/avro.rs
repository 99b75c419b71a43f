//! Avro: the rules of schema resolution, case by case.

use capstan_schemas::SchemaType;

use crate::cases::Verdict::{Backward, Forward, Full, No};
use crate::cases::{Case, case, check};

/// A record with these fields.
macro_rules! record {
    ($fields:literal) => {
        concat!(r#"{"type":"record","name":"R","fields":["#, $fields, "]}")
    };
}

const A: &str = record!(r#"{"name":"a","type":"string"}"#);

const CASES: [Case; 46] = [
    case("the same schema", A, A, Full, ""),
    case("a doc text", A, record!(r#"{"name":"a","type":"string","doc":"x"}"#), Full, ""),
    case(
        "a field with a default is added",
        A,
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":"int","default":0}"#),
        Full,
        "",
    ),
    case(
        "a nullable field with a default is added",
        A,
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":["null","int"],"default":null}"#),
        Full,
        "",
    ),
    case(
        "a field without a default is added",
        A,
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":"int"}"#),
        Forward,
        "/b: the field has no default",
    ),
    case(
        "a nullable field without a default is added",
        A,
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":["null","int"]}"#),
        Forward,
        "no default",
    ),
    case(
        "a field without a default is removed",
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":"int"}"#),
        A,
        Backward,
        "no default",
    ),
    case(
        "a field with a default is removed",
        record!(r#"{"name":"a","type":"string"},{"name":"b","type":"int","default":1}"#),
        A,
        Full,
        "",
    ),
    case(
        "fields change their order",
        record!(r#"{"name":"a","type":"int"},{"name":"b","type":"int"}"#),
        record!(r#"{"name":"b","type":"int"},{"name":"a","type":"int"}"#),
        Full,
        "",
    ),
    case(
        "a field is renamed",
        A,
        record!(r#"{"name":"b","type":"string"}"#),
        No,
        "/b: the field has no default",
    ),
    case(
        "a field is renamed with an alias",
        A,
        record!(r#"{"name":"b","aliases":["a"],"type":"string"}"#),
        Backward,
        "/a: the field has no default",
    ),
    case("int becomes long", r#""int""#, r#""long""#, Backward, "long cannot be read as int"),
    case("int becomes float", r#""int""#, r#""float""#, Backward, "float cannot be read as int"),
    case("int becomes double", r#""int""#, r#""double""#, Backward, "double"),
    case("long becomes float", r#""long""#, r#""float""#, Backward, "float"),
    case("long becomes double", r#""long""#, r#""double""#, Backward, "double"),
    case("float becomes double", r#""float""#, r#""double""#, Backward, "double"),
    case("long becomes int", r#""long""#, r#""int""#, Forward, "long cannot be read as int"),
    case("string becomes bytes", r#""string""#, r#""bytes""#, Full, ""),
    case("string becomes int", r#""string""#, r#""int""#, No, "string cannot be read as int"),
    case("boolean becomes int", r#""boolean""#, r#""int""#, No, "boolean"),
    case("null becomes string", r#""null""#, r#""string""#, No, "null"),
    case(
        "a field changes its type",
        A,
        record!(r#"{"name":"a","type":"int"}"#),
        No,
        "/a: string cannot be read as int",
    ),
    case(
        "a field is promoted",
        record!(r#"{"name":"a","type":"int"}"#),
        record!(r#"{"name":"a","type":"long"}"#),
        Backward,
        "/a",
    ),
    case(
        "a field becomes nullable",
        A,
        record!(r#"{"name":"a","type":["null","string"]}"#),
        Backward,
        "null cannot be read as string",
    ),
    case(
        "a field is no longer nullable",
        record!(r#"{"name":"a","type":["null","string"]}"#),
        A,
        Forward,
        "null",
    ),
    case(
        "a branch is added to a union",
        r#"["null","int"]"#,
        r#"["null","int","string"]"#,
        Backward,
        "string is not in the union",
    ),
    case(
        "a branch is removed from a union",
        r#"["null","int","string"]"#,
        r#"["null","int"]"#,
        Forward,
        "string is not in the union of null, int",
    ),
    case("branches change their order", r#"["null","int"]"#, r#"["int","null"]"#, Full, ""),
    case("a branch is promoted", r#"["null","int"]"#, r#"["null","long"]"#, Backward, "long"),
    case(
        "array items are promoted",
        r#"{"type":"array","items":"int"}"#,
        r#"{"type":"array","items":"long"}"#,
        Backward,
        "/items",
    ),
    case(
        "array items change",
        r#"{"type":"array","items":"int"}"#,
        r#"{"type":"array","items":"string"}"#,
        No,
        "/items: int cannot be read as string",
    ),
    case(
        "map values are promoted",
        r#"{"type":"map","values":"int"}"#,
        r#"{"type":"map","values":"double"}"#,
        Backward,
        "/values",
    ),
    case(
        "an array becomes a map",
        r#"{"type":"array","items":"int"}"#,
        r#"{"type":"map","values":"int"}"#,
        No,
        "array cannot be read as map",
    ),
    case(
        "an enum symbol is added",
        r#"{"type":"enum","name":"E","symbols":["A"]}"#,
        r#"{"type":"enum","name":"E","symbols":["A","B"]}"#,
        Backward,
        "the enum symbol B",
    ),
    case(
        "an enum symbol is removed",
        r#"{"type":"enum","name":"E","symbols":["A","B"]}"#,
        r#"{"type":"enum","name":"E","symbols":["A"]}"#,
        Forward,
        "the enum symbol B",
    ),
    case(
        "an enum symbol is removed, with a default",
        r#"{"type":"enum","name":"E","symbols":["A","B"]}"#,
        r#"{"type":"enum","name":"E","symbols":["A"],"default":"A"}"#,
        Full,
        "",
    ),
    case(
        "enum symbols change their order",
        r#"{"type":"enum","name":"E","symbols":["A","B"]}"#,
        r#"{"type":"enum","name":"E","symbols":["B","A"]}"#,
        Full,
        "",
    ),
    case(
        "a fixed changes its size",
        r#"{"type":"fixed","name":"F","size":4}"#,
        r#"{"type":"fixed","name":"F","size":8}"#,
        No,
        "from 4 to 8",
    ),
    case(
        "a record changes its name",
        A,
        r#"{"type":"record","name":"S","fields":[{"name":"a","type":"string"}]}"#,
        No,
        "the name changed from R to S",
    ),
    case(
        "a record changes its name with an alias",
        A,
        r#"{"type":"record","name":"S","aliases":["R"],"fields":[{"name":"a","type":"string"}]}"#,
        Backward,
        "from S to R",
    ),
    case(
        "a record changes its namespace",
        A,
        r#"{"type":"record","name":"R","namespace":"x.y","fields":[{"name":"a","type":"string"}]}"#,
        Full,
        "",
    ),
    case(
        "a record becomes an enum",
        A,
        r#"{"type":"enum","name":"R","symbols":["A"]}"#,
        No,
        "record cannot be read as enum",
    ),
    case(
        "a nested record gets a field",
        record!(r#"{"name":"a","type":{"type":"record","name":"N","fields":[]}}"#),
        record!(r#"{"name":"a","type":{"type":"record","name":"N","fields":[{"name":"x","type":"int"}]}}"#),
        Forward,
        "/a/x",
    ),
    case(
        "a recursive record gets a field with a default",
        record!(r#"{"name":"next","type":["null","R"]}"#),
        record!(r#"{"name":"next","type":["null","R"]},{"name":"v","type":"int","default":0}"#),
        Full,
        "",
    ),
    case(
        "a logical type on the same base",
        record!(r#"{"name":"a","type":"long"}"#),
        record!(r#"{"name":"a","type":{"type":"long","logicalType":"timestamp-millis"}}"#),
        Full,
        "",
    ),
];

#[test]
fn every_change_of_an_avro_schema_has_its_verdict() {
    check(SchemaType::Avro, &CASES);
}
