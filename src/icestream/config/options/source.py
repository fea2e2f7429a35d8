"""Options of `source:`: where the records come from."""

from typing import Annotated, ClassVar, Literal

from pydantic import ConfigDict, Field, SecretStr

from icestream.config.options.base import Model, Names, later
from icestream.config.options.format import Format, JsonFormatOptions
from icestream.config.values import Location, PassThrough, Regex, Start


class SourceBase(Model):
    """What every source has."""

    max_records_per_commit: int = Field(
        5_000_000, ge=1, description="Most records that one commit takes"
    )
    format: Format = Field(
        default_factory=JsonFormatOptions, description="How the records are encoded"
    )


class OutsideSource(SourceBase):
    """A source that holds records before we look."""

    start: Start = Field(
        "earliest",
        description="Where a table without a marker begins: earliest, latest or a timestamp (UTC)",
    )


class ReaderSource(OutsideSource):
    """A source that one of Spark's own readers reads."""

    options: PassThrough = Field(
        default_factory=dict, description="Spark reader options, as they are", repr=False
    )


class BrokerSource(ReaderSource):
    """A source with topics."""

    topics: Names | None = Field(None, min_length=1, description="Topics to read")
    topic_pattern: Regex | None = Field(
        None, description="Regular expression of the topics to read, instead of `topics`"
    )


class KafkaSourceOptions(BrokerSource):
    """Apache Kafka."""

    type: Literal["kafka"] = Field(description="Apache Kafka")
    bootstrap_servers: str = Field(description="Brokers, host:port, separated by commas")
    include: tuple[Literal["key", "headers"], ...] = Field(
        (), description="Parts of the records to keep as columns: `_src_key`, `_src_headers`"
    )


class FilesSourceOptions(OutsideSource):
    """Files of lines that appear in a folder."""

    type: Literal["files"] = Field(description="Files of lines that appear in a folder")
    path: Location = Field(description="Folder to read")
    pattern: str = Field("*", description="Names of the files to read, with * and ?")


class GeneratorSourceOptions(SourceBase):
    """Made-up shop events, the same for the same seed."""

    start: ClassVar[Literal["earliest"]] = "earliest"

    type: Literal["generator"] = Field(description="Made-up shop events")
    topics: tuple[Literal["page_events", "order_changes"], ...] = Field(
        ("page_events", "order_changes"), min_length=1, description="Topics to make"
    )
    rows: int | None = Field(None, ge=1, description="Stop after so many rows; default: never")
    rate: int | None = Field(None, ge=1, description="Rows per second; default: at full speed")
    seed: int = Field(0, description="Another seed makes other rows")
    malformed: float = Field(
        0.0, ge=0, le=1, description="Share of the records that are cut off, to see them set aside"
    )


class PostgresSourceOptions(ReaderSource):
    """The log of a PostgreSQL database."""

    model_config = ConfigDict(json_schema_extra=later("use `type: files` or `type: generator`"))

    type: Literal["postgres"] = Field(description="The log of a PostgreSQL database")
    url: SecretStr = Field(description="URL of the database")
    tables: Names = Field(min_length=1, description="Tables to read, schema.table")
    publication: str | None = Field(None, description="Publication to read")


class MysqlSourceOptions(ReaderSource):
    """The log of a MySQL database."""

    model_config = ConfigDict(json_schema_extra=later("use `type: files` or `type: generator`"))

    type: Literal["mysql"] = Field(description="The log of a MySQL database")
    url: SecretStr = Field(description="URL of the database")
    tables: Names = Field(min_length=1, description="Tables to read, database.table")
    server_id: int | None = Field(None, ge=1, description="Replica id to read the log with")


class KinesisSourceOptions(BrokerSource):
    """Amazon Kinesis; a stream is a topic."""

    model_config = ConfigDict(json_schema_extra=later("use `type: files` or `type: generator`"))

    type: Literal["kinesis"] = Field(description="Amazon Kinesis; a stream is a topic")
    region: str = Field(description="AWS region of the streams")


class PulsarSourceOptions(BrokerSource):
    """Apache Pulsar."""

    model_config = ConfigDict(json_schema_extra=later("use `type: files` or `type: generator`"))

    type: Literal["pulsar"] = Field(description="Apache Pulsar")
    url: str = Field(description="Service URL of the cluster", repr=False)


Source = Annotated[
    KafkaSourceOptions
    | FilesSourceOptions
    | GeneratorSourceOptions
    | PostgresSourceOptions
    | MysqlSourceOptions
    | KinesisSourceOptions
    | PulsarSourceOptions,
    Field(discriminator="type"),
]
