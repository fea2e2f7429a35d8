"""Finds what a pipeline asks for that does not exist yet, by the `later` markers of the model."""

from collections.abc import Iterator
from typing import Any

from pydantic import BaseModel

from icestream.config.document import Loc
from icestream.config.options.base import NOT_BUILT
from icestream.config.problems import Problem

_MESSAGE = "is not built yet"


def not_built(part: Any, loc: Loc = ()) -> Iterator[Problem]:
    """Walk what the user set; defaults are never refused."""
    if isinstance(part, BaseModel):
        yield from _in_model(part, loc)
    elif isinstance(part, tuple):
        for at, item in enumerate(part):
            yield from not_built(item, (*loc, at))
    elif isinstance(part, dict):
        for key, item in part.items():
            yield from not_built(item, (*loc, key))


def _in_model(model: BaseModel, loc: Loc) -> Iterator[Problem]:
    variant = _mark(type(model).model_config.get("json_schema_extra"))
    if isinstance(variant, str):
        yield Problem((*loc, "type"), _MESSAGE, hint=variant, not_built=True)
    for name, field in type(model).model_fields.items():
        value = getattr(model, name)
        if name not in model.model_fields_set or value is None:
            continue
        here = (*loc, field.alias or name)
        mark = _mark(field.json_schema_extra)
        if isinstance(mark, dict) and value in mark:
            yield Problem(here, _MESSAGE, hint=mark[value], not_built=True)
        elif isinstance(mark, str):
            yield Problem(here, _MESSAGE, hint=mark, not_built=True, key_only=True)
        else:
            yield from not_built(value, here)


def _mark(extra: object) -> Any:
    return extra.get(NOT_BUILT) if isinstance(extra, dict) else None
