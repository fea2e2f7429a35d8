"""Joins `decimal(12,2)` and `bucket(16, id)` again, which YAML's flow style splits at the comma.

`columns: {amount: decimal(12,2)}` is, to YAML, {amount: "decimal(12", "2)": null}. A piece with an
open bracket is never valid on its own, so joining it with what follows cannot change a good file.
"""

from typing import Any

from ruamel.yaml.nodes import MappingNode, ScalarNode, SequenceNode

_LISTS = ("partition_by", "sort_by")
_NULL = "tag:yaml.org,2002:null"


def rejoin(node: Any, loc: tuple[str | int, ...]) -> None:
    """Join the pieces of one table's columns, partition fields or sort fields, in place."""
    if len(loc) != 3 or loc[0] != "tables":
        return
    is_columns = isinstance(node, MappingNode) and loc[2] == "columns"
    is_list = isinstance(node, SequenceNode) and loc[2] in _LISTS
    if (is_columns or is_list) and node.flow_style:
        node.value = _joined(node.value)


def _joined(items: list[Any]) -> list[Any]:
    kept: list[Any] = []
    for item in items:
        piece = _piece(item)
        if kept and piece is not None and _is_open(_value(kept[-1])):
            _value(kept[-1]).value += f",{piece}"
        else:
            kept.append(item)
    return kept


def _piece(item: Any) -> str | None:
    """Return the text of an item that may belong to the one before; None: it has its own value."""
    if isinstance(item, tuple):
        key, value = item
        return key.value if value.tag == _NULL and not value.value else None
    return item.value if isinstance(item, ScalarNode) else None


def _value(item: Any) -> Any:
    return item[1] if isinstance(item, tuple) else item


def _is_open(node: Any) -> bool:
    if not isinstance(node, ScalarNode) or node.style in ("'", '"'):
        return False
    text = str(node.value)
    return text.count("(") + text.count("<") > text.count(")") + text.count(">")
