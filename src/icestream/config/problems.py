"""Reports what is wrong with a pipeline file: file, line, option and value as it is written."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel
from pydantic_core import ErrorDetails

from icestream.config.document import Document, Loc, show_path
from icestream.config.model import PipelineConfig
from icestream.config.values import spark_text
from icestream.errors import ConfigError, NotBuilt

_FOREIGN = ("options", "properties", "spark")  # passed through: may hold secrets of any name
_SECRET = ("credential", "token", "password", "url", "uri")
_SEE_SCHEMA = "`icestream schema` prints every option"


@dataclass(frozen=True)
class Problem:
    """One thing that is wrong at one place of the file."""

    loc: Loc
    message: str
    hint: str | None = None
    not_built: bool = False
    quotes_value: bool = False  # the message repeats parts of the value
    key_only: bool = False  # the key itself is the problem, whatever its value


@dataclass(frozen=True)
class ProblemReporter:
    """Turns problems into one error; values that came from `${…}` never reach its text."""

    path: Path
    document: Document
    filled: frozenset[Loc] = frozenset()

    def error(self, problems: Iterable[Problem]) -> ConfigError:
        """Return one error with all problems; a NotBuilt if all are options not built yet."""
        in_order = sorted(map(self._discreet, dict.fromkeys(problems)), key=self._line)
        error_class = NotBuilt if all(p.not_built for p in in_order) else ConfigError
        if len(in_order) == 1:
            return error_class(
                self._text(in_order[0]), where=self._at(in_order[0]), hint=in_order[0].hint
            )
        lines = (f"  {self._at(p)}: {self._text(p)}" for p in in_order)
        if error_class is NotBuilt:
            hint: str | None = "leave these out for now; `icestream schema` marks what is not built"
        else:
            hint = next((p.hint for p in in_order if p.hint), _SEE_SCHEMA)
        return error_class(f"{len(in_order)} errors in {self.path}\n" + "\n".join(lines), hint=hint)

    def _text(self, problem: Problem) -> str:
        """Return one line: the option, its value as it is written, and what is wrong."""
        if not problem.loc:
            return problem.message
        return f"{self._option(problem)}{' ' if problem.not_built else ': '}{problem.message}"

    def _discreet(self, problem: Problem) -> Problem:
        if problem.quotes_value and self._is_filled(problem.loc):
            return Problem(problem.loc, "what it stands for is not accepted here")
        return problem

    def _line(self, problem: Problem) -> int:
        return self.document.line(problem.loc)

    def _option(self, problem: Problem) -> str:
        loc = problem.loc
        name = show_path(loc[-2:]) if isinstance(loc[-1], int) else loc[-1]
        value = None if problem.key_only else spark_text(self.document.get(loc))
        hidden = any(step in _FOREIGN for step in loc[:-1]) or loc[-1] in _SECRET
        if not isinstance(value, str) or (hidden and not self._is_filled(loc)):
            return f"`{name}`"
        value = " ".join(value.split())
        return f"`{name}: {value if len(value) <= 60 else value[:57] + '…'}`"

    def _at(self, problem: Problem) -> str:
        path = f", {show_path(problem.loc)}" if problem.loc else ""
        return f"{self.path}:{self._line(problem)}{path}"

    def _is_filled(self, loc: Loc) -> bool:
        return any(leaf[: len(loc)] == loc for leaf in self.filled)


def from_pydantic(errors: Sequence[ErrorDetails], data: Any) -> list[Problem]:
    """Return the model's errors as problems: plain words, at the paths of the file."""
    located = [(error, _file_loc(error, data)) for error in errors]
    return [
        _plain(error, loc, data)
        for error, loc in located
        # Pydantic counts good entries only: a list of nothing but bad ones is not too short.
        if error["type"] != "too_short" or not _at(data, loc)
    ]


def _file_loc(error: ErrorDetails, data: Any) -> Loc:
    """Return the path in the file: pydantic's, without the tags that it adds for variants."""
    loc: list[str | int] = []
    for index, step in enumerate(error["loc"]):
        is_last = index == len(error["loc"]) - 1
        in_list = isinstance(data, list) and isinstance(step, int) and step < len(data)
        if in_list or (isinstance(data, dict) and step in data):
            data = data[step]
        elif not (is_last and error["type"] == "missing"):
            continue
        loc.append(step)
    return tuple(loc)


