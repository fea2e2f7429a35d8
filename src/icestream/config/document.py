"""Reads YAML (and so JSON) text as plain data, and remembers the line of every key."""

import re
from dataclasses import dataclass, field
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from icestream.config.flow import rejoin

Loc = tuple[str | int, ...]

_TAG = "tag:yaml.org,2002:"
_AS_TEXT = (f"{_TAG}str", f"{_TAG}timestamp")
_AS_VALUE = tuple(_TAG + kind for kind in ("int", "float", "bool", "null"))
_MERGE = f"{_TAG}merge"


class DocumentError(Exception):
    """The text is not YAML that we accept."""

    def __init__(self, what: str, line: int) -> None:
        super().__init__(what)
        self.what = what
        self.line = line


@dataclass
class Document:
    """The data of a file as it is written, and the line of each part."""

    data: Any = None
    lines: dict[Loc, int] = field(default_factory=dict)

    def line(self, loc: Loc) -> int:
        """Return the line of a key, or of the nearest part around it."""
        while loc and loc not in self.lines:
            loc = loc[:-1]
        return self.lines.get(loc, 1)

    def get(self, loc: Loc) -> Any:
        """Return the value at a path as it is written; None: there is none."""
        value = self.data
        for step in loc:
            try:
                value = value[step]
            except (KeyError, IndexError, TypeError):
                return None
        return value


def show_path(loc: Loc) -> str:
    """Write a path for messages: `tables[0].partition_by` for ("tables", 0, "partition_by")."""
    text = ""
    for step in loc:
        if isinstance(step, int):
            text += f"[{step}]"
        elif re.fullmatch(r"[\w-]+", step):
            text += f".{step}" if text else step
        else:
            text += f'["{step}"]'
    return text


def parse(text: str) -> Document:
    """Read one YAML document; no tags, no duplicate keys, only text as keys."""
    yaml = YAML(typ="safe", pure=True)
    try:
        node = yaml.compose(text)
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        what = error.problem or error.context or "not readable"
        raise DocumentError(f"not valid YAML: {what}", mark.line + 1 if mark else 1) from None
    except YAMLError as error:  # a character that YAML does not allow
        position = getattr(error, "position", 0)
        raise DocumentError("not valid YAML: special characters are not allowed",
                            text.count("\n", 0, position) + 1) from None  # fmt: skip
    document = Document()
    if node is not None:
        document.data = _DocumentBuilder(yaml, document).build(node, ())
    return document


class _DocumentBuilder:
    """Turns YAML nodes into plain data and notes their lines."""

    def __init__(self, yaml: YAML, document: Document) -> None:
        self._yaml = yaml
        self._lines = document.lines
        self._open: list[Node] = []

    def build(self, node: Node, loc: Loc) -> Any:
        self._lines.setdefault(loc, node.start_mark.line + 1)
        if any(node is outer for outer in self._open):
            raise DocumentError("an anchor that contains itself", node.start_mark.line + 1)
        self._open.append(node)
        rejoin(node, loc)
        try:
            if isinstance(node, ScalarNode):
                return self._scalar(node)
            if isinstance(node, SequenceNode) and node.tag == f"{_TAG}seq":
                return [self.build(item, (*loc, index)) for index, item in enumerate(node.value)]
            if isinstance(node, MappingNode) and node.tag == f"{_TAG}map":
                return self._mapping(node, loc)
        finally:
            self._open.pop()
        raise self._tagged(node)

    def _scalar(self, node: ScalarNode) -> Any:
        if node.tag in _AS_TEXT:
            return _text(node)
        if node.tag not in _AS_VALUE:
            raise self._tagged(node)
        try:
            return self._yaml.constructor.construct_object(node)
        except (ValueError, KeyError):
            raise DocumentError(f"`{node.value}` is not a {node.tag.removeprefix(_TAG)}",
                                node.start_mark.line + 1) from None  # fmt: skip

    def _mapping(self, node: MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        merged: dict[str, Any] = {}
        key_lines: dict[str, int] = {}
        for key, value in node.value:
            if key.tag == _MERGE:  # first, so that the lines of the mapping's own keys win
                merged = {**self._merged(value, loc), **merged}
        for key, value in node.value:
            line = key.start_mark.line + 1
            if key.tag == _MERGE:
                continue
            if not isinstance(key, ScalarNode) or key.tag not in _AS_TEXT:
                raise DocumentError("a key must be text; put it in quotes", line)
            name = _text(key)
            if name in key_lines:
                raise DocumentError(
                    f"`{show_path((*loc, name))}` is there twice, first on line {key_lines[name]}",
                    line,
                )
            key_lines[name] = line
            self._lines[*loc, name] = line
            data[name] = self.build(value, (*loc, name))
        return {**merged, **data}

    def _merged(self, node: Node, loc: Loc) -> dict[str, Any]:
        parts = node.value if isinstance(node, SequenceNode) else [node]
        merged: dict[str, Any] = {}
        for part in parts:
            if not isinstance(part, MappingNode):
                raise DocumentError("`<<` takes a mapping", node.start_mark.line + 1)
            merged = {**self.build(part, loc), **merged}
        return merged

    @staticmethod
    def _tagged(node: Node) -> DocumentError:
        return DocumentError(f"the tag `{node.tag}` is not allowed", node.start_mark.line + 1)


def _text(node: ScalarNode) -> str:
    """Return a scalar's text; joins surrogate pairs, as which JSON escapes rare characters."""
    text: str = node.value
    try:
        return text.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise DocumentError(
            "not valid YAML: half a character, as in `\\ud800`", node.start_mark.line + 1
        ) from None
