"""Generates the JSON Schema of the pipeline file from the model."""

from datetime import timedelta
from typing import Any

from pydantic.json_schema import GenerateJsonSchema

from icestream.config.model import PipelineConfig
from icestream.config.options.base import NOT_BUILT, schema_name
from icestream.config.values import format_duration

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


class _SchemaGenerator(GenerateJsonSchema):
    """Writes durations, and names of classes, as users of the file know them."""

    schema_dialect = _DIALECT

    def encode_default(self, dft: Any) -> Any:
        if isinstance(dft, timedelta):
            return format_duration(dft)
        return super().encode_default(dft)

    def normalize_name(self, name: str) -> str:
        """Name a definition without `Options`: KafkaSource for `KafkaSourceOptions`."""
        return schema_name(super().normalize_name(name))


def json_schema() -> dict[str, Any]:
    """Return the schema that editors complete from; options not built yet are marked."""
    schema = PipelineConfig.model_json_schema(schema_generator=_SchemaGenerator)
    _mark_not_built(schema)
    return {"$schema": _DIALECT, **schema, "title": "icestream.yml"}


def _mark_not_built(part: Any) -> None:
    if isinstance(part, list):
        for item in part:
            _mark_not_built(item)
    if not isinstance(part, dict):
        return
    mark = part.get(NOT_BUILT)
    if mark is not None:
        note = "not built yet" if isinstance(mark, str) else f"not built yet: {', '.join(mark)}"
        part["description"] = f"{part.get('description', '')} ({note})".strip()
    for item in part.values():
        _mark_not_built(item)
