"""Options of `source.format:`: how the records are encoded."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from icestream.config.options.base import Model, later


class SchemaRegistry(Model):
    """Where the schemas of the records are kept."""

    url: str = Field(description="Address of the schema registry", repr=False)


class RawFormat(Model):
    """Key and value as bytes."""

    type: Literal["raw"] = Field(description="Key and value as bytes")


class JsonFormat(Model):
    """One JSON object per record."""

    type: Literal["json"] = Field("json", description="One JSON object per record")


class AvroFormat(Model):
    """Avro with a schema registry."""

    model_config = ConfigDict(json_schema_extra=later("use `type: json` or `type: raw`"))

    type: Literal["avro"] = Field(description="Avro with a schema registry")
    schema_registry: SchemaRegistry = Field(description="Schema registry of the records")


class ProtobufFormat(Model):
    """Protobuf with a schema registry."""

    model_config = ConfigDict(json_schema_extra=later("use `type: json` or `type: raw`"))

    type: Literal["protobuf"] = Field(description="Protobuf with a schema registry")
    schema_registry: SchemaRegistry = Field(description="Schema registry of the records")


class DebeziumFormat(Model):
    """Debezium change events: JSON, or Avro with a schema registry."""

    model_config = ConfigDict(json_schema_extra=later("use `type: json`: it keeps the envelope"))

    type: Literal["debezium"] = Field(description="Debezium change events, JSON or Avro")
    schema_registry: SchemaRegistry | None = Field(
        None, description="Schema registry of Avro events; without it the events are JSON"
    )


Format = Annotated[
    RawFormat | JsonFormat | AvroFormat | ProtobufFormat | DebeziumFormat,
    Field(discriminator="type"),
]
