"""Pure column rules: (table schema, structure of incoming JSON, rule) → new fields or refusals."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Literal, TypeAlias

from pyiceberg.schema import Schema, assign_fresh_schema_ids
from pyiceberg.types import (
    BinaryType,
    BooleanType,
    DecimalType,
    DoubleType,
    FloatType,
    IcebergType,
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)

Rule: TypeAlias = Literal["evolve", "freeze", "ignore"]
# What DuckDB's `json_group_structure` says: a type name, [element] or {key: structure}.
Structure: TypeAlias = "str | list[Structure] | dict[str, Structure]"

# One object may hold this many names, known and new together. Data that uses ids as keys would
# otherwise add columns without end.
MAX_FIELDS = 2000
MAX_NAME = 255
# What is nested deeper stays JSON text: readers of a table's metadata give up at some 60 levels.
MAX_DEPTH = 32

ICEBERG_NAMES = frozenset(
    {
        "_file",
        "_pos",
        "_partition",
        "_spec_id",
        "_deleted",
        "_row_id",
        "_last_updated_sequence_number",
    }
)
METADATA_COLUMNS = (
    NestedField(1, "_src_topic", StringType()),
    NestedField(2, "_src_partition", IntegerType()),
    NestedField(3, "_src_offset", LongType()),
    NestedField(4, "_src_timestamp", TimestamptzType()),
    NestedField(5, "_ingested_at", TimestamptzType()),
)
# What `source.include` adds to them.
INCLUDED_COLUMNS = {
    "key": NestedField(6, "_src_key", BinaryType()),
    "headers": NestedField(
        7,
        "_src_headers",
        ListType(
            8,
            StructType(NestedField(9, "key", StringType()), NestedField(10, "value", BinaryType())),
        ),
    ),
}
# What upsert tables have besides.
SEQUENCE_COLUMN = NestedField(11, "_src_sequence", BinaryType())
DELETED_COLUMN = NestedField(12, "_is_deleted", BooleanType())
METADATA_NAMES = frozenset(f.name for f in (*METADATA_COLUMNS, *INCLUDED_COLUMNS.values()))
OUR_NAMES = METADATA_NAMES | {SEQUENCE_COLUMN.name, DELETED_COLUMN.name}

QUARANTINE_SCHEMA = Schema(
    NestedField(1, "topic", StringType()),
    NestedField(2, "partition", IntegerType()),
    NestedField(3, "offset", LongType()),
    NestedField(4, "timestamp", TimestamptzType()),
    NestedField(5, "key", BinaryType()),
    NestedField(6, "value", BinaryType()),
    NestedField(7, "error", StringType()),
    NestedField(8, "stage", StringType()),
    NestedField(9, "pipeline", StringType()),
    NestedField(10, "ingested_at", TimestamptzType()),
)

_TYPES: dict[str, type[IcebergType]] = {
    "BOOLEAN": BooleanType,
    "UBIGINT": LongType,
    "BIGINT": LongType,
    "HUGEINT": LongType,
    "DOUBLE": DoubleType,
}


@dataclass(frozen=True)
class NewField:
    """A column that the table lacks; `parent` is Iceberg's path: ("items", "element")."""

    parent: tuple[str, ...]
    name: str
    type: IcebergType
    doc: str | None = None  # the source's comment


@dataclass(frozen=True)
class SchemaComparison:
    """What a structure asks of a table: fields to add, and dotted names → why they may not be."""

    new: tuple[NewField, ...] = ()
    refused: dict[str, str] = field(default_factory=dict)


def dump_new_fields(fields: Iterable[NewField]) -> str:
    """Write new fields as JSON text, the form in which a task hands them to the driver."""
    return json.dumps(
        [
            {
                "parent": f.parent,
                "name": f.name,
                "type": json.loads(f.type.model_dump_json()),
                "doc": f.doc,
            }
            for f in fields
        ]
    )


def load_new_fields(text: str) -> list[NewField]:
    """Read what `dump_new_fields` wrote."""
    return [
        NewField(
            tuple(f["parent"]),
            f["name"],
            IcebergType.model_validate_json(json.dumps(f["type"])),
            f["doc"],
        )
        for f in json.loads(text)
    ]


def merge_new_fields(seen: Iterable[Sequence[NewField]]) -> list[NewField]:
    """Merge what several tasks saw, up to MAX_FIELDS for one parent.

    Of names that differ only in case the first one stays.
    """
    merged: dict[tuple[tuple[str, ...], str], NewField] = {}
    sizes: Counter[tuple[str, ...]] = Counter()
    for new in (f for fields in seen for f in fields):
        key = (new.parent, new.name.lower())
        old = merged.get(key)
        if old is None and sizes[new.parent] < MAX_FIELDS:
            merged[key] = new
            sizes[new.parent] += 1
        elif old is not None and old.name == new.name:
            kind = merge_types(old.type, new.type)
            merged[key] = NewField(new.parent, new.name, kind, old.doc or new.doc)
    return list(merged.values())


