"""Creates tables and alters their columns, layout and keys by Java; one attempt each."""

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
    """Creates tables from their design, and adds the columns that tasks found; `TableChanges`."""

    def __init__(self, tables: IcebergTables) -> None:
        self._iceberg = tables.jvm.org.apache.iceberg
        self._catalog = tables.java_catalog
        self._tables = tables

    def create(self, design: TableDesign) -> bool:
        """Create the table unless it exists. Returns whether it was created here."""
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
            exception_name = failure.java_exception.getClass().getSimpleName()
            if exception_name == "AlreadyExistsException":
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
        """Add and widen columns, and add partition spec and sort order if they had to wait."""

        def build(transaction: Any) -> None:
            metadata = Metadata(base.document)
            update = transaction.updateSchema()
            first_own = next((name for name in metadata.columns if name in OUR_NAMES), None)
            for field in new:
                self._add_field(update, field)
                if not field.parent and first_own and field.name not in OUR_NAMES:
                    update.moveBefore(field.name, first_own)
            for field in wider:
                update.updateColumn(field.name, self._java_type(field.type))
            update.commit()
            if awaits_layout(design, metadata, [field.name for field in new if not field.parent]):
                self._add_layout(transaction, design)

        try:
            self._tables.transact(design.name, base, build)
        except Py4JJavaError as failure:
            raise self._refusal(design.name, failure) from None

    def set_keys(self, design: TableDesign, base: CommitBase, keys: Sequence[str]) -> None:
        """Store the key columns of a mirror, as its records name them, in a table property."""

        def build(transaction: Any) -> None:
            properties = transaction.updateProperties()
            properties.set(KEYS_PROPERTY, json.dumps(keys))
            properties.commit()

        self._tables.transact(design.name, base, build)

    def _add_field(self, update: Any, field: NewField) -> None:
        java_type = self._java_type(field.type)
        doc = [field.doc] if field.doc else []
        if field.parent or "." in field.name:
            update.addColumn(".".join(field.parent) or None, field.name, java_type, *doc)
        else:
            update.addColumn(field.name, java_type, *doc)

    def _add_layout(self, transaction: Any, design: TableDesign) -> None:
        if design.partition_by:
            spec = transaction.updateSpec()
            for field in design.partition_by:
                spec.addField(_field_name(field), self._term(field))
            spec.commit()
        if design.sort_by:
            order = transaction.replaceSortOrder()
            self._sort(order, design.sort_by)
            order.commit()

    def _spec(self, schema: Any, partition_fields: Sequence[PartitionField]) -> Any:
        builder = self._iceberg.PartitionSpec.builderFor(schema)
        for field in partition_fields:
            arguments = [field.column] if field.argument is None else [field.column, field.argument]
            builder = getattr(builder, field.transform)(*arguments)
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

    def _term(self, field: PartitionField | SortField) -> Any:
        expressions = self._iceberg.expressions.Expressions
        if field.transform == "identity":
            return expressions.ref(field.column)
        arguments = [field.column] if field.argument is None else [field.column, field.argument]
        return getattr(expressions, field.transform)(*arguments)

    def _create_namespace(self, namespace: Any) -> None:
        try:
            if not self._catalog.namespaceExists(namespace):
                self._catalog.createNamespace(namespace)
        except Py4JJavaError:
            # Another run may have created it meanwhile; each catalog has its own error for that.
            if not self._catalog.namespaceExists(namespace):
                raise

    def _java_schema(self, fields: Sequence[NestedField]) -> Any:
        # Java assigns ids of its own at creation; here they only need to differ.
        schema = _with_unique_ids(fields)
        return self._iceberg.SchemaParser.fromJson(schema.model_dump_json(by_alias=True))

    def _java_type(self, iceberg_type: IcebergType) -> Any:
        field = NestedField(1, "only", iceberg_type, required=False)
        return self._java_schema([field]).findType("only")

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


def _field_name(field: PartitionField) -> str:
    """Name a partition field as in a new table: Iceberg has another rule for later fields."""
    suffixes = {"identity": "", "bucket": "_bucket", "truncate": "_trunc"}
    return field.column + suffixes.get(field.transform, f"_{field.transform}")


def _with_unique_ids(fields: Sequence[NestedField]) -> Schema:
    from pyiceberg.schema import assign_fresh_schema_ids

    flat = [
        field.model_copy(update={"field_id": field_id})
        for field_id, field in enumerate(fields, start=1_000_000)
    ]
    return assign_fresh_schema_ids(Schema(*flat))
