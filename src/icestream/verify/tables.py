"""Verify: runs every check on every table of a pipeline; no JVM, writes nothing."""

from dataclasses import dataclass

from pyiceberg.catalog import Catalog
from pyiceberg.manifest import DataFile, DataFileContent, clear_manifest_cache
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icestream.catalogs import catalog_for
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.errors import Replaced
from icestream.tables.design import key_columns, quarantine_name
from icestream.tables.inventory import (
    DAMAGED,
    NOT_THERE,
    first_line,
    routed_tables,
    translate_catalog_errors,
)
from icestream.tables.marker import Marker, property_name
from icestream.tables.metadata import Metadata
from icestream.verify.chain import MarkerChain, check_chain
from icestream.verify.files import FileChecker
from icestream.verify.keys import KeyChecker
from icestream.verify.offsets import OffsetBitmaps
from icestream.verify.report import TableFindings, VerifyResult
from icestream.verify.rows import RowCheckRules, check_quarantine, check_snapshot
from icestream.verify.scan import ORIGIN, QUARANTINE_ORIGIN, UNREADABLE, OriginReader

_COUNTS_ONLY = RowCheckRules(offsets=False, gapless=False)


@dataclass
class CheckedTable:
    """One table, and what its checks have read so far."""

    name: str
    findings: TableFindings
    table: Table | None = None
    chain: MarkerChain | None = None
    live: list[DataFile] | None = None  # of the current snapshot, if no file is damaged
    rows: OffsetBitmaps | None = None  # of the current snapshot, if read and told apart
    damaged: bool = False
    rules: RowCheckRules = _COUNTS_ONLY


def verify(
    config: PipelineConfig, source: bool = False, all_snapshots: bool = False, deep: bool = False
) -> VerifyResult:
    """Check every table of a pipeline; raises Unreachable when catalog or broker do not answer."""
    adapter = catalog_for(config.catalog)
    adapter.check()
    clear_manifest_cache()
    reports = []
    with translate_catalog_errors(config.catalog.name):
        catalog = adapter.open()
        tables = routed_tables(config, catalog)
    for name, rule in tables:
        main = _check_table(config, catalog, name, ORIGIN, all_snapshots, deep, rule)
        quarantine = None
        with translate_catalog_errors(config.catalog.name):
            has_quarantine = catalog.table_exists(quarantine_name(name))
        if has_quarantine:
            quarantine = _check_table(
                config, catalog, quarantine_name(name), QUARANTINE_ORIGIN, all_snapshots, deep
            )
        if main.chain:
            if main.damaged or (quarantine and quarantine.damaged):
                main.findings.finish_check("quarantine", "rows could not be read", looked=False)
            else:
                bad = quarantine.rows if quarantine else None
                check_quarantine(main.rows, bad, main.chain, main.rules, main.findings)
            if source:
                _compare_with_source(config, rule, main, quarantine)
        reports.append(main.findings.report())
        if quarantine:
            reports.append(quarantine.findings.report())
    return VerifyResult(config.name, tuple(reports))


def _compare_with_source(
    config: PipelineConfig, rule: TableRule, main: CheckedTable, quarantine: CheckedTable | None
) -> None:
    if config.source.type != "kafka":
        text = f"a source of type `{config.source.type}` cannot be asked for its records again"
        main.findings.finish_check("source", text, looked=False)
        return
    damaged = main.damaged or (quarantine is not None and quarantine.damaged)
    keys = key_columns(rule, main.table.properties) if main.table else None
    told_apart = main.rows is not None or bool(keys)
    if damaged or not (told_apart and main.table and main.chain and main.live is not None):
        main.findings.finish_check(
            "source", "rows could not be read, or not told apart", looked=False
        )
        return
    from icestream.verify.broker import TableSide
    from icestream.verify.mirror import check_mirror
    from icestream.verify.source import check_source

    landed = main.rows.sets if main.rows else {}
    quarantined = quarantine.rows.sets if quarantine and quarantine.rows else {}
    side = TableSide(main.table, main.live, main.chain, landed, quarantined, main.rules)
    if keys:
        check_mirror(config, rule, keys, side, main.findings)
    else:
        check_source(config, rule, side, main.findings)


def _check_table(
    config: PipelineConfig,
    catalog: Catalog,
    name: str,
    columns: tuple[str, str, str],
    all_snapshots: bool,
    deep: bool,
    rule: TableRule | None = None,
) -> CheckedTable:
    """Check chain, files and rows of one table; without a rule it is a quarantine."""
    checked = CheckedTable(name, TableFindings(name))
    findings = checked.findings
    try:
        with translate_catalog_errors(config.catalog.name):
            table = catalog.load_table(name)
    except NOT_THERE:
        findings.add(
            "chain", "table-missing", "the table", "not in the catalog: dropped, or no run"
        )
        findings.finish_check("chain", "no table")
        return checked
    except DAMAGED as failure:
        checked.damaged = True
        kind = "missing-file" if isinstance(failure, FileNotFoundError) else "unreadable"
        findings.add("files", kind, "the table's metadata file", first_line(failure))
        findings.finish_check("files", "no metadata")
        return checked
    checked.table = table
    metadata = Metadata.of(table)
    keys = key_columns(rule, table.properties) if rule else None
    chain = checked.chain = check_chain(metadata, config.name, findings, mirror=bool(keys))
    checked.rules = _check_rules(config, metadata)
    history = {snapshot.snapshot_id for snapshot in chain.ancestors}
    current = table.metadata.current_snapshot_id
    wanted = [
        snapshot
        for snapshot in table.metadata.snapshots
        if all_snapshots or snapshot.snapshot_id == current
    ]
    files = FileChecker(table.io, deep, findings)
    live = {snapshot.snapshot_id: files.live_files(snapshot) for snapshot in wanted}
    detail = f"{files.checked} files of {_snapshots(len(wanted))}"
    findings.finish_check("files", detail + (", every value read" if deep else ""))
    if current is None:
        checked.live, checked.rows = [], OffsetBitmaps()
        findings.finish_check("rows", "no snapshot yet")
        return checked
    checked.live = live[current]
    checked.damaged = checked.live is None
    in_history = [snapshot for snapshot in wanted if snapshot.snapshot_id in history]
    if keys:
        _check_mirror_keys(table, keys, in_history, live, checked)
        return checked
    if not set(columns) <= set(table.schema().column_names):
        _check_row_count(current, checked)
        return checked
    checked.rows = _check_rows(table, columns, in_history, live, checked)
    checked.damaged = checked.rows is None
    if rolled_back := len(wanted) - len(in_history):
        findings.note(f"{_snapshots(rolled_back)} off the table's history: only files checked")
    return checked


