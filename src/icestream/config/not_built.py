"""Finds options of a pipeline that are not built yet, by the `later` markers of the model."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from icestream.config.document import Loc
from icestream.config.options.base import NOT_BUILT
from icestream.config.problems import Problem

_MESSAGE = "is not built yet"


def not_built(part: Any, loc: Loc = ()) -> Iterator[Problem]:
    """Yield a problem for each option that the user set and that is not built yet."""
    if isinstance(part, BaseModel):
        yield from _in_model(part, loc)
    elif isinstance(part, tuple):
        for index, item in enumerate(part):
            yield from not_built(item, (*loc, index))
    elif isinstance(part, dict):
        for key, item in part.items():
            yield from not_built(item, (*loc, key))


def _in_model(model: BaseModel, loc: Loc) -> Iterator[Problem]:
    variant_mark = _mark(type(model).model_config.get("json_schema_extra"))
    if isinstance(variant_mark, str):
        yield Problem((*loc, "type"), _MESSAGE, hint=variant_mark, not_built=True)
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name not in model.model_fields_set or value is None:
            continue
        field_loc = (*loc, field.alias or name)
        mark = _mark(field.json_schema_extra)
        if isinstance(mark, dict) and value in mark:
            yield Problem(field_loc, _MESSAGE, hint=mark[value], not_built=True)
        elif isinstance(mark, str):
            yield Problem(field_loc, _MESSAGE, hint=mark, not_built=True, key_only=True)
        else:
            yield from not_built(value, field_loc)


def _mark(extra: object) -> Any:
    return extra.get(NOT_BUILT) if isinstance(extra, dict) else None
