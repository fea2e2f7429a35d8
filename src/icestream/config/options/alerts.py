"""Options of `alerts:`: who is told when a table is in trouble."""

from datetime import timedelta
from typing import Literal

from pydantic import Field, SecretStr, ValidationInfo, field_validator

from icestream.config.options.base import Model, Names
from icestream.config.values import Duration, expected, parse_duration, parse_size

# The Prometheus names without `icestream_` and the unit.
Metric = Literal[
    "freshness",
    "source_lag_records",
    "rows",
    "commits",
    "commit_duration",
    "data_files",
    "average_file_size",
    "compaction_lag_files",
    "quarantined_rows",
    "snapshots",
]
_DURATION_METRICS = ("freshness", "commit_duration")
_SIZE_METRICS = ("average_file_size",)


class WebhookChannel(Model):
    """Alerts as a POST with JSON."""

    type: Literal["webhook"] = Field(description="A POST with JSON")
    url: SecretStr = Field(description="Address to post to")


# One variant so far; a second one makes it a union with `Field(discriminator="type")`.
Channel = WebhookChannel


class AlertRule(Model):
    """When an alert is sent, and to whom."""

    metric: Metric = Field(description="Metric to look at")
    above: timedelta | int | float = Field(
        description="Alert above this: a duration, a size or a number, as the metric needs",
        json_schema_extra={"anyOf": [{"type": "string"}, {"type": "number"}]},
    )
    for_: Duration = Field(timedelta(0), alias="for", description="Alert only if it lasts so long")
    to: Names = Field(min_length=1, description="Channels that are told")

    @field_validator("above", mode="plain")
    @classmethod
    def _above(cls, value: object, info: ValidationInfo) -> timedelta | int | float:
        metric = info.data.get("metric")
        if metric in _DURATION_METRICS:
            return parse_duration(value)
        if metric in _SIZE_METRICS:
            return parse_size(value)
        try:
            if isinstance(value, str | int | float) and not isinstance(value, bool):
                return float(value) if isinstance(value, str) else value
        except ValueError:
            pass
        raise expected("a number")


class Alerts(Model):
    """Who is told when a table is in trouble."""

    channels: dict[str, Channel] = Field(
        default_factory=dict, description="Where alerts go, by name"
    )
    rules: tuple[AlertRule, ...] = Field((), description="What is worth an alert")
