"""The only place that talks to Iceberg's commit API: one attempt, from exactly the planned base.

Iceberg would retry and clean up by itself, and its clean-up can delete manifests that are live
when an answer was lost (docs/design/exactly-once.md). So it commits through
`OneAttemptOperations`, and the retry loop is `protocol.commit_with_retries`.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from py4j.protocol import Py4JError, Py4JJavaError
from pyspark.errors import PySparkException

from icestream.commit.protocol import AncestorSnapshot, CommitFailed, TableState, parent_of
from icestream.errors import Replaced, Unreachable
from icestream.failpoints import failpoint
from icestream.tables.marker import Marker, Positions, property_name, summary

REWRITE_ID = "icestream.rewrite-id"  # in the summary of a rewrite, which has no commit id
_FOLLOWED = 5_000  # snapshots; expiry keeps tables far below


@dataclass(frozen=True)
class AddedFiles:
    """Files to add, as the JSON that Iceberg's ContentFileParser reads; may be none."""

    files: Sequence[str] = ()
    records: int = 0
    deletes: Sequence[str] = ()  # position deletes, of rows in the snapshot that is the base
    base_only: bool = False  # it fits that snapshot alone


@dataclass(frozen=True)
class ReplacedFiles:
    """Files that take the place of others with the same rows, in the same JSON."""

    rewrite_id: str  # by which its snapshot is found again
    removed: Sequence[str] = ()  # data files
    added: Sequence[str] = ()
    removed_deletes: Sequence[str] = ()
    added_deletes: Sequence[str] = ()  # of rows in the added data files
    kept_deletes: Sequence[tuple[str, int]] = ()  # written anew, with the sequence number they had


class InputsReplaced(CommitFailed):
    """What was to be replaced is no longer there: nothing was committed, and trying is no use."""


@dataclass(frozen=True)
class CommitBase:
    """The metadata that a commit compares against, and the operations that loaded it."""

    operations: Any
    metadata: Any
    document: Mapping[str, Any]  # of the same metadata, in Iceberg's JSON, what we look at
    other_facts: str = ""  # tells whether anything but the snapshots has changed


