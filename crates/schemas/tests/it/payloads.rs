//! Payloads against schemas.

use capstan_schemas::{Definition, SchemaType};

#[test]
fn payloads_are_checked_against_their_schema() {
    let avro =
        r#"{"type":"record","name":"R","fields":[{"name":"a","type":"string"},{"name":"b","type":"int"}]}"#;
    let json = r#"{"type":"object","properties":{"n":{"type":"integer"}},"required":["n"]}"#;
    let proto = "syntax = \"proto3\"; message M { string a = 1; }";
    let cases: [(SchemaType, &str, &[u8], Option<&str>); 13] = [
        (SchemaType::Avro, avro, b"\x04hi\x02", None),
        (SchemaType::Avro, avro, b"\x04hi\x02x", Some("1 bytes follow")),
        (SchemaType::Avro, avro, b"\x04h", Some("does not match")),
        (SchemaType::JsonSchema, json, br#"{"n":1}"#, None),
        (SchemaType::JsonSchema, json, br#"{"n":"x"}"#, Some("/n")),
        (SchemaType::JsonSchema, json, b"{", Some("EOF")),
        (SchemaType::Protobuf, proto, b"\x0a\x02hi", None),
        (SchemaType::Protobuf, proto, b"\x0a\x09hi", Some("does not match")),
        (SchemaType::String, "", "grün".as_bytes(), None),
        (SchemaType::String, "", b"\xff", Some("invalid utf-8")),
        (SchemaType::Number, "", b"-12.5", None),
        (SchemaType::Number, "", b"twelve", Some("neither")),
        (SchemaType::Bytes, "", b"\xff\x00", None),
    ];
    for (schema_type, schema, payload, expected) in cases {
        let validator = Definition::parse(schema_type, schema).unwrap().validator().unwrap();
        match (validator.check(payload), expected) {
            (Ok(()), None) => {}
            (Err(error), Some(part)) => assert!(error.to_string().contains(part), "{error}"),
            (found, _) => panic!("{schema_type} {payload:?}: {found:?}"),
        }
    }
}

#[test]
fn a_text_that_is_no_schema_is_refused_with_the_reason() {
    let deep = "{\"not\":".repeat(100) + "{}" + &"}".repeat(100);
    let large = "x".repeat(2 << 20);
    let cases = [
        (SchemaType::Avro, "{", "EOF"),
        (SchemaType::Avro, r#"{"type":"record","name":"R"}"#, "fields"),
        (SchemaType::Avro, r#""nothing""#, "nothing"),
        (SchemaType::JsonSchema, "[]", "an object or a boolean"),
        (SchemaType::JsonSchema, r#"{"type":"strange"}"#, "strange"),
        (SchemaType::JsonSchema, deep.as_str(), "nested deeper"),
        (SchemaType::JsonSchema, large.as_str(), "more than the limit"),
        (SchemaType::Protobuf, "message {", "expected"),
        (SchemaType::Protobuf, "syntax = \"proto3\";", "declares no message"),
        (SchemaType::Protobuf, "syntax = \"proto3\"; import \"other.proto\"; message M {}", "other.proto"),
    ];
    for (schema_type, text, part) in cases {
        let error = Definition::parse(schema_type, text).unwrap_err().to_string();
        assert!(error.contains(part), "{schema_type}: {error}");
    }
}
