"""Types of values in the pipeline file: durations, sizes, times, locations, pass-through maps."""

import os.path
import re
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Literal

from pydantic import (
    AfterValidator,
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    ValidationInfo,
    WithJsonSchema,
)
from pydantic_core import PydanticCustomError

_DURATION_UNITS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_SIZE_UNITS = {"B": 1, "KB": 1 << 10, "MB": 1 << 20, "GB": 1 << 30, "TB": 1 << 40}
_DURATION = re.compile(r"(\d{1,12})(ms|s|m|h|d)")
_SIZE = re.compile(r"(\d{1,15})(B|KB|MB|GB|TB)")


def expected(what: str) -> PydanticCustomError:
    """Make an error whose text never contains the value, so that it may always be shown."""
    return PydanticCustomError("expected", f"expected {what}")


def parse_duration(value: object) -> timedelta:
    """Parse `30s`, `5m`, `1h`, `7d` or `500ms`; a bare number is refused."""
    if isinstance(value, timedelta):
        return value
    match = _DURATION.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise expected("a duration such as 30s, 5m, 1h")
    try:
        return timedelta(milliseconds=int(match[1]) * _DURATION_UNITS[match[2]])
    except OverflowError:
        raise expected("a duration of less than 999999999d") from None


def format_duration(value: timedelta) -> str:
    """Return the shortest spelling that `parse_duration` reads back to the same value."""
    millis = value // timedelta(milliseconds=1)
    for unit, size in reversed(_DURATION_UNITS.items()):
        if millis and millis % size == 0:
            return f"{millis // size}{unit}"
    return "0s"


def parse_size(value: object) -> int:
    """Parse `512MB` as bytes (1 MB = 1024 * 1024, as Spark counts); a bare number is refused."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise expected("a size such as 64KB, 512MB, 2GB")
    return int(match[1]) * _SIZE_UNITS[match[2]]


def _positive(value: timedelta) -> timedelta:
    if value <= timedelta(0):
        raise expected("a duration above zero")
    return value


def _interval(value: object) -> timedelta | Literal["once"]:
    if value == "once":
        return "once"
    if isinstance(value, str) and value.isalpha():
        raise expected("a duration such as 30s, 5m, 1h, or `once`")
    return _positive(parse_duration(value))


def _start(value: object) -> datetime | Literal["earliest", "latest"]:
    if value == "earliest":
        return "earliest"
    if value == "latest":
        return "latest"
    try:
        moment = value if isinstance(value, datetime) else datetime.fromisoformat(str(value))
    except ValueError:
        raise expected("earliest, latest or a timestamp such as 2026-01-31T12:00:00Z") from None
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def spark_text(value: object) -> object:
    """Return a YAML scalar as Spark spells it, "true" for true; anything else unchanged."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, int | float) else value


def _spark_texts(value: object) -> object:
    if isinstance(value, Mapping):
        return {key: spark_text(item) for key, item in value.items()}
    return value


def _located(value: str, info: ValidationInfo) -> str:
    """Make a relative path relative to the pipeline file's folder; URLs are left as they are."""
    folder = (info.context or {}).get("folder")
    if folder is None or ":" in value.split("/", 1)[0]:  # s3://…, file:…
        return value
    return os.path.normpath(Path(folder, value))


def _regex(value: str) -> str:
    try:
        re.compile(value)
    except re.error as error:
        raise ValueError(f"not a regular expression: {error}") from None
    return value


def _text_schema(pattern: str, *examples: str) -> WithJsonSchema:
    return WithJsonSchema({"type": "string", "pattern": pattern, "examples": list(examples)})


_DURATION_PATTERN = "^[0-9]+(ms|s|m|h|d)$"

Duration = Annotated[
    timedelta,
    PlainValidator(parse_duration),
    PlainSerializer(format_duration, when_used="json"),
    _text_schema(_DURATION_PATTERN, "30s", "5m", "1h", "7d"),
]
PositiveDuration = Annotated[Duration, AfterValidator(_positive)]
Interval = Annotated[
    timedelta | Literal["once"],
    PlainValidator(_interval),
    _text_schema("^([0-9]+(ms|s|m|h|d)|once)$", "10s", "1m", "once"),
]
Start = Annotated[
    datetime | Literal["earliest", "latest"],
    PlainValidator(_start),
    _text_schema("^(earliest|latest|[0-9]{4}-.*)$", "earliest", "latest", "2026-01-31T12:00:00Z"),
]
Location = Annotated[str, AfterValidator(_located)]
Regex = Annotated[str, AfterValidator(_regex)]
PassThrough = Annotated[
    dict[str, str],
    BeforeValidator(_spark_texts),
    WithJsonSchema(
        {"type": "object", "additionalProperties": {"type": ["string", "number", "boolean"]}}
    ),
]