class IcebergTables:
    """The protocol's port, on a Java catalog in the driver's JVM."""

    def __init__(self, jvm: Any, catalog: Any, pipeline: str) -> None:
        self._jvm = jvm
        self._catalog = catalog
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
                operations = self._catalog.loadTable(self.identifier(name)).operations()
                self._operations[name] = operations
            metadata = operations.refresh()
        except Py4JJavaError as failure:
            self._operations.pop(name, None)
            raise _load_error(name, failure) from None
        document, rest = self._metadata_json(self._last_states.get(name), metadata)
        view = table_state(
            document, self._pipeline, CommitBase(operations, metadata, document, rest)
        )
        self._last_states[name] = view
        return view

    def _metadata_json(
        self, seen: TableState | None, metadata: Any
    ) -> tuple[Mapping[str, Any], str]:
        """The metadata as JSON. It grows with every snapshot, so one more is only added to it."""
        iceberg = self._jvm.org.apache.iceberg
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
            return bool(self._catalog.tableExists(self.identifier(name)))
        except Py4JJavaError as failure:
            raise _load_error(name, failure) from None

    def list_tables(self, reaches: Callable[[str], bool]) -> list[str]:
        """Tables in the namespaces that `reaches` says yes to, at any depth."""
        found: list[str] = []
        try:
            left = list(self._catalog.listNamespaces(self._namespaces.empty()))
            while left:
                namespace = left.pop()
                if reaches(str(namespace.toString())):
                    left.extend(self._catalog.listNamespaces(namespace))
                    tables = self._catalog.listTables(namespace)
                    found.extend(str(each.toString()) for each in tables)
        except Py4JJavaError as failure:
            raise Unreachable(
                f"the catalog's tables cannot be listed: {_first_line(failure)}",
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
            raise CommitFailed(_first_line(failure)) from None

    def transact(self, name: str, base: CommitBase, build: Callable[[Any], None]) -> None:
        """Run `build` on a transaction over `base`, then commit once; raises CommitFailed."""
        operations = OneAttemptOperations(base)
        try:
            transaction = self._jvm.org.apache.iceberg.BaseTable(operations, name).newTransaction()
            build(transaction)
            try:
                transaction.commitTransaction()
            except (Py4JError, PySparkException) as failure:
                raise CommitFailed(operations.failure or _first_line(failure)) from None
        finally:
            operations.release()

    def commit_rewrite(self, name: str, base: CommitBase, work: ReplacedFiles) -> None:
        """Put files in the place of others in a single attempt; the marker stays as it is."""
        try:
            self.transact(name, base, lambda transaction: self._replace(transaction, base, work))
        except Py4JJavaError as failure:
            kind = failure.java_exception.getClass().getSimpleName()
            refused = InputsReplaced if kind == "ValidationException" else CommitFailed
            raise refused(_first_line(failure)) from None
        except (Py4JError, PySparkException) as failure:
            raise CommitFailed(_first_line(failure)) from None

    def identifier(self, name: str) -> Any:
        """`namespace.table` as Iceberg's identifier."""
        return self._jvm.org.apache.iceberg.catalog.TableIdentifier.parse(name)

    def _parser(self, transaction: Any) -> Callable[[str], Any]:
        parser = self._jvm.org.apache.iceberg.ContentFileParser
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


class OneAttemptOperations:
    """Iceberg's TableOperations in Python: the base never moves and commit is tried once."""

    def __init__(self, base: CommitBase) -> None:
        self._real = base.operations
        self._base = base.metadata
        self.failure: str | None = None

    def current(self) -> Any:
        """The base, whatever has happened since."""
        return self._base

    def refresh(self) -> Any:
        """The base again: Iceberg must not move the attempt to a newer one."""
        return self._base

    def commit(self, base: Any, metadata: Any) -> None:
        """Try once; the reason of a failure is kept in `failure`."""
        try:
            failpoint("before-request")
            self._real.commit(base, metadata)
            failpoint("request-sent")
        except Exception as failure:
            # A Java exception must not pass through: Iceberg would take some for "clean up".
            self.failure = _first_line(failure)
            raise RuntimeError(self.failure) from None

    def release(self) -> None:
        """Java collects proxies late, and each would keep a table's whole metadata till then."""
        self._real = self._base = None

    def requireStrictCleanup(self) -> bool:  # noqa: N802 (Iceberg's name)
        """Iceberg may clean up only after failures that it marks so; none leaves `commit`."""
        return True

    def io(self) -> Any:
        """The table's own FileIO."""
        return self._real.io()

    def encryption(self) -> Any:
        """The table's own encryption."""
        return self._real.encryption()

    def metadataFileLocation(self, name: str) -> str:  # noqa: N802
        """Where a metadata file of this name lies."""
        return str(self._real.metadataFileLocation(name))

    def locationProvider(self) -> Any:  # noqa: N802
        """The table's own."""
        return self._real.locationProvider()

    def temp(self, metadata: Any) -> Any:
        """Operations on metadata that is not committed yet."""
        return self._real.temp(metadata)

    def newSnapshotId(self) -> int:  # noqa: N802
        """An id that no snapshot has."""
        return int(self._real.newSnapshotId())

    class Java:
        """Tells py4j which interface this object implements."""

        implements = ("org.apache.iceberg.TableOperations",)


def table_state(document: Mapping[str, Any], pipeline: str, base: Any = None) -> TableState:
    """What Iceberg's metadata JSON says, in the protocol's words."""
    stored = document.get("properties", {}).get(property_name(pipeline))
    return TableState(
        uuid=document["table-uuid"],
        marker=Marker.from_json(stored) if stored else None,
        ancestors=_ancestors(document, pipeline),
        last_sequence=document.get("last-sequence-number", 0),
        schema_id=document["current-schema-id"],
        base=base,
    )


def rewrites_among(
    document: Mapping[str, Any], among: Iterable[AncestorSnapshot]
) -> dict[int, str]:
    """The rewrites of ours among some snapshots: snapshot → id."""
    wanted = {each.snapshot_id for each in among}
    return {
        each["snapshot-id"]: each["summary"][REWRITE_ID]
        for each in document.get("snapshots", ())
        if each["snapshot-id"] in wanted and REWRITE_ID in each.get("summary", {})
    }


def _ancestors(document: Mapping[str, Any], pipeline: str) -> tuple[AncestorSnapshot, ...]:
    by_id = {snapshot["snapshot-id"]: snapshot for snapshot in document.get("snapshots", ())}
    found = []
    at: int | None = document.get("current-snapshot-id")
    while at is not None and at in by_id:
        snapshot = by_id[at]
        notes = snapshot.get("summary", {})
        own = notes.get("icestream.pipeline") == pipeline
        found.append(
            AncestorSnapshot(
                snapshot_id=at,
                parent_id=parent_of(snapshot),
                sequence_number=snapshot.get("sequence-number", 0),
                commit_id=notes.get("icestream.commit-id") if own else None,
            )
        )
        at = snapshot.get("parent-snapshot-id")
    return tuple(found)


def _load_error(name: str, failure: Py4JJavaError) -> Exception:
    if "UUID does not match" in _first_line(failure):
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
        f"table `{name}` cannot be read from the catalog: {_first_line(failure)}",
        hint="check the catalog with `icestream validate`",
    )


def _first_line(failure: BaseException) -> str:
    if isinstance(failure, Py4JJavaError):
        return str(failure.java_exception.toString()).splitlines()[0]
    return f"{type(failure).__name__}: {failure}".splitlines()[0]