def _plain(error: ErrorDetails, loc: Loc, data: Any) -> Problem:  # noqa: C901 (one case for each kind of pydantic error)
    error_type, context = error["type"], error.get("ctx", {})
    match error_type:
        case "extra_forbidden":
            return _unknown_key(loc, data)
        case "missing":
            return Problem(loc, "this key is required")
        case "expected":
            return Problem(loc, error["msg"])
        case "value_error":
            return Problem(loc, str(context["error"]), quotes_value=True)
        case "union_tag_invalid":
            known = str(context["expected_tags"]).replace("'", "")
            return Problem((*loc, "type"), f"unknown type; known: {known}")
        case "union_tag_not_found":
            known = ", ".join(_type_of(model) for model in _models_at((*loc, "type"), data))
            return Problem(loc, f"`type` is required: {known}")
        case "literal_error":
            known = str(context["expected"]).replace("'", "")
            is_type = loc[-1:] == ("type",)
            return Problem(loc, f"unknown type; known: {known}" if is_type else f"expected {known}")
        case "greater_than_equal":
            return Problem(loc, f"expected a whole number, at least {context['ge']}")
        case "string_pattern_mismatch":
            return Problem(loc, f"expected text of the form {context['pattern'].strip('^$')}")
        case "string_type":
            is_number = isinstance(_at(data, loc), int | float)
            return Problem(loc, "expected text", hint="put it in quotes" if is_number else None)
    expected = {
        "tuple_type": "a list such as [a, b]",
        "too_short": "at least one entry",
        "string_too_short": "some text",
        "dict_type": "a mapping, key: value",
        "model_type": "a mapping, key: value",
        "model_attributes_type": "a mapping, key: value",
    }
    for prefix, wanted in (("int", "a whole number"), ("bool", "true or false")):
        if error_type.startswith(prefix):
            return Problem(loc, f"expected {wanted}")
    return Problem(loc, f"expected {expected.get(error_type, 'something else here')}")


def _unknown_key(loc: Loc, data: Any) -> Problem:
    key, models = str(loc[-1]), _models_at(loc, data)
    variant = _variant(models, _at(data, loc[:-1]))
    known = _keys(variant) if variant else []
    owners = [f"`type: {_type_of(model)}`" for model in models if key in _keys(model)]
    if variant and owners:
        return Problem(
            loc, f"this key belongs to {', '.join(owners)}, not to `type: {_type_of(variant)}`"
        )
    close = get_close_matches(key.lower().replace("-", "_"), known, n=1, cutoff=0.6)
    if close:
        return Problem(loc, f"unknown key; did you mean `{close[0]}`?", key_only=True)
    return Problem(loc, "unknown key", f"known keys here: {', '.join(known)}", key_only=True)


def _models_at(loc: Loc, data: Any) -> list[type[BaseModel]]:
    """Return the models that may describe the mapping which holds the last step of a path."""
    models: list[type[BaseModel]] = [PipelineConfig]
    for depth, step in enumerate(loc[:-1]):
        model = _variant(models, _at(data, loc[:depth]))
        fields = {} if model is None else {f.alias or n: f for n, f in model.model_fields.items()}
        if isinstance(step, str) and step in fields:  # otherwise an index or a name of the user's
            models = _models_in(fields[step].annotation)
    return models


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return [annotation]
    return [model for part in get_args(annotation) for model in _models_in(part)]


def _variant(models: list[type[BaseModel]], value: Any) -> type[BaseModel] | None:
    """Return the variant that `type:` names; else the first one, which is the default."""
    type_name = value.get("type") if isinstance(value, dict) else None
    return next((m for m in models if _type_of(m) == type_name), models[0] if models else None)


def _type_of(model: type[BaseModel]) -> str:
    field = model.model_fields.get("type")
    return str(get_args(field.annotation)[0]) if field else ""


def _keys(model: type[BaseModel]) -> list[str]:
    return [field.alias or name for name, field in model.model_fields.items()]


def _at(data: Any, loc: Loc) -> Any:
    return Document(data).get(loc)
