"""Fills `${NAME}`, `${NAME:-default}`, `${NAME:?why}`, `${file:path}` and `$$` in string values."""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from icestream.config.document import Loc

_PART = re.compile(r"\$\$|\$\{([^}]*)\}|\$\{")
_BODY = re.compile(r"(?P<name>[A-Za-z_][A-Za-z0-9_]*)(?::(?P<how>[-?])(?P<rest>.*))?", re.DOTALL)


class SubstitutionError(Exception):
    """A `${…}` cannot be filled; the text holds names, never values."""

    def __init__(self, what: str, hint: str | None = None) -> None:
        super().__init__(what)
        self.what = what
        self.hint = hint


@dataclass
class Substitution:
    """Data with every `${…}` filled, which values were filled, and with what from outside."""

    data: Any = None
    filled: set[Loc] = field(default_factory=set)
    values: set[str] = field(default_factory=set)
    unresolved: list[tuple[Loc, SubstitutionError]] = field(default_factory=list)


def substitute(data: Any, env: Mapping[str, str], folder: Path) -> Substitution:
    """Fill the string values of plain data; keys are left as they are."""
    result = Substitution()
    result.data = _fill(data, (), env, folder, result)
    return result


def _fill(data: Any, loc: Loc, env: Mapping[str, str], folder: Path, result: Substitution) -> Any:
    if isinstance(data, dict):
        return {k: _fill(v, (*loc, k), env, folder, result) for k, v in data.items()}
    if isinstance(data, list):
        return [_fill(v, (*loc, index), env, folder, result) for index, v in enumerate(data)]
    if not isinstance(data, str) or "$" not in data:
        return data

    def replace(match: re.Match[str]) -> str:
        if match[0] == "$$":
            return "$"
        result.filled.add(loc)
        if match[1] is None:
            raise SubstitutionError("`${` without `}`", "write `$$` for a dollar sign")
        value, is_written_here = _value(match[1], env, folder)
        if value and not is_written_here:
            result.values.add(value)
        return value

    try:
        return _PART.sub(replace, data)
    except SubstitutionError as problem:
        result.unresolved.append((loc, problem))
        return data


def _value(body: str, env: Mapping[str, str], folder: Path) -> tuple[str, bool]:
    """Return the value of one `${…}`, and whether it is a default from the file itself."""
    if body.startswith("file:"):
        return _read(folder / body.removeprefix("file:"), body), False
    match = _BODY.fullmatch(body)
    if match is None:
        raise SubstitutionError(
            f"`${{{body}}}` is not understood",
            "write ${NAME}, ${NAME:-default}, ${NAME:?why}, ${file:path}, or $$ for a dollar sign",
        )
    name, operator, detail = match["name"], match["how"], match["rest"]
    value = env.get(name)
    if value is not None and (value or operator is None):
        return value, False
    if operator == "-":
        return str(detail), True
    why = f": {detail}" if detail else ""
    hint = f"export {name}=…" + ("" if operator else f", or write ${{{name}:-default}}")
    raise SubstitutionError(f"the environment variable `{name}` is not set{why}", hint)


def _read(path: Path, body: str) -> str:
    try:
        return path.read_text(encoding="utf-8").removesuffix("\n")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise SubstitutionError(f"`${{{body}}}` cannot be read: {reason.lower()}") from None
