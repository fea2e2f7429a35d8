"""Options of `source.format:`: how the records are encoded."""

from typing import Annotated, Literal

from pydantic import ConfigDict, Field

from icestream.config.options.base import Model, later


class SchemaRegistry(Model):
    """Where the schemas of the records are kept."""

    url: str = Field(description="Address of the schema registry", repr=False)


class RawFormatOptions(Model):
    """Key and value as bytes."""

    type: Literal["raw"] = Field(description="Key and value as bytes")


class JsonFormatOptions(Model):
    """One JSON object per record."""

    type: Literal["json"] = Field("json", description="One JSON object per record")


class AvroFormatOptions(Model):
    """Avro with a schema registry."""

    model_config = ConfigDict(json_schema_extra=later("use `type: json` or `type: raw`"))

    type: Literal["avro"] = Field(description="Avro with a schema registry")
    schema_registry: SchemaRegistry = Field(description="Schema registry of the records")


class ProtobufFormatOptions(Model):
    """Protobuf with a schema registry."""

    model_config = ConfigDict(json_schema_extra=later("use `type: json` or `type: raw`"))

    type: Literal["protobuf"] = Field(description="Protobuf with a schema registry")
    schema_registry: SchemaRegistry = Field(description="Schema registry of the records")


class DebeziumFormatOptions(Model):
    """Debezium change events: JSON, or Avro with a schema registry."""

    type: Literal["debezium"] = Field(description="Debezium change events, JSON or Avro")
    schema_registry: SchemaRegistry | None = Field(
        None,
        description="Schema registry of Avro events; without it the events are JSON",
        json_schema_extra=later("let the connector write JSON"),
    )
    flattened: bool | None = Field(
        None,
        description="Rows without an envelope (ExtractNewRecordState); default: known by __op or "
        "__deleted. With true every record is a row, and a null value deletes its key",
    )
    decimal_handling_mode: Literal["precise", "string", "double"] = Field(
        "precise", description="As the connector has it, for events without embedded schemas"
    )
    binary_handling_mode: Literal["base64", "base64-url-safe", "hex"] = Field(
        "base64", description="How the connector writes bytes, for binary columns"
    )
    time_units: dict[str, Literal["ms", "us", "ns"]] = Field(
        default_factory=dict,
        description="Unit of times and timestamps that are numbers, by column (`*`: all others), "
        "for events without embedded schemas",
    )
    unavailable_value_placeholder: str = Field(
        "__debezium_unavailable_value",
        min_length=1,
        description="What the connector writes for a value that an event does not carry",
    )


Format = Annotated[
    RawFormatOptions
    | JsonFormatOptions
    | AvroFormatOptions
    | ProtobufFormatOptions
    | DebeziumFormatOptions,
    Field(discriminator="type"),
]
