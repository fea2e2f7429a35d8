"""The tables of a pipeline, each looked at by every check; no JVM, nothing is written."""

from dataclasses import dataclass, field

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError
from pyiceberg.manifest import DataFile, DataFileContent, clear_manifest_cache
from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot

from icestream.catalogs import catalog_for
from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.errors import Replaced
from icestream.tables.design import key_columns, quarantine_name
from icestream.tables.inventory import routed_tables, translate_catalog_errors
from icestream.tables.marker import Marker, property_name
from icestream.tables.metadata import Metadata
from icestream.verify.chain import MarkerChain, check_chain
from icestream.verify.files import FileChecker
from icestream.verify.keys import KeyChecker
from icestream.verify.offsets import OffsetBitmaps
from icestream.verify.report import TableFindings, VerifyResult
from icestream.verify.rows import RowCheckRules, check_quarantine, check_snapshot
from icestream.verify.scan import ORIGIN, QUARANTINE_ORIGIN, UNREADABLE, OriginReader


@dataclass
class CheckedTable:
    """One table and what was found out about it so far."""

    name: str
    findings: TableFindings
    table: Table | None = None
    chain: MarkerChain | None = None
    live: list[DataFile] | None = None  # of the current snapshot, if all are sound
    rows: OffsetBitmaps | None = (
        None  # of the current snapshot, if they could be read and told apart
    )
    damaged: bool = False
    terms: RowCheckRules = field(
        default_factory=lambda: RowCheckRules(offsets=False, gapless=False)
    )


def verify(
    config: PipelineConfig, source: bool = False, all_snapshots: bool = False, deep: bool = False
) -> VerifyResult:
    """Look at every table of a pipeline; raises Unreachable when catalog or broker are away."""
    opened = catalog_for(config.catalog)
    opened.check()
    clear_manifest_cache()
    reports = []
    with translate_catalog_errors(config.catalog.name):
        catalog = opened.open()
        found = routed_tables(config, catalog)
    for name, rule in found:
        main = _check_table(config, catalog, name, ORIGIN, all_snapshots, deep, rule)
        aside = None
        with translate_catalog_errors(config.catalog.name):
            has_quarantine = catalog.table_exists(quarantine_name(name))
        if has_quarantine:
            aside = _check_table(
                config, catalog, quarantine_name(name), QUARANTINE_ORIGIN, all_snapshots, deep
            )
        if main.chain:
            if main.damaged or (aside and aside.damaged):
                main.findings.finish_check("quarantine", "rows could not be read", looked=False)
            else:
                bad = aside.rows if aside else None
                check_quarantine(main.rows, bad, main.chain, main.terms, main.findings)
            if source:
                _compare(config, rule, main, aside)
        reports.append(main.findings.report())
        if aside:
            reports.append(aside.findings.report())
    return VerifyResult(config.name, tuple(reports))


def _compare(
    config: PipelineConfig, rule: TableRule, main: CheckedTable, aside: CheckedTable | None
) -> None:
    if config.source.type != "kafka":
        text = f"a source of type `{config.source.type}` cannot be asked for its records again"
        main.findings.finish_check("source", text, looked=False)
        return
    damaged = main.damaged or (aside is not None and aside.damaged)
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
    quarantined = aside.rows.sets if aside and aside.rows else {}
    side = TableSide(main.table, main.live, main.chain, landed, quarantined, main.terms)
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
    """Chain, files and rows of one table; without a rule it is a quarantine."""
    looked = CheckedTable(name, TableFindings(name))
    findings = looked.findings
    try:
        with translate_catalog_errors(config.catalog.name):
            table = catalog.load_table(name)
    except (NoSuchTableError, NoSuchNamespaceError):
        findings.add(
            "chain", "table-missing", "the table", "not in the catalog: dropped, or no run"
        )
        findings.finish_check("chain", "no table")
        return looked
    except FileNotFoundError as failure:
        looked.damaged = True
        findings.add("files", "missing-file", "the table's metadata file", str(failure)[:200])
        findings.finish_check("files", "no metadata")
        return looked
    except (ValueError, ValidationError) as failure:
        looked.damaged = True
        seen = str(failure).splitlines()[0][:200]
        findings.add("files", "unreadable", "the table's metadata file", seen)
        findings.finish_check("files", "no metadata")
        return looked
    looked.table = table
    metadata = Metadata.of(table)
    keys = key_columns(rule, table.properties) if rule else None
    chain = looked.chain = check_chain(metadata, config.name, findings, mirror=bool(keys))
    looked.terms = _terms(config, metadata)
    lineage = {link.snapshot_id for link in chain.ancestors}
    current = table.metadata.current_snapshot_id
    wanted = [
        snapshot
        for snapshot in table.metadata.snapshots
        if all_snapshots or snapshot.snapshot_id == current
    ]
    files = FileChecker(table.io, deep, findings)
    live = {each.snapshot_id: files.live_files(each) for each in wanted}
    told = f"{files.seen} files of {_snapshots(len(wanted))}"
    findings.finish_check("files", told + (", every value read" if deep else ""))
    if current is None:
        looked.live, looked.rows = [], OffsetBitmaps()
        findings.finish_check("rows", "no snapshot yet")
        return looked
    looked.live = live[current]
    looked.damaged = looked.live is None
    ordered = [each for each in wanted if each.snapshot_id in lineage]
    if keys:
        _mirror(table, keys, ordered, live, looked)
        return looked
    if not set(columns) <= set(table.schema().column_names):
        _check_row_count(current, looked)
        return looked
    looked.rows = _rows(table, columns, ordered, live, looked)
    looked.damaged = looked.rows is None
    if len(ordered) < len(wanted):
        findings.note(
            f"{_snapshots(len(wanted) - len(ordered))} off the table's history: only files checked"
        )
    return looked


