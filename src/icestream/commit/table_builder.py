"""Tables: how one is created, and how it gains columns. All changes are single attempts."""

import json
from collections.abc import Sequence
from typing import Any

from py4j.protocol import Py4JJavaError
from pyiceberg.schema import Schema
from pyiceberg.types import IcebergType, NestedField

from icestream.commit.attempt import CommitBase
from icestream.commit.java_catalog import IcebergTables
from icestream.config.ddl import PartitionField, SortField
from icestream.errors import SchemaRefused, Unreachable
from icestream.schema import OUR_NAMES, NewField
from icestream.tables.design import (
    DEFAULTS,
    KEYS_PROPERTY,
    TableDesign,
    awaits_layout,
    layout_is_known,
)
from icestream.tables.metadata import Metadata


class TableBuilder:
    """Creates and evolves tables through Java, from designs and findings in Python."""

    def __init__(self, tables: IcebergTables) -> None:
        self._iceberg = tables.jvm.org.apache.iceberg
        self._catalog = tables.java_catalog
        self._tables = tables

    def create(self, design: TableDesign) -> bool:
        """Create the table unless it is there; → whether it was created here."""
        identifier = self._tables.identifier(design.name)
        fields = [*design.columns, *design.metadata]
        schema = self._java_schema(fields)
        try:
            self._create_namespace(identifier.namespace())
            builder = self._catalog.buildTable(identifier, schema)
            builder = builder.withProperties(
                {
                    **DEFAULTS,
                    **({"comment": design.comment} if design.comment else {}),
                    **design.properties,
                }
            )
            if layout_is_known(design, fields):
                builder = builder.withPartitionSpec(self._spec(schema, design.partition_by))
                builder = builder.withSortOrder(self._order(schema, design.sort_by))
            builder.create()
        except Py4JJavaError as failure:
            kind = failure.java_exception.getClass().getSimpleName()
            if kind == "AlreadyExistsException":
                return False
            raise self._refusal(design.name, failure) from None
        return True

    def evolve(
        self,
        design: TableDesign,
        base: CommitBase,
        new: Sequence[NewField],
        wider: Sequence[NewField] = (),
    ) -> None:
        """Add columns and widen others, lay the table out if that had to wait; one attempt."""

        def build(transaction: Any) -> None:
            metadata = Metadata(base.document)
            update = transaction.updateSchema()
            anchor = next((name for name in metadata.columns if name in OUR_NAMES), None)
            for each in new:
                self._add(update, each)
                if not each.parent and anchor and each.name not in OUR_NAMES:
                    update.moveBefore(each.name, anchor)
            for each in wider:
                update.updateColumn(each.name, self._java_type(each.type))
            update.commit()
            if awaits_layout(design, metadata, [each.name for each in new if not each.parent]):
                self._add_layout(transaction, design)

        try:
            self._tables.transact(design.name, base, build)
        except Py4JJavaError as failure:
            raise self._refusal(design.name, failure) from None

    def set_keys(self, design: TableDesign, base: CommitBase, keys: Sequence[str]) -> None:
        """Write down the key columns of a mirror, as its records name them; one attempt."""

        def build(transaction: Any) -> None:
            properties = transaction.updateProperties()
            properties.set(KEYS_PROPERTY, json.dumps(keys))
            properties.commit()

        self._tables.transact(design.name, base, build)

    def _add(self, update: Any, new: NewField) -> None:
        java_type = self._java_type(new.type)
        doc = [new.doc] if new.doc else []
        if new.parent or "." in new.name:
            update.addColumn(".".join(new.parent) or None, new.name, java_type, *doc)
        else:
            update.addColumn(new.name, java_type, *doc)

    def _add_layout(self, transaction: Any, design: TableDesign) -> None:
        if design.partition_by:
            spec = transaction.updateSpec()
            for part in design.partition_by:
                spec.addField(_field_name(part), self._term(part))
            spec.commit()
        if design.sort_by:
            order = transaction.replaceSortOrder()
            self._sort(order, design.sort_by)
            order.commit()

    def _spec(self, schema: Any, parts: Sequence[PartitionField]) -> Any:
        builder = self._iceberg.PartitionSpec.builderFor(schema)
        for part in parts:
            arguments = [part.column] if part.argument is None else [part.column, part.argument]
            builder = getattr(builder, part.transform)(*arguments)
        return builder.build()

    def _order(self, schema: Any, sorts: Sequence[SortField]) -> Any:
        builder = self._iceberg.SortOrder.builderFor(schema)
        self._sort(builder, sorts)
        return builder.build()

    def _sort(self, builder: Any, sorts: Sequence[SortField]) -> None:
        nulls = self._iceberg.NullOrder
        for sort in sorts:
            add = builder.asc if sort.ascending else builder.desc
            add(self._term(sort), nulls.NULLS_FIRST if sort.nulls_first else nulls.NULLS_LAST)

    def _term(self, part: PartitionField | SortField) -> Any:
        expressions = self._iceberg.expressions.Expressions
        if part.transform == "identity":
            return expressions.ref(part.column)
        arguments = [part.column] if part.argument is None else [part.column, part.argument]
        return getattr(expressions, part.transform)(*arguments)

    def _create_namespace(self, namespace: Any) -> None:
        try:
            if not self._catalog.namespaceExists(namespace):
                self._catalog.createNamespace(namespace)
        except Py4JJavaError:
            # Another run may have made it meanwhile, which catalogs tell in different ways.
            if not self._catalog.namespaceExists(namespace):
                raise

    def _java_schema(self, fields: Sequence[NestedField]) -> Any:
        # Java gives ids of its own at creation; here they only need to differ.
        numbered = _numbered(fields)
        return self._iceberg.SchemaParser.fromJson(numbered.model_dump_json(by_alias=True))

    def _java_type(self, kind: IcebergType) -> Any:
        return self._java_schema([NestedField(1, "only", kind, required=False)]).findType("only")

    def _refusal(self, name: str, failure: Py4JJavaError) -> Exception:
        cause = failure.java_exception
        text = str(cause.getMessage() or cause.toString()).splitlines()[0]
        if cause.getClass().getSimpleName() in ("ValidationException", "IllegalArgumentException"):
            return SchemaRefused(
                f"table `{name}` cannot be laid out as configured: {text}",
                hint="check `columns`, `partition_by` and `sort_by`; a partition column of a "
                "special type must be declared under `columns:`",
            )
        return Unreachable(
            f"table `{name}` cannot be created: {text}", hint="try `icestream doctor`"
        )


def _field_name(part: PartitionField) -> str:
    """The name as in a new table; for a field that is added later Iceberg has another rule."""
    endings = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
    return part.column + endings.get(part.transform, f"_{part.transform}")


def _numbered(fields: Sequence[NestedField]) -> Schema:
    from pyiceberg.schema import assign_fresh_schema_ids

    flat = [
        field.model_copy(update={"field_id": number})
        for number, field in enumerate(fields, start=1_000_000)
    ]
    return assign_fresh_schema_ids(Schema(*flat))