def with_new_fields(schema: Schema, new: Iterable[NewField]) -> Schema:
    """Give the schema that a table has after these fields were added; ids are numbered anew."""
    whole: IcebergType = schema.as_struct()
    for each in new:
        whole = _with_field(whole, each.parent, NestedField(0, each.name, each.type))
    return assign_fresh_schema_ids(Schema(*whole.fields))  # type: ignore[attr-defined]


def _with_field(kind: IcebergType, parent: tuple[str, ...], new: NestedField) -> IcebergType:
    match kind:
        case ListType() if parent:
            return ListType(
                kind.element_id,
                _with_field(kind.element_type, parent[1:], new),
                kind.element_required,
            )
        case MapType() if parent:
            value = _with_field(kind.value_type, parent[1:], new)
            return MapType(kind.key_id, kind.key_type, kind.value_id, value, kind.value_required)
        case StructType() if parent:
            return StructType(
                *(
                    NestedField(
                        field.field_id,
                        field.name,
                        _with_field(field.field_type, parent[1:], new),
                        field.required,
                        field.doc,
                    )
                    if field.name == parent[0]
                    else field
                    for field in kind.fields
                )
            )
        case StructType():
            return StructType(*kind.fields, new)
    return kind


def merge_types(one: IcebergType, two: IcebergType) -> IcebergType:
    """Give the narrowest type that holds both: equal, double, union of structs, else string."""
    return _number(_merge(_number(one), _number(two)))


def infer(structure: Structure, depth: int = 0) -> IcebergType | None:
    """Give the type of a new column, or None while only nulls and empty lists were seen."""
    kind = _infer(structure, depth)
    return None if kind is None else _number(kind)


def structure_of(value: object) -> Structure:
    """Describe a parsed value as DuckDB would, but show integers beyond a long as VARCHAR."""
    match value:
        case None:
            return "NULL"
        case bool():
            return "BOOLEAN"
        case int():
            return "BIGINT" if -(2**63) <= value < 2**63 else "VARCHAR"
        case float():
            return "DOUBLE"
        case dict():
            return {k: structure_of(v) for k, v in value.items()} or "JSON"
        case list():
            kinds = {json.dumps(s): s for s in map(structure_of, value) if s != "NULL"}
            types = [t for t in map(infer, kinds.values()) if t is not None]
            if not types:
                return ["NULL"]
            same = all(_number(t) == _number(types[0]) for t in types)
            return [next(iter(kinds.values())) if same else "JSON"]
    return "VARCHAR"


def compare(
    schema: Schema,
    structure: Structure,
    rule: Rule,
    ignored: frozenset[str] = frozenset(),
    at: tuple[str, ...] = (),
) -> SchemaComparison:
    """Find the fields of `structure`, which sits at path `at`, that the table does not have."""
    if rule == "ignore":
        return SchemaComparison()
    new: list[NewField] = []
    refused: dict[str, str] = {}
    taken = _paths(schema)
    todo: list[tuple[tuple[str, ...], IcebergType, Structure]] = [
        (at, type_at(schema, at), structure)
    ]
    while todo:
        path, kind, seen = todo.pop(0)
        if isinstance(kind, ListType) and isinstance(seen, list):
            todo.append(((*path, "element"), kind.element_type, seen[0]))
        elif isinstance(kind, MapType) and isinstance(seen, dict):
            todo += [((*path, "value"), kind.value_type, s) for s in seen.values()]
        elif isinstance(kind, StructType) and isinstance(seen, dict):
            known = {f.name: f for f in kind.fields}
            siblings = {name.lower(): name for name in known}
            for name, inner in seen.items():
                if name in known:
                    todo.append(((*path, name), known[name].field_type, inner))
                    continue
                if (not path and name in ignored) or (found := infer(inner, len(path))) is None:
                    continue
                reason = _refusal(path, name, siblings, taken, rule)
                if reason:
                    refused[".".join((*path, name))] = reason
                else:
                    siblings[name.lower()] = name
                    new.append(NewField(path, name, found))
    return SchemaComparison(tuple(merge_new_fields([new])), refused)


def judge(
    schema: Schema,
    names: Iterable[str],
    rule: Rule,
    ignored: frozenset[str] = frozenset(),
    at: tuple[str, ...] = (),
) -> dict[str, str | None]:
    """Judge each unknown name for itself: None where the table may gain it, else why not."""
    kind = type_at(schema, at)
    known = {f.name for f in kind.fields} if isinstance(kind, StructType) else set()
    siblings = {name.lower(): name for name in known}
    skipped = known if at else known | ignored
    taken = _paths(schema)
    return {n: _refusal(at, n, siblings, taken, rule) for n in names if n not in skipped}