def _rows(
    table: Table,
    columns: tuple[str, str, str],
    ordered: list[Snapshot],
    live: dict[int, list[DataFile] | None],
    looked: CheckedTable,
) -> OffsetBitmaps | None:
    """Judge the rows of these snapshots; → those of the current one."""
    assert looked.chain is not None, "the chain is followed before rows are looked at"
    findings, unread, newest = looked.findings, 0, None
    origins = OriginReader(table, columns)
    for snapshot in ordered:
        found = live[snapshot.snapshot_id]
        if found is None:
            unread += 1
            continue
        try:
            rows = origins.of(snapshot.snapshot_id, found)
        except UNREADABLE as failure:
            told = str(failure).splitlines()[0][:200]
            findings.add("rows", "unreadable", "rows", told, snapshot_id=snapshot.snapshot_id)
            unread += 1
            continue
        check_snapshot(snapshot.snapshot_id, rows, looked.chain, looked.terms, findings)
        if snapshot.snapshot_id == table.metadata.current_snapshot_id:
            newest = rows
    _note_unjudged(looked)
    told = f"{newest.rows if newest else 0} rows"
    told += f", {_snapshots(len(ordered))}" if len(ordered) > 1 else ""
    if newest and newest.unknown:
        told += f", {newest.unknown} of which name no record"
    if unread:
        told += f"; {_snapshots(unread)} with damaged files not read"
    if looked.chain.marker is None:
        told += "; no marker to compare with"
    findings.finish_check("rows", told, looked=not unread and looked.chain.marker is not None)
    return newest


def _mirror(
    table: Table,
    keys: tuple[str, ...],
    ordered: list[Snapshot],
    live: dict[int, list[DataFile] | None],
    looked: CheckedTable,
) -> None:
    """Rows of a mirror are not records: of each key there is one."""
    found, rows, unread = KeyChecker(table, keys), 0, 0
    for snapshot in ordered:
        files = live[snapshot.snapshot_id]
        try:
            if files is None:
                unread += 1
            else:
                rows = found.check(snapshot.snapshot_id, files, looked.findings)
        except UNREADABLE as failure:
            told = str(failure).splitlines()[0][:200]
            at = snapshot.snapshot_id
            looked.findings.add("rows", "unreadable", "rows", told, snapshot_id=at)
            unread += 1
    told = f"{rows} rows by {', '.join(keys)}, {_snapshots(len(ordered))}"
    told += f"; {_snapshots(unread)} with damaged files not read" if unread else ""
    looked.findings.finish_check("rows", told, looked=not unread)


def _note_unjudged(looked: CheckedTable) -> None:
    """Say what cannot be judged here."""
    assert looked.chain is not None, "the chain is followed before rows are looked at"
    if not looked.terms.offsets:
        looked.findings.note(
            "positions are entries of a ledger: uniqueness and counts are checked, ranges are not"
        )
    for stream in sorted(looked.chain.reused):
        looked.findings.note(
            f"`{stream}`: positions do not tell its records apart after an accepted loss; "
            "its rows are not judged"
        )
    for stream in sorted(looked.terms.others):
        looked.findings.note(
            f"`{stream}` also comes from another pipeline; its rows are not judged"
        )


def _check_row_count(snapshot_id: int, looked: CheckedTable) -> None:
    """Without metadata columns only the number of rows can be judged."""
    assert looked.chain is not None, "the chain is followed before rows are looked at"
    total = 0
    if looked.live is not None:
        data = [file for file in looked.live if file.content == DataFileContent.DATA]
        total = sum(file.record_count for file in data)
        plain = RowCheckRules(offsets=False, gapless=False)
        check_snapshot(snapshot_id, OffsetBitmaps(rows=total), looked.chain, plain, looked.findings)
    looked.findings.note("no metadata columns: rows are counted, not told apart")
    looked.findings.finish_check("rows", f"{total} rows by the files' counts", looked=False)


def _terms(config: PipelineConfig, metadata: Metadata) -> RowCheckRules:
    kind = config.source.type
    others: set[str] = set()
    for key, value in metadata.properties.items():
        if key.startswith("icestream.") and key.endswith(".marker"):
            if key == property_name(config.name):
                continue
            try:
                others |= set(Marker.from_json(value).positions)
            except (Replaced, KeyError, TypeError, AttributeError):
                continue  # another pipeline's trouble
    return RowCheckRules(kind != "files", kind == "generator", frozenset(others))


def _snapshots(count: int) -> str:
    return "1 snapshot" if count == 1 else f"{count} snapshots"
