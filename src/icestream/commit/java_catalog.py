"""The only place that talks to Iceberg's commit API: one attempt, from exactly the planned base.

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


_FOLLOWED = 5_000  # snapshots; expiry keeps tables far below


class IcebergTables:
    """The protocol's port, on a Java catalog in the driver's JVM."""

    def __init__(self, jvm: Any, catalog: Any, pipeline: str) -> None:
        self.jvm = jvm
        self.java_catalog = catalog
        self._namespaces = jvm.org.apache.iceberg.catalog.Namespace
        self._pipeline = pipeline
        self._operations: dict[str, Any] = {}
        self._last_states: dict[str, TableState] = {}
        # NaN and infinity can be partition values; Iceberg's own mapper does not read them back.
        core = jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.core
        odd_numbers = getattr(core, "JsonParser$Feature").ALLOW_NON_NUMERIC_NUMBERS
        mapper = jvm.org.apache.iceberg.util.JsonUtil.mapper().copy()
        self._mapper = mapper.configure(odd_numbers, True)

    def load(self, name: str) -> TableState:
        """Read the table's current metadata."""
        try:
            operations = self._operations.get(name)
            if operations is None:
                operations = self.java_catalog.loadTable(self.identifier(name)).operations()
                self._operations[name] = operations
            metadata = operations.refresh()
        except Py4JJavaError as failure:
            self._operations.pop(name, None)
            raise _load_error(name, failure) from None
        document, rest = self._metadata_json(self._last_states.get(name), metadata)
        base = CommitBase(operations, metadata, document, rest)
        state = table_state(Metadata(document), self._pipeline, base)
        self._last_states[name] = state
        return state

    def _metadata_json(
        self, seen: TableState | None, metadata: Any
    ) -> tuple[Mapping[str, Any], str]:
        """The metadata as JSON. It grows with every snapshot, so one more is only added to it."""
        iceberg = self.jvm.org.apache.iceberg
        properties, marker = metadata.properties(), property_name(self._pipeline)
        stored = properties.get(marker)
        # All else that a commit of somebody may have changed, in one question.
        rest = f"{properties.toString().replace(stored or '', '')} {metadata.currentSchemaId()} "
        rest += f"{metadata.defaultSpecId()} {metadata.defaultSortOrderId()} {metadata.uuid()}"
        newest = metadata.currentSnapshot()
        known: CommitBase | None = seen.base if seen else None
        if known is None or newest is None or known.other_facts != rest:
            return json.loads(iceberg.TableMetadataParser.toJson(metadata)), rest
        document = known.document
        snapshots = document.get("snapshots", [])
        at, count = newest.snapshotId(), metadata.snapshots().size()
        before = document.get("current-snapshot-id")
        told = document["properties"].get(marker)
        if (at, count, stored) == (before, len(snapshots), told):
            return document, rest
        if newest.parentId() != before or count != len(snapshots) + 1 or len(snapshots) > _FOLLOWED:
            return json.loads(iceberg.TableMetadataParser.toJson(metadata)), rest
        return {
            **document,
            "properties": {**document["properties"], marker: stored},
            "snapshots": [*snapshots, json.loads(iceberg.SnapshotParser.toJson(newest))],
            "current-snapshot-id": at,
            "last-sequence-number": metadata.lastSequenceNumber(),
        }, rest

    def exists(self, name: str) -> bool:
        """Whether the catalog knows the table."""
        try:
            return bool(self.java_catalog.tableExists(self.identifier(name)))
        except Py4JJavaError as failure:
            raise _load_error(name, failure) from None

    def list_tables(self, reaches: Callable[[str], bool]) -> list[str]:
        """Tables in the namespaces that `reaches` says yes to, at any depth."""
        found: list[str] = []
        try:
            left = list(self.java_catalog.listNamespaces(self._namespaces.empty()))
            while left:
                namespace = left.pop()
                if reaches(str(namespace.toString())):
                    left.extend(self.java_catalog.listNamespaces(namespace))
                    tables = self.java_catalog.listTables(namespace)
                    found.extend(str(each.toString()) for each in tables)
        except Py4JJavaError as failure:
            raise Unreachable(
                f"the catalog's tables cannot be listed: {first_line(failure)}",
                hint="check the catalog with `icestream validate`",
            ) from None
        return sorted(found)

    def commit(
        self, name: str, base: CommitBase, marker: Marker, before: Positions, work: AddedFiles
    ) -> None:
        """Add the files and set the marker in one transaction, in a single attempt."""
        try:
            self.transact(
                name, base, lambda transaction: self._append(transaction, marker, before, work)
            )
        except (Py4JError, PySparkException) as failure:
            raise CommitFailed(first_line(failure)) from None

    def transact(self, name: str, base: CommitBase, build: Callable[[Any], None]) -> None:
        """Run `build` on a transaction over `base`, then commit once; raises CommitFailed."""
        operations = OneAttemptOperations(base)
        try:
            transaction = self.jvm.org.apache.iceberg.BaseTable(operations, name).newTransaction()
            build(transaction)
            try:
                transaction.commitTransaction()
            except (Py4JError, PySparkException) as failure:
                raise CommitFailed(operations.failure or first_line(failure)) from None
        finally:
            operations.release()

    def commit_rewrite(self, name: str, base: CommitBase, work: ReplacedFiles) -> None:
        """Put files in the place of others in a single attempt; the marker stays as it is."""
        try:
            self.transact(name, base, lambda transaction: self._replace(transaction, base, work))
        except Py4JJavaError as failure:
            kind = failure.java_exception.getClass().getSimpleName()
            refused = InputsReplaced if kind == "ValidationException" else CommitFailed
            raise refused(first_line(failure)) from None
        except (Py4JError, PySparkException) as failure:
            raise CommitFailed(first_line(failure)) from None

    def identifier(self, name: str) -> Any:
        """`namespace.table` as Iceberg's identifier."""
        return self.jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name)

    def _parser(self, transaction: Any) -> Callable[[str], Any]:
        parser = self.jvm.org.apache.iceberg.ContentFileParser
        specs = transaction.table().specs()
        return lambda text: parser.fromJson(self._mapper.readTree(text), specs)

    def _replace(self, transaction: Any, base: CommitBase, work: ReplacedFiles) -> None:
        parsed = self._parser(transaction)
        update = transaction.newRewrite()
        # The base is the snapshot that was looked at: there is nothing else to validate against.
        update.validateFromSnapshot(base.document["current-snapshot-id"])
        for text in (*work.removed, *work.removed_deletes):
            update.deleteFile(parsed(text))
        for text in (*work.added, *work.added_deletes):
            update.addFile(parsed(text))
        for text, sequence in work.kept_deletes:
            update.addFile(parsed(text), sequence)
        update.set(REWRITE_ID, work.rewrite_id)
        update.commit()

    def _append(
        self, transaction: Any, marker: Marker, before: Positions, work: AddedFiles
    ) -> None:
        parsed = self._parser(transaction)
        if work.deletes:
            # No validation: the base is the snapshot that the positions were looked up in.
            update = transaction.newRowDelta()
            for text in work.files:
                update.addRows(parsed(text))
            for text in work.deletes:
                update.addDeletes(parsed(text))
        else:
            # Fast append: one new manifest a commit; merging manifests is maintenance's work.
            update = transaction.newFastAppend()
            for text in work.files:
                update.appendFile(parsed(text))
        for key, value in summary(marker, before, work.records).items():
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
    kind = failure.java_exception.getClass().getSimpleName()
    if kind in ("NoSuchTableException", "NoSuchNamespaceException"):
        return Replaced(
            f"table `{name}` does not exist (any more)",
            hint="restore it, or start over under another pipeline name",
        )
    return Unreachable(
        f"table `{name}` cannot be read from the catalog: {first_line(failure)}",
        hint="check the catalog with `icestream validate`",
    )


def java_tables(spark: "SparkSession", catalog: CatalogAdapter, pipeline: str) -> IcebergTables:
    """The tables of a catalog in the driver's JVM."""
    jvm: Any = spark.sparkContext._jvm
    opened = jvm.org.apache.iceberg.CatalogUtil.buildIcebergCatalog(
        catalog.name, dict(catalog.java_properties()), spark._jsc.hadoopConfiguration()
    )
    return IcebergTables(jvm, opened, pipeline)
