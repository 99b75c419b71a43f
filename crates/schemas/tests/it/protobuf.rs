//! Protobuf: what bytes of one version mean to another.

use capstan_schemas::SchemaType;

use crate::cases::Verdict::{Backward, Forward, Full, No};
use crate::cases::{Case, case, check};

/// A file with one message of these fields.
macro_rules! message {
    ($fields:literal) => {
        concat!("syntax = \"proto3\"; message M { ", $fields, " }")
    };
}
macro_rules! proto2 {
    ($fields:literal) => {
        concat!("syntax = \"proto2\"; message M { ", $fields, " }")
    };
}

const A: &str = message!("string a = 1;");

const CASES: [Case; 43] = [
    case("the same file", A, A, Full, ""),
    case("a comment", A, "syntax = \"proto3\"; // x\nmessage M { string a = 1; }", Full, ""),
    case("a field is added", A, message!("string a = 1; int32 b = 2;"), Full, ""),
    case("a field is removed", message!("string a = 1; int32 b = 2;"), A, Full, ""),
    case("a field is renamed", A, message!("string other = 1;"), Full, ""),
    case("a field changes its number", A, message!("string a = 2;"), No, "the number changed from 1 to 2"),
    case("a number is used for another type", A, message!("int32 a = 1;"), No, "from string to int32"),
    case(
        "a removed number is used again for another type",
        message!("string a = 1; int32 b = 2;"),
        message!("string a = 1; string c = 2;"),
        No,
        "field 2: the type changed from int32 to string",
    ),
    case("int32 becomes int64", message!("int32 a = 1;"), message!("int64 a = 1;"), Full, ""),
    case("int32 becomes uint32", message!("int32 a = 1;"), message!("uint32 a = 1;"), Full, ""),
    case("int64 becomes bool", message!("int64 a = 1;"), message!("bool a = 1;"), Full, ""),
    case(
        "int32 becomes sint32",
        message!("int32 a = 1;"),
        message!("sint32 a = 1;"),
        No,
        "from int32 to sint32",
    ),
    case("sint32 becomes sint64", message!("sint32 a = 1;"), message!("sint64 a = 1;"), Full, ""),
    case("int32 becomes fixed32", message!("int32 a = 1;"), message!("fixed32 a = 1;"), No, "fixed32"),
    case("fixed32 becomes sfixed32", message!("fixed32 a = 1;"), message!("sfixed32 a = 1;"), Full, ""),
    case("fixed64 becomes sfixed64", message!("fixed64 a = 1;"), message!("sfixed64 a = 1;"), Full, ""),
    case("fixed32 becomes fixed64", message!("fixed32 a = 1;"), message!("fixed64 a = 1;"), No, "fixed64"),
    case(
        "float becomes double",
        message!("float a = 1;"),
        message!("double a = 1;"),
        No,
        "from float to double",
    ),
    case("float becomes fixed32", message!("float a = 1;"), message!("fixed32 a = 1;"), No, "float"),
    case("string becomes bytes", A, message!("bytes a = 1;"), Full, ""),
    case(
        "an enum becomes int32",
        message!("enum E { X = 0; } E a = 1;"),
        message!("enum E { X = 0; } int32 a = 1;"),
        Full,
        "",
    ),
    case(
        "an enum value is added",
        message!("enum E { X = 0; } E a = 1;"),
        message!("enum E { X = 0; Y = 1; } E a = 1;"),
        Full,
        "",
    ),
    case(
        "an enum value is removed",
        message!("enum E { X = 0; Y = 1; } E a = 1;"),
        message!("enum E { X = 0; } E a = 1;"),
        Full,
        "",
    ),
    case(
        "an enum value changes its number",
        message!("enum E { X = 0; Y = 1; } E a = 1;"),
        message!("enum E { X = 0; Y = 2; } E a = 1;"),
        No,
        "the enum value Y changed its number from 1 to 2",
    ),
    case(
        "one value becomes several",
        A,
        message!("repeated string a = 1;"),
        No,
        "between one value and several",
    ),
    case(
        "several values become one",
        message!("repeated int32 a = 1;"),
        message!("int32 a = 1;"),
        No,
        "several",
    ),
    case(
        "a message type changes",
        message!("message X {} message Y {} X a = 1;"),
        message!("message X {} message Y {} Y a = 1;"),
        No,
        "from M.X to M.Y",
    ),
    case(
        "a message becomes bytes",
        message!("message X {} X a = 1;"),
        message!("message X {} bytes a = 1;"),
        No,
        "from M.X to bytes",
    ),
    case(
        "a nested message gets a field",
        message!("message X {} X a = 1;"),
        message!("message X { int32 v = 1; } X a = 1;"),
        Full,
        "",
    ),
    case(
        "a nested field changes its type",
        message!("message X { int32 v = 1; } X a = 1;"),
        message!("message X { string v = 1; } X a = 1;"),
        No,
        "/M.X/v",
    ),
    case(
        "a nested message is removed",
        message!("message X {} string a = 1;"),
        A,
        Forward,
        "/M.X: the message is gone",
    ),
    case(
        "a message is added",
        A,
        "syntax = \"proto3\"; message M { string a = 1; } message N {}",
        Backward,
        "/N: the message is gone",
    ),
    case(
        "a message is renamed",
        A,
        "syntax = \"proto3\"; message N { string a = 1; }",
        No,
        "the message is gone",
    ),
    case(
        "the package changes",
        A,
        "syntax = \"proto3\"; package p; message M { string a = 1; }",
        No,
        "the package changed",
    ),
    case(
        "a map's value type changes",
        message!("map<string, int32> a = 1;"),
        message!("map<string, string> a = 1;"),
        No,
        "from int32 to string",
    ),
    case(
        "a map's value is widened",
        message!("map<string, int32> a = 1;"),
        message!("map<string, int64> a = 1;"),
        Full,
        "",
    ),
    case(
        "one field moves into a oneof",
        message!("string a = 1; string b = 2;"),
        message!("oneof x { string a = 1; } string b = 2;"),
        Full,
        "",
    ),
    case(
        "two fields move into one oneof",
        message!("string a = 1; string b = 2;"),
        message!("oneof x { string a = 1; string b = 2; }"),
        Forward,
        "alternatives of x",
    ),
    case(
        "a oneof gets an alternative",
        message!("oneof x { string a = 1; }"),
        message!("oneof x { string a = 1; int32 b = 2; }"),
        Full,
        "",
    ),
    case(
        "a reserved number is used",
        message!("string a = 1; reserved 2;"),
        message!("string a = 1; int32 b = 2;"),
        Forward,
        "the number 2 was reserved",
    ),
    case(
        "a reserved name is used",
        message!("string a = 1; reserved \"b\";"),
        message!("string a = 1; int32 b = 2;"),
        Forward,
        "the name was reserved",
    ),
    case(
        "a required field is added",
        proto2!("optional string a = 1;"),
        proto2!("optional string a = 1; required int32 b = 2;"),
        Forward,
        "/M/b: the field is required",
    ),
    case(
        "an optional field becomes required",
        proto2!("optional string a = 1;"),
        proto2!("required string a = 1;"),
        Forward,
        "is required and may be absent",
    ),
];

#[test]
fn every_change_of_a_protobuf_file_has_its_verdict() {
    check(SchemaType::Protobuf, &CASES);
}
