"""Status: how each table of a pipeline stands, from the catalog and the history; no JVM."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from icestream.catalogs import catalog_for
from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import table_state
from icestream.config.load import LoadedConfig
from icestream.config.route import Router
from icestream.events import PartitionState
from icestream.observe import history
from icestream.tables.marker import property_name
from icestream.tables.metadata import Metadata

_RATE_SECONDS = 300


@dataclass(frozen=True)
class TableStatus:
    """One table; None where nothing is known."""

    table: str
    healthy: bool
    note: str
    rows: int
    rows_per_s: float | None
    lag_records: int | None
    lag_s: float | None  # age of the newest record that is in, where more are waiting
    freshness_s: float | None  # now minus the newest record time up to which the table is complete
    latency_s: float | None  # the longest way from a record's timestamp to its commit, at the last
    last_commit: float | None
    commits: int
    data_files: int
    bytes: int
    snapshots: int
    quarantined: int
    dropped: int
    records: int = 0  # that were taken; of a mirror, many may have made one row
    lost: tuple[str, ...] = ()  # ranges given up by `--accept-loss`
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline and its tables."""

    pipeline: str
    healthy: bool
    last_run: dict[str, Any] | None
    restarting: dict[str, Any] | None  # the newest restart, while no commit followed it
    tables: tuple[TableStatus, ...]


def pipeline_status(loaded: LoadedConfig) -> PipelineStatus:
    """Look at everything now."""
    config = loaded.pipeline
    state = Path(config.state_location)
    tables = tuple(_table(config.name, name, table, state) for name, table in _tables(loaded))
    run = history.last_run(state, config.name)
    trouble = history.trouble(state, config.name)
    failed = bool(trouble or (run and run["kind"] == "run_failed"))
    healthy = bool(tables) and not failed and all(table.healthy for table in tables)
    return PipelineStatus(config.name, healthy, run, trouble, tables)


def _tables(loaded: LoadedConfig) -> list[tuple[str, Any]]:
    """The tables of this pipeline that exist, and None for fixed names that do not."""
    config = loaded.pipeline
    catalog = catalog_for(config.catalog).open()
    router = Router(config)
    fixed = {route.table for route in router.fixed()}
    made = {name for name in _names(catalog, router) if router.owner(name)}
    found = []
    for name in sorted(fixed | made):
        table = catalog.load_table(name) if catalog.table_exists(name) else None
        if name in fixed or (table and property_name(config.name) in table.properties):
            found.append((name, table))
    return found


def _names(catalog: Any, router: Router) -> list[str]:
    found: list[str] = []
    left = list(catalog.list_namespaces())
    while left:
        namespace = left.pop()
        if router.reaches(".".join(namespace)):
            left.extend(each for each in catalog.list_namespaces(namespace) if each != namespace)
            found.extend(".".join(each) for each in catalog.list_tables(namespace))
    return found


def _table(pipeline: str, name: str, table: Any | None, state: Path) -> TableStatus:
    if table is None:
        return TableStatus(
            name, False, "not created yet", 0, None, None, None, None, None, None, 0, 0, 0, 0, 0, 0
        )
    metadata = Metadata.of(table)
    view = table_state(metadata, pipeline)
    marker = view.marker
    stand = marker_status(view)
    snapshot = table.current_snapshot()
    notes = snapshot.summary if snapshot else None
    now = time.time()
    commits = history.commits(state, pipeline, name, now - _RATE_SECONDS)
    watermark = marker.watermark_ms if marker else None
    return TableStatus(
        table=name,
        healthy=stand is MarkerStatus.OURS,
        note="" if stand is MarkerStatus.OURS else stand.value,
        # Our position deletes name each row once.
        rows=_number(notes, "total-records") - _number(notes, "total-position-deletes"),
        rows_per_s=_rate(commits, now),
        lag_records=commits[-1]["lag_records"] if commits else None,
        lag_s=commits[-1]["lag_seconds"] if commits else None,
        freshness_s=round(now - watermark / 1000, 1) if watermark else None,
        latency_s=commits[-1]["latency_seconds"] if commits else None,
        last_commit=snapshot.timestamp_ms / 1000 if snapshot else None,
        commits=marker.sequence if marker else 0,
        data_files=_number(notes, "total-data-files"),
        bytes=_number(notes, "total-files-size"),
        snapshots=metadata.snapshot_count,
        quarantined=marker.counts.quarantined if marker else 0,
        dropped=marker.counts.dropped if marker else 0,
        records=marker.counts.landed if marker else 0,
        lost=tuple(f"{loss.kind} {loss}" for loss in marker.losses) if marker else (),
        partitions=tuple(
            PartitionState(**each) for each in history.partitions(state, pipeline, name)
        ),
    )


def _number(notes: Any, key: str) -> int:
    return int(notes[key]) if notes is not None and notes[key] else 0


def _rate(commits: list[dict[str, Any]], now: float) -> float | None:
    """Rows per second over the last minutes, as far back as there are commits."""
    if not commits:
        return None
    rows = sum(int(each["landed"]) for each in commits)
    return round(rows / max(1.0, now - float(commits[0]["at"])), 1)
