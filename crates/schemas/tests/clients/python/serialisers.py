"""Confluent's serialisers against a schema registry: python serialisers.py URL"""

import json
import sys

from confluent_kafka.schema_registry import Schema, SchemaRegistryClient
from confluent_kafka.schema_registry.avro import AvroDeserializer, AvroSerializer
from confluent_kafka.schema_registry.error import SchemaRegistryError
from confluent_kafka.schema_registry.json_schema import JSONDeserializer, JSONSerializer
from confluent_kafka.schema_registry.protobuf import ProtobufDeserializer, ProtobufSerializer
from confluent_kafka.serialization import MessageField, SerializationContext
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

URL = sys.argv[1]
client = SchemaRegistryClient({"url": URL})
FIRST = '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"}]}'
SECOND = (
    '{"type":"record","name":"Order","fields":[{"name":"id","type":"long"},'
    '{"name":"note","type":"string","default":""}]}'
)
BROKEN = '{"type":"record","name":"Order","fields":[{"name":"must","type":"string"}]}'


def refused(code, call):
    try:
        call()
    except SchemaRegistryError as error:
        assert error.http_status_code == code, error
        return error
    raise AssertionError("it was not refused")


def context(topic):
    return SerializationContext(topic, MessageField.VALUE)


def avro():
    write, read = AvroSerializer(client, FIRST), AvroDeserializer(client, FIRST)
    data = write({"id": 7}, context("avro"))
    assert data[0] == 0, data
    assert read(data, context("avro")) == {"id": 7}
    newer = AvroSerializer(client, SECOND)({"id": 8, "note": "x"}, context("avro"))
    assert data[1:5] != newer[1:5], "each version has an id of its own"
    # A process that has seen neither: ids lead to the schemas that were written with.
    fresh = AvroDeserializer(SchemaRegistryClient({"url": URL}), SECOND)
    assert fresh(data, context("avro")) == {"id": 7, "note": ""}
    assert fresh(newer, context("avro")) == {"id": 8, "note": "x"}


def json_schema():
    text = json.dumps({"title": "Order", "type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]})
    write, read = JSONSerializer(text, client), JSONDeserializer(text, schema_registry_client=client)
    assert read(write({"id": 7}, context("json")), context("json")) == {"id": 7}
    try:
        write({"id": "text"}, context("json"))
    except Exception:
        pass
    else:
        raise AssertionError("a payload that does not fit")


def protobuf():
    file = descriptor_pb2.FileDescriptorProto(name="order.proto", package="shop", syntax="proto3")
    message = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    message.field.add(name="id", number=1, type=field.TYPE_INT64, label=field.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    order = message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))
    conf = {"use.deprecated.format": False}
    write = ProtobufSerializer(order, client, conf)
    read = ProtobufDeserializer(order, conf, client)
    assert read(write(order(id=7), context("protobuf")), context("protobuf")).id == 7


def registry():
    subject = "by-hand"
    first = client.register_schema(subject, Schema(FIRST, "AVRO"))
    assert client.register_schema(subject, Schema(FIRST, "AVRO")) == first
    second = client.register_schema(subject, Schema(SECOND, "AVRO"))
    assert second != first
    assert client.get_versions(subject) == [1, 2]
    assert client.get_latest_version(subject).version == 2
    assert client.get_version(subject, 1).schema_id == first
    assert client.lookup_schema(subject, Schema(SECOND, "AVRO")).version == 2
    assert json.loads(client.get_schema(first).schema_str) == json.loads(FIRST)
    assert subject in client.get_subjects()
    assert client.test_compatibility(subject, Schema(SECOND, "AVRO"))
    assert not client.test_compatibility(subject, Schema(BROKEN, "AVRO"))
    refused(409, lambda: client.register_schema(subject, Schema(BROKEN, "AVRO")))
    refused(422, lambda: client.register_schema(subject, Schema("{not a schema", "AVRO")))
    refused(404, lambda: client.get_latest_version("missing"))
    refused(404, lambda: SchemaRegistryClient({"url": URL}).get_schema(4_000_000))
    assert client.get_compatibility(subject) == "BACKWARD"
    client.set_compatibility(subject, "NONE")
    assert client.get_compatibility(subject) == "NONE"
    client.register_schema(subject, Schema(BROKEN, "AVRO"))
    assert client.delete_version(subject, 3) == 3
    assert client.delete_subject(subject) == [1, 2]
    assert subject not in client.get_subjects()


for check in [registry, avro, json_schema, protobuf]:
    check()
    print("passed:", check.__name__)
print("all passed")