def _check_rows(
    table: Table,
    columns: tuple[str, str, str],
    snapshots: list[Snapshot],
    live: dict[int, list[DataFile] | None],
    checked: CheckedTable,
) -> OffsetBitmaps | None:
    """Check the rows of these snapshots. Returns those of the current one, if they were read."""
    assert checked.chain is not None, "the chain is followed before rows are looked at"
    findings, unread, newest = checked.findings, 0, None
    origins = OriginReader(table, columns)
    for snapshot in snapshots:
        files = live[snapshot.snapshot_id]
        if files is None:
            unread += 1
            continue
        try:
            rows = origins.of(snapshot.snapshot_id, files)
        except UNREADABLE as failure:
            why = first_line(failure)
            findings.add("rows", "unreadable", "rows", why, snapshot_id=snapshot.snapshot_id)
            unread += 1
            continue
        check_snapshot(snapshot.snapshot_id, rows, checked.chain, checked.rules, findings)
        if snapshot.snapshot_id == table.metadata.current_snapshot_id:
            newest = rows
    _note_unchecked(checked)
    detail = f"{newest.rows if newest else 0} rows"
    detail += f", {_snapshots(len(snapshots))}" if len(snapshots) > 1 else ""
    if newest and newest.unknown:
        detail += f", {newest.unknown} of which name no record"
    if unread:
        detail += f"; {_snapshots(unread)} with damaged files not read"
    if checked.chain.marker is None:
        detail += "; no marker to compare with"
    findings.finish_check("rows", detail, looked=not unread and checked.chain.marker is not None)
    return newest


def _check_mirror_keys(
    table: Table,
    keys: tuple[str, ...],
    snapshots: list[Snapshot],
    live: dict[int, list[DataFile] | None],
    checked: CheckedTable,
) -> None:
    """Rows of a mirror are not records: check that each key has one."""
    checker, rows, unread = KeyChecker(table, keys), 0, 0
    for snapshot in snapshots:
        files = live[snapshot.snapshot_id]
        try:
            if files is None:
                unread += 1
            else:
                rows = checker.check(snapshot.snapshot_id, files, checked.findings)
        except UNREADABLE as failure:
            why, snapshot_id = first_line(failure), snapshot.snapshot_id
            checked.findings.add("rows", "unreadable", "rows", why, snapshot_id=snapshot_id)
            unread += 1
    detail = f"{rows} rows by {', '.join(keys)}, {_snapshots(len(snapshots))}"
    detail += f"; {_snapshots(unread)} with damaged files not read" if unread else ""
    checked.findings.finish_check("rows", detail, looked=not unread)


def _note_unchecked(checked: CheckedTable) -> None:
    """Note what cannot be checked of this table's rows."""
    assert checked.chain is not None, "the chain is followed before rows are looked at"
    findings = checked.findings
    if not checked.rules.offsets:
        findings.note(
            "positions are entries of a ledger: uniqueness and counts are checked, ranges are not"
        )
    for stream in sorted(checked.chain.reused):
        findings.note(
            f"`{stream}`: positions do not tell its records apart after an accepted loss; "
            "its rows are not judged"
        )
    for stream in sorted(checked.rules.others):
        findings.note(f"`{stream}` also comes from another pipeline; its rows are not judged")


def _check_row_count(snapshot_id: int, checked: CheckedTable) -> None:
    """Without metadata columns only the number of rows can be checked."""
    assert checked.chain is not None, "the chain is followed before rows are looked at"
    total, findings = 0, checked.findings
    if checked.live is not None:
        data = [file for file in checked.live if file.content == DataFileContent.DATA]
        total = sum(file.record_count for file in data)
        rows = OffsetBitmaps(rows=total)
        check_snapshot(snapshot_id, rows, checked.chain, _COUNTS_ONLY, findings)
    findings.note("no metadata columns: rows are counted, not told apart")
    findings.finish_check("rows", f"{total} rows by the files' counts", looked=False)


def _check_rules(config: PipelineConfig, metadata: Metadata) -> RowCheckRules:
    source_type = config.source.type
    others: set[str] = set()
    for key, value in metadata.properties.items():
        if key.startswith("icestream.") and key.endswith(".marker"):
            if key == property_name(config.name):
                continue
            try:
                others |= set(Marker.from_json(value).positions)
            except (Replaced, KeyError, TypeError, AttributeError):
                continue  # `verify` of that pipeline reports it
    return RowCheckRules(source_type != "files", source_type == "generator", frozenset(others))


def _snapshots(count: int) -> str:
    return "1 snapshot" if count == 1 else f"{count} snapshots"
