//! JSON Schema: what an earlier document may contain that a reader refuses.

use capstan_schemas::SchemaType;

use crate::cases::Verdict::{Backward, Forward, Full, No};
use crate::cases::{Case, case, check};

/// An object with these properties and further keywords.
macro_rules! object {
    ($properties:literal) => {
        concat!(r#"{"type":"object","properties":{"#, $properties, "}}")
    };
    ($properties:literal, $rest:literal) => {
        concat!(r#"{"type":"object","properties":{"#, $properties, "},", $rest, "}")
    };
}

const NAME: &str = object!(r#""name":{"type":"string"}"#);

const CASES: [Case; 45] = [
    case("the same schema", NAME, NAME, Full, ""),
    case("a title", NAME, object!(r#""name":{"type":"string","title":"t"}"#), Full, ""),
    case(
        "an optional property is added",
        NAME,
        object!(r#""name":{"type":"string"},"age":{"type":"integer"}"#),
        Full,
        "",
    ),
    case(
        "a required property is added",
        NAME,
        object!(r#""name":{"type":"string"},"age":{"type":"integer"}"#, r#""required":["age"]"#),
        Forward,
        "/age: the property is required",
    ),
    case(
        "a property becomes required",
        NAME,
        object!(r#""name":{"type":"string"}"#, r#""required":["name"]"#),
        Forward,
        "/name: the property is required",
    ),
    case(
        "a property is no longer required",
        object!(r#""name":{"type":"string"}"#, r#""required":["name"]"#),
        NAME,
        Backward,
        "/name",
    ),
    case(
        "an optional property is removed",
        object!(r#""name":{"type":"string"},"age":{"type":"integer"}"#),
        NAME,
        Full,
        "",
    ),
    case(
        "a required property is removed",
        object!(r#""a":{"type":"string"}"#, r#""required":["a"]"#),
        object!(""),
        Backward,
        "/a",
    ),
    case(
        "a property is removed from a closed object",
        object!(r#""a":{}"#, r#""additionalProperties":false"#),
        object!("", r#""additionalProperties":false"#),
        Forward,
        "/a: the property is gone",
    ),
    case(
        "a property is added to a closed object",
        object!("", r#""additionalProperties":false"#),
        object!(r#""a":{"type":"string"}"#, r#""additionalProperties":false"#),
        Backward,
        "/a: the property is gone",
    ),
    case(
        "an object is closed",
        NAME,
        object!(r#""name":{"type":"string"}"#, r#""additionalProperties":false"#),
        Forward,
        "additional properties are no longer allowed",
    ),
    case(
        "an object is opened",
        object!(r#""name":{"type":"string"}"#, r#""additionalProperties":false"#),
        NAME,
        Backward,
        "additional properties",
    ),
    case(
        "other properties get a type",
        NAME,
        object!(r#""name":{"type":"string"}"#, r#""additionalProperties":{"type":"string"}"#),
        Forward,
        "/additionalProperties",
    ),
    case(
        "string becomes integer",
        r#"{"type":"string"}"#,
        r#"{"type":"integer"}"#,
        No,
        "string is no longer accepted",
    ),
    case(
        "integer becomes number",
        r#"{"type":"integer"}"#,
        r#"{"type":"number"}"#,
        Backward,
        "number is no longer accepted",
    ),
    case(
        "number becomes integer",
        r#"{"type":"number"}"#,
        r#"{"type":"integer"}"#,
        Forward,
        "number is no longer accepted, only integer",
    ),
    case(
        "a type is added",
        r#"{"type":"string"}"#,
        r#"{"type":["string","null"]}"#,
        Backward,
        "null is no longer accepted",
    ),
    case("a type is removed", r#"{"type":["string","null"]}"#, r#"{"type":"string"}"#, Forward, "null"),
    case("a type is given to anything", r#"{}"#, r#"{"type":"object"}"#, Forward, "only object"),
    case("everything is allowed", r#"{"type":"string"}"#, "true", Backward, ""),
    case("nothing is allowed", r#"{"type":"string"}"#, "false", Forward, "allows nothing"),
    case(
        "a property changes its type",
        NAME,
        object!(r#""name":{"type":"integer"}"#),
        No,
        "/name: string is no longer accepted",
    ),
    case(
        "a nested property becomes required",
        object!(r#""a":{"type":"object","properties":{"b":{}}}"#),
        object!(r#""a":{"type":"object","properties":{"b":{}},"required":["b"]}"#),
        Forward,
        "/a/b",
    ),
    case(
        "an enum grows",
        r#"{"enum":["a"]}"#,
        r#"{"enum":["a","b"]}"#,
        Backward,
        r#"the value "b" is no longer accepted"#,
    ),
    case("an enum shrinks", r#"{"enum":["a","b"]}"#, r#"{"enum":["a"]}"#, Forward, r#"the value "b""#),
    case(
        "an enum is introduced",
        r#"{"type":"string"}"#,
        r#"{"type":"string","enum":["a"]}"#,
        Forward,
        "only some values",
    ),
    case("a const becomes an enum", r#"{"const":1}"#, r#"{"enum":[1,2]}"#, Backward, "the value 2"),
    case(
        "minimum is raised",
        r#"{"type":"number","minimum":0}"#,
        r#"{"type":"number","minimum":1}"#,
        Forward,
        "minimum is raised to 1",
    ),
    case(
        "minimum is lowered",
        r#"{"type":"number","minimum":1}"#,
        r#"{"type":"number","minimum":0}"#,
        Backward,
        "minimum is raised",
    ),
    case(
        "maximum is lowered",
        r#"{"type":"number","maximum":9}"#,
        r#"{"type":"number","maximum":5}"#,
        Forward,
        "maximum is lowered to 5",
    ),
    case(
        "maximum is introduced",
        r#"{"type":"number"}"#,
        r#"{"type":"number","maximum":5}"#,
        Forward,
        "maximum",
    ),
    case(
        "maxLength is raised",
        r#"{"type":"string","maxLength":5}"#,
        r#"{"type":"string","maxLength":9}"#,
        Backward,
        "maxLength is lowered",
    ),
    case(
        "minLength is introduced",
        r#"{"type":"string"}"#,
        r#"{"type":"string","minLength":1}"#,
        Forward,
        "minLength",
    ),
    case("minLength of zero", r#"{"type":"string"}"#, r#"{"type":"string","minLength":0}"#, Full, ""),
    case(
        "minItems is raised",
        r#"{"type":"array","minItems":1}"#,
        r#"{"type":"array","minItems":2}"#,
        Forward,
        "minItems",
    ),
    case(
        "items must be unique",
        r#"{"type":"array"}"#,
        r#"{"type":"array","uniqueItems":true}"#,
        Forward,
        "unique",
    ),
    case(
        "items get a type",
        r#"{"type":"array"}"#,
        r#"{"type":"array","items":{"type":"string"}}"#,
        Forward,
        "/items",
    ),
    case(
        "items change their type",
        r#"{"type":"array","items":{"type":"string"}}"#,
        r#"{"type":"array","items":{"type":"integer"}}"#,
        No,
        "/items: string",
    ),
    case(
        "an alternative is added",
        r#"{"anyOf":[{"type":"string"}]}"#,
        r#"{"anyOf":[{"type":"string"},{"type":"integer"}]}"#,
        Backward,
        "the reader rejects the alternative",
    ),
    case(
        "an alternative is removed",
        r#"{"oneOf":[{"type":"string"},{"type":"integer"}]}"#,
        r#"{"oneOf":[{"type":"string"}]}"#,
        Forward,
        r#"{"type":"integer"}"#,
    ),
    case(
        "a type becomes one of two alternatives",
        r#"{"type":"string"}"#,
        r#"{"anyOf":[{"type":"string"},{"type":"null"}]}"#,
        Backward,
        "alternative",
    ),
    case(
        "a pattern is introduced",
        r#"{"type":"string"}"#,
        r#"{"type":"string","pattern":"^a"}"#,
        Forward,
        "pattern differs",
    ),
    case(
        "a pattern changes",
        r#"{"type":"string","pattern":"^b"}"#,
        r#"{"type":"string","pattern":"^a"}"#,
        No,
        "cannot be proved",
    ),
    case(
        "a definition behind a reference changes",
        r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"integer"}}}"##,
        r##"{"$ref":"#/$defs/n","$defs":{"n":{"type":"number"}}}"##,
        Backward,
        "number",
    ),
    case(
        "a recursive schema gets an optional property",
        r##"{"type":"object","properties":{"next":{"$ref":"#"}}}"##,
        r##"{"type":"object","properties":{"next":{"$ref":"#"},"v":{"type":"integer"}}}"##,
        Full,
        "",
    ),
];

#[test]
fn every_change_of_a_json_schema_has_its_verdict() {
    check(SchemaType::JsonSchema, &CASES);
}
