"""Commits by Iceberg's Java API: one attempt, from exactly the planned base; nothing else does.

Iceberg would retry and clean up by itself, and its clean-up can delete manifests that are live
when an answer was lost (docs/design/exactly-once.md). So it commits through
`OneAttemptOperations`, and the retry loop is commit/retry.py.
"""

import json
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from icestream.catalogs import CatalogAdapter
from icestream.commit.attempt import CommitBase, OneAttemptOperations, first_line
from icestream.commit.port import AddedFiles, CommitFailed, InputsReplaced, ReplacedFiles
from icestream.commit.table_state import TableState, table_state
from icestream.errors import Replaced, Unreachable
from icestream.positions import Positions
from icestream.tables.commits import REWRITE_ID, summary
from icestream.tables.marker import Marker, property_name
from icestream.tables.metadata import Metadata

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


_MOST_SNAPSHOTS = 5_000  # that JSON is extended to; expiry keeps tables far below


class IcebergTables:
    """The tables of a Java catalog in the driver's JVM; implements `RunCatalog`."""

    def __init__(self, jvm: Any, catalog: Any, pipeline: str) -> None:
        self.jvm = jvm
        self.java_catalog = catalog
        self._namespaces = jvm.org.apache.iceberg.catalog.Namespace
        self._pipeline = pipeline
        self._operations: dict[str, Any] = {}
        self._last_states: dict[str, TableState] = {}
        # NaN and infinity can be partition values; Iceberg's own mapper does not read them back.
        core = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.core
        non_numeric = getattr(core, "JsonParser$Feature").ALLOW_NON_NUMERIC_NUMBERS
        mapper = jvm.org.apache.iceberg.util.JsonUtil.mapper().copy()
        self._mapper = mapper.configure(non_numeric, True)

    def load(self, name: str) -> TableState:
        """Read the table's current metadata."""
        try:
            # The same operations each time: their refresh refuses a table with another uuid.
            operations = self._operations.get(name)
            if operations is None:
                operations = self.java_catalog.loadTable(self.identifier(name)).operations()
                self._operations[name] = operations
            metadata = operations.refresh()
        except Py4JJavaError as failure:
            self._operations.pop(name, None)
            raise _load_error(name, failure) from None
        document, other_facts = self._metadata_json(self._last_states.get(name), metadata)
        base = CommitBase(operations, metadata, document, other_facts)
        state = table_state(Metadata(document), self._pipeline, base)
        self._last_states[name] = state
        return state

    def _metadata_json(
        self, last_state: TableState | None, metadata: Any
    ) -> tuple[Mapping[str, Any], str]:
        """Return the metadata as JSON, and `CommitBase.other_facts`."""
        # JSON grows with each snapshot: if the only news is one snapshot, it is added to the last.
        iceberg = self.jvm.org.apache.iceberg
        properties, marker = metadata.properties(), property_name(self._pipeline)
        stored = properties.get(marker)
        # All else that any writer's commit may have changed, in one comparison.
        facts = f"{properties.toString().replace(stored or '', '')} {metadata.currentSchemaId()} "
        facts += f"{metadata.defaultSpecId()} {metadata.defaultSortOrderId()} {metadata.uuid()}"
        newest = metadata.currentSnapshot()
        last: CommitBase | None = last_state.base if last_state else None
        if last is None or newest is None or last.other_facts != facts:
            return json.loads(iceberg.TableMetadataParser.toJson(metadata)), facts
        document = last.document
        snapshots = document.get("snapshots", [])
        newest_id, count = newest.snapshotId(), metadata.snapshots().size()
        last_id = document.get("current-snapshot-id")
        last_stored = document["properties"].get(marker)
        if (newest_id, count, stored) == (last_id, len(snapshots), last_stored):
            return document, facts
        is_next = newest.parentId() == last_id and count == len(snapshots) + 1
        if not is_next or len(snapshots) > _MOST_SNAPSHOTS:
            return json.loads(iceberg.TableMetadataParser.toJson(metadata)), facts
        return {
            **document,
            "properties": {**document["properties"], marker: stored},
            "snapshots": [*snapshots, json.loads(iceberg.SnapshotParser.toJson(newest))],
            "current-snapshot-id": newest_id,
            "last-sequence-number": metadata.lastSequenceNumber(),
        }, facts

    def exists(self, name: str) -> bool:
        """Whether the catalog knows the table."""
        try:
            return bool(self.java_catalog.tableExists(self.identifier(name)))
        except Py4JJavaError as failure:
            raise _load_error(name, failure) from None

    def list_tables(self, reaches: Callable[[str], bool]) -> list[str]:
        """List tables in the namespaces that `reaches` says yes to, at any depth."""
        names: list[str] = []
        try:
            namespaces = list(self.java_catalog.listNamespaces(self._namespaces.empty()))
            while namespaces:
                namespace = namespaces.pop()
                if reaches(str(namespace.toString())):
                    namespaces.extend(self.java_catalog.listNamespaces(namespace))
                    tables = self.java_catalog.listTables(namespace)
                    names.extend(str(table.toString()) for table in tables)
        except Py4JJavaError as failure:
            raise Unreachable(
                f"the catalog's tables cannot be listed: {first_line(failure)}",
                hint="check the catalog with `icestream validate`",
            ) from None
        return sorted(names)

    def commit(
        self, name: str, base: CommitBase, marker: Marker, before: Positions, files: AddedFiles
    ) -> None:
        """Add files and set the marker in one transaction, in a single attempt."""
        try:
            self.transact(
                name, base, lambda transaction: self._append(transaction, marker, before, files)
            )
        except (Py4JError, PySparkException) as failure:
            raise CommitFailed(first_line(failure)) from None

    def transact(self, name: str, base: CommitBase, build: Callable[[Any], None]) -> None:
        """Run `build` on a transaction over `base`, then commit once; raises CommitFailed."""
        operations = OneAttemptOperations(base)
        try:
            transaction = self.jvm.org.apache.iceberg.BaseTable(operations, name).newTransaction()
            # A failure of `build` is passed on as it is: nothing was sent to the catalog yet, and
            # the caller knows what it means.
            build(transaction)
            try:
                transaction.commitTransaction()
            except (Py4JError, PySparkException) as failure:
                raise CommitFailed(operations.failure or first_line(failure)) from None
        finally:
            operations.release()

    def commit_rewrite(self, name: str, base: CommitBase, files: ReplacedFiles) -> None:
        """Replace files by others in a single attempt; the marker stays as it is."""
        try:
            self.transact(name, base, lambda transaction: self._replace(transaction, base, files))
        except Py4JJavaError as failure:
            exception_name = failure.java_exception.getClass().getSimpleName()
            # So Iceberg says that files to be removed are not there: another writer replaced them.
            error = InputsReplaced if exception_name == "ValidationException" else CommitFailed
            raise error(first_line(failure)) from None
        except (Py4JError, PySparkException) as failure:
            raise CommitFailed(first_line(failure)) from None

    def identifier(self, name: str) -> Any:
        """Parse `namespace.table` to Iceberg's identifier."""
        return self.jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name)

    def _file_parser(self, transaction: Any) -> Callable[[str], Any]:
        parser = self.jvm.org.apache.iceberg.ContentFileParser
        specs = transaction.table().specs()
        return lambda text: parser.fromJson(self._mapper.readTree(text), specs)

    def _replace(self, transaction: Any, base: CommitBase, files: ReplacedFiles) -> None:
        parse = self._file_parser(transaction)
        update = transaction.newRewrite()
        # The base is the snapshot that was read: there is nothing else to validate against.
        update.validateFromSnapshot(base.document["current-snapshot-id"])
        for text in (*files.removed, *files.removed_deletes):
            update.deleteFile(parse(text))
        for text in (*files.added, *files.added_deletes):
            update.addFile(parse(text))
        for text, sequence in files.kept_deletes:
            update.addFile(parse(text), sequence)
        update.set(REWRITE_ID, files.rewrite_id)
        update.commit()

    def _append(
        self, transaction: Any, marker: Marker, before: Positions, files: AddedFiles
    ) -> None:
        parse = self._file_parser(transaction)
        if files.deletes:
            # No validation: the base is the snapshot that the positions were looked up in.
            update = transaction.newRowDelta()
            for text in files.files:
                update.addRows(parse(text))
            for text in files.deletes:
                update.addDeletes(parse(text))
        else:
            # Fast append: one new manifest a commit; merging manifests is maintenance's work.
            update = transaction.newFastAppend()
            for text in files.files:
                update.appendFile(parse(text))
        for key, value in summary(marker, before, files.records).items():
            update.set(key, value)
        update.commit()
        properties = transaction.updateProperties()
        properties.set(property_name(marker.pipeline), marker.to_json())
        properties.commit()


def _load_error(name: str, failure: Py4JJavaError) -> Exception:
    if "UUID does not match" in first_line(failure):
        return Replaced(
            f"table `{name}` is not the one that this pipeline wrote to",
            hint="was it dropped and created again? start over under another pipeline name",
        )
    exception_name = failure.java_exception.getClass().getSimpleName()
    if exception_name in ("NoSuchTableException", "NoSuchNamespaceException"):
        return Replaced(
            f"table `{name}` does not exist (any more)",
            hint="restore it, or start over under another pipeline name",
        )
    return Unreachable(
        f"table `{name}` cannot be read from the catalog: {first_line(failure)}",
        hint="check the catalog with `icestream validate`",
    )


def java_tables(spark: "SparkSession", catalog: CatalogAdapter, pipeline: str) -> IcebergTables:
    """Open a catalog in the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    java_catalog = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        catalog.name, dict(catalog.java_properties()), spark._jsc.hadoopConfiguration()
    )
    return IcebergTables(jvm, java_catalog, pipeline)
