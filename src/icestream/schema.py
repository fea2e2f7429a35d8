"""Schema rules, pure: which fields of incoming JSON a table lacks, and whether it may gain them."""

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain, count
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
# As DuckDB's `json_group_structure` gives it: a type name, [element] or {key: structure}.
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
    """The fields of a structure that a table lacks."""

    new: tuple[NewField, ...] = ()  # may be added
    refused: dict[str, str] = field(default_factory=dict)  # dotted name → why it may not


def merge_new_fields(found: Iterable[Sequence[NewField]]) -> list[NewField]:
    """Merge what several tasks found, up to MAX_FIELDS for one parent.

    Of names that differ only in case the first one stays.
    """
    merged: dict[tuple[tuple[str, ...], str], NewField] = {}
    sizes: Counter[tuple[str, ...]] = Counter()
    for new in chain.from_iterable(found):
        key = (new.parent, new.name.lower())
        old = merged.get(key)
        if old is None and sizes[new.parent] < MAX_FIELDS:
            merged[key] = new
            sizes[new.parent] += 1
        elif old is not None and old.name == new.name:
            merged_type = merge_types(old.type, new.type)
            merged[key] = NewField(new.parent, new.name, merged_type, old.doc or new.doc)
    return list(merged.values())


def with_new_fields(schema: Schema, new: Iterable[NewField]) -> Schema:
    """Return the schema that a table has once these fields are added; with new ids."""
    struct: IcebergType = schema.as_struct()
    for each in new:
        struct = _with_field(struct, each.parent, NestedField(0, each.name, each.type))
    return assign_fresh_schema_ids(Schema(*struct.fields))  # type: ignore[attr-defined]


def _with_field(
    iceberg_type: IcebergType, parent: tuple[str, ...], new: NestedField
) -> IcebergType:
    match iceberg_type:
        case ListType() if parent:
            return ListType(
                iceberg_type.element_id,
                _with_field(iceberg_type.element_type, parent[1:], new),
                iceberg_type.element_required,
            )
        case MapType() if parent:
            value = _with_field(iceberg_type.value_type, parent[1:], new)
            return MapType(
                iceberg_type.key_id,
                iceberg_type.key_type,
                iceberg_type.value_id,
                value,
                iceberg_type.value_required,
            )
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
                    for field in iceberg_type.fields
                )
            )
        case StructType():
            return StructType(*iceberg_type.fields, new)
    return iceberg_type


def merge_types(left: IcebergType, right: IcebergType) -> IcebergType:
    """Return the narrowest type that holds both: equal, double, union of structs, else string."""
    return _number(_merge(_number(left), _number(right)))


def infer(structure: Structure, depth: int = 0) -> IcebergType | None:
    """Return the type of a new column; None if there are only nulls and empty lists so far."""
    iceberg_type = _infer(structure, depth)
    return None if iceberg_type is None else _number(iceberg_type)


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
            structures = {json.dumps(s): s for s in map(structure_of, value) if s != "NULL"}
            types = [t for t in map(infer, structures.values()) if t is not None]
            if not types:
                return ["NULL"]
            same = all(_number(t) == _number(types[0]) for t in types)
            return [next(iter(structures.values())) if same else "JSON"]
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
        path, iceberg_type, part = todo.pop(0)
        if isinstance(iceberg_type, ListType) and isinstance(part, list):
            todo.append(((*path, "element"), iceberg_type.element_type, part[0]))
        elif isinstance(iceberg_type, MapType) and isinstance(part, dict):
            todo += [((*path, "value"), iceberg_type.value_type, s) for s in part.values()]
        elif isinstance(iceberg_type, StructType) and isinstance(part, dict):
            known = {f.name: f for f in iceberg_type.fields}
            siblings = {name.lower(): name for name in known}
            for name, inner in part.items():
                if name in known:
                    todo.append(((*path, name), known[name].field_type, inner))
                    continue
                if (not path and name in ignored) or (new_type := infer(inner, len(path))) is None:
                    continue
                reason = _refusal(path, name, siblings, taken, rule)
                if reason:
                    refused[".".join((*path, name))] = reason
                else:
                    siblings[name.lower()] = name
                    new.append(NewField(path, name, new_type))
    return SchemaComparison(tuple(merge_new_fields([new])), refused)


def judge(
    schema: Schema,
    names: Iterable[str],
    rule: Rule,
    ignored: frozenset[str] = frozenset(),
    at: tuple[str, ...] = (),
) -> dict[str, str | None]:
    """Return each unknown name of an object: None if the table may gain it, else why not."""
    parent = type_at(schema, at)
    known = {f.name for f in parent.fields} if isinstance(parent, StructType) else set()
    siblings = {name.lower(): name for name in known}
    skipped = known if at else known | ignored
    taken = _paths(schema)
    return {n: _refusal(at, n, siblings, taken, rule) for n in names if n not in skipped}


def type_at(schema: Schema, path: tuple[str, ...]) -> IcebergType:
    """Return the type at an Iceberg path such as ("items", "element", "price")."""
    iceberg_type: IcebergType = schema.as_struct()
    for step in path:
        if isinstance(iceberg_type, ListType):
            iceberg_type = iceberg_type.element_type
        elif isinstance(iceberg_type, MapType):
            iceberg_type = iceberg_type.value_type
        elif isinstance(iceberg_type, StructType):
            iceberg_type = next(f.field_type for f in iceberg_type.fields if f.name == step)
    return iceberg_type


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
    known = [NestedField(0, name, inner, required=False) for name, inner in fields if inner]
    return StructType(*known) if known else None


def _merge(left: IcebergType, right: IcebergType) -> IcebergType:
    if left == right:
        return left
    if {type(left), type(right)} == {LongType, DoubleType}:
        return DoubleType()
    if isinstance(left, ListType) and isinstance(right, ListType):
        return ListType(0, _merge(left.element_type, right.element_type), element_required=False)
    if isinstance(left, StructType) and isinstance(right, StructType):
        fields = {f.name: f.field_type for f in left.fields}
        for f in right.fields:
            old = fields.get(f.name)
            fields[f.name] = f.field_type if old is None else _merge(old, f.field_type)
        if len({name.lower() for name in fields}) < len(fields) or len(fields) > MAX_FIELDS:
            return StringType()
        return StructType(*(NestedField(0, name, inner) for name, inner in fields.items()))
    for wide, narrow in ((left, right), (right, left)):
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


def _number(iceberg_type: IcebergType, ids: "count[int] | None" = None) -> IcebergType:
    """Give every nested field a unique placeholder id, the same for the same shape."""
    ids = ids or count(1)
    if isinstance(iceberg_type, ListType):
        return ListType(next(ids), _number(iceberg_type.element_type, ids), element_required=False)
    if isinstance(iceberg_type, MapType):
        key, value = next(ids), next(ids)
        return MapType(
            key,
            _number(iceberg_type.key_type, ids),
            value,
            _number(iceberg_type.value_type, ids),
            value_required=iceberg_type.value_required,
        )
    if isinstance(iceberg_type, StructType):
        return StructType(
            *(
                NestedField(next(ids), f.name, _number(f.field_type, ids))
                for f in iceberg_type.fields
            )
        )
    return iceberg_type