def type_at(schema: Schema, path: tuple[str, ...]) -> IcebergType:
    """Give the type found at an Iceberg path such as ("items", "element", "price")."""
    kind: IcebergType = schema.as_struct()
    for step in path:
        if isinstance(kind, ListType):
            kind = kind.element_type
        elif isinstance(kind, MapType):
            kind = kind.value_type
        elif isinstance(kind, StructType):
            kind = next(f.field_type for f in kind.fields if f.name == step)
    return kind


def _paths(schema: Schema) -> set[str]:
    return {name.lower() for name in schema._name_to_id}


def _refusal(
    path: tuple[str, ...], name: str, siblings: dict[str, str], taken: set[str], rule: Rule
) -> str | None:
    dotted = ".".join((*path, name))
    lower = name.lower()
    if len(name) > MAX_NAME:
        return f"field `{name[:39]}…` has a name of more than {MAX_NAME} characters"
    if not name:
        return "a field without a name"
    if not path and lower in ICEBERG_NAMES:
        return f"field `{dotted}` is the name of a metadata column of Iceberg"
    if not path and lower in OUR_NAMES:
        return f"field `{dotted}` is the name of a column that icestream writes"
    if lower in siblings:
        return f"field `{dotted}` differs from column `{siblings[lower]}` only in case"
    if rule == "freeze":
        return f"field `{dotted}` is not in the table (schema_evolution: freeze)"
    if dotted.lower() in taken:
        return f"field `{dotted}` has the path of another column"
    if len(siblings) >= MAX_FIELDS:
        return f"field `{dotted}` is one too many: {MAX_FIELDS} fields in one object at most"
    return None


def _infer(structure: Structure, depth: int) -> IcebergType | None:
    if isinstance(structure, str):
        return None if structure == "NULL" else _TYPES.get(structure, StringType)()
    if depth >= MAX_DEPTH:
        return StringType()
    if isinstance(structure, list):
        element = _infer(structure[0], depth + 1)
        return None if element is None else ListType(0, element, element_required=False)
    names = {name.lower() for name in structure}
    distinct = len(names) == len(structure) <= MAX_FIELDS
    if not distinct or not all(0 < len(name) <= MAX_NAME for name in names):
        return StringType()  # no struct can hold these names: keep the object as JSON text
    fields = [(name, _infer(inner, depth + 1)) for name, inner in structure.items()]
    known = [NestedField(0, name, kind, required=False) for name, kind in fields if kind]
    return StructType(*known) if known else None


def _merge(one: IcebergType, two: IcebergType) -> IcebergType:
    if one == two:
        return one
    if {type(one), type(two)} == {LongType, DoubleType}:
        return DoubleType()
    if isinstance(one, ListType) and isinstance(two, ListType):
        return ListType(0, _merge(one.element_type, two.element_type), element_required=False)
    if isinstance(one, StructType) and isinstance(two, StructType):
        fields = {f.name: f.field_type for f in one.fields}
        for f in two.fields:
            old = fields.get(f.name)
            fields[f.name] = f.field_type if old is None else _merge(old, f.field_type)
        if len({name.lower() for name in fields}) < len(fields) or len(fields) > MAX_FIELDS:
            return StringType()
        return StructType(*(NestedField(0, name, kind) for name, kind in fields.items()))
    for wide, narrow in ((one, two), (two, one)):
        if is_wider(wide, narrow):
            return wide
    return StringType()


def is_wider(new: IcebergType, old: IcebergType) -> bool:
    """Whether Iceberg can turn a column of the old type into one of the new type."""
    match old, new:
        case (IntegerType(), LongType()) | (FloatType(), DoubleType()):
            return True
        case DecimalType(), DecimalType():
            return new.scale == old.scale and new.precision > old.precision
    return False


def _number(kind: IcebergType, ids: "count[int] | None" = None) -> IcebergType:
    """Give every nested field a unique placeholder id, the same for the same shape."""
    ids = ids or count(1)
    if isinstance(kind, ListType):
        return ListType(next(ids), _number(kind.element_type, ids), element_required=False)
    if isinstance(kind, MapType):
        key, value = next(ids), next(ids)
        return MapType(key, _number(kind.key_type, ids), value, _number(kind.value_type, ids))
    if isinstance(kind, StructType):
        return StructType(
            *(NestedField(next(ids), f.name, _number(f.field_type, ids)) for f in kind.fields)
        )
    return kind
