"""Status: the state of each table of a pipeline, from catalog and event history; no JVM."""

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pyiceberg.catalog import Catalog
from pyiceberg.table.snapshots import Summary

from icestream.catalogs import catalog_for
from icestream.commit.protocol import MarkerStatus, marker_status
from icestream.commit.table_state import table_state
from icestream.config.load import LoadedConfig
from icestream.events import PartitionState
from icestream.observe import history
from icestream.tables.inventory import (
    DAMAGED,
    NOT_THERE,
    first_line,
    routed_tables,
    translate_catalog_errors,
)
from icestream.tables.metadata import Metadata

_RATE_SECONDS = 300


@dataclass(frozen=True)
class TableStatus:
    """One table of a pipeline, as `icestream status --json` shows it; None: not known."""

    table: str
    healthy: bool
    note: str
    rows: int
    rows_per_s: float | None
    lag_records: int | None
    lag_s: float | None  # age of the newest record that is in, where more are waiting
    freshness_s: float | None  # now minus the newest record time up to which the table is complete
    latency_s: float | None  # of the last commit: the longest time since a record's timestamp
    last_commit: float | None
    commits: int
    data_files: int
    bytes: int
    snapshots: int
    quarantined: int
    dropped: int
    records: int = 0  # landed; in a mirror many of them may have made one row
    lost: tuple[str, ...] = ()  # ranges given up by `--accept-loss`
    partitions: tuple[PartitionState, ...] = ()


@dataclass(frozen=True)
class PipelineStatus:
    """A pipeline, its last run and its tables."""

    pipeline: str
    healthy: bool
    last_run: dict[str, Any] | None
    restarting: dict[str, Any] | None  # the newest restart, while no commit followed it
    tables: tuple[TableStatus, ...]


def pipeline_status(loaded: LoadedConfig) -> PipelineStatus:
    """Read the state of a pipeline and of each of its tables now."""
    config = loaded.pipeline
    state = Path(config.state_location)
    with translate_catalog_errors(config.catalog.name):
        catalog = catalog_for(config.catalog).open()
        names = [name for name, _ in routed_tables(config, catalog)]
        tables = tuple(_table_status(config.name, name, catalog, state) for name in names)
    run = history.last_run(state, config.name)
    trouble = history.trouble(state, config.name)
    failed = bool(trouble or (run and run["kind"] == "run_failed"))
    healthy = bool(tables) and not failed and all(table.healthy for table in tables)
    return PipelineStatus(config.name, healthy, run, trouble, tables)


def _table_status(pipeline: str, name: str, catalog: Catalog, state: Path) -> TableStatus:
    try:
        table = catalog.load_table(name)
    except NOT_THERE:
        return _without_table(name, "not created yet")
    except DAMAGED as failure:
        return _without_table(name, f"cannot be read: {first_line(failure)}")
    metadata = Metadata.of(table)
    protocol_state = table_state(metadata, pipeline)
    marker, status = protocol_state.marker, marker_status(protocol_state)
    note = "" if status is MarkerStatus.OURS else status.value
    if marker is None and status is MarkerStatus.REWOUND:
        note = "its marker property is gone"
    snapshot = table.current_snapshot()
    summary = snapshot.summary if snapshot else None
    now = time.time()
    commits = history.commits(state, pipeline, name, now - _RATE_SECONDS)
    watermark = marker.watermark_ms if marker else None
    return TableStatus(
        table=name,
        healthy=status is MarkerStatus.OURS,
        note=note,
        # Our position deletes name each row once.
        rows=_count(summary, "total-records") - _count(summary, "total-position-deletes"),
        rows_per_s=_rate(commits, now),
        lag_records=commits[-1]["lag_records"] if commits else None,
        lag_s=commits[-1]["lag_seconds"] if commits else None,
        freshness_s=round(now - watermark / 1000, 1) if watermark else None,
        latency_s=commits[-1]["latency_seconds"] if commits else None,
        last_commit=snapshot.timestamp_ms / 1000 if snapshot else None,
        commits=marker.sequence if marker else 0,
        data_files=_count(summary, "total-data-files"),
        bytes=_count(summary, "total-files-size"),
        snapshots=metadata.snapshot_count,
        quarantined=marker.counts.quarantined if marker else 0,
        dropped=marker.counts.dropped if marker else 0,
        records=marker.counts.landed if marker else 0,
        lost=tuple(f"{loss.kind} {loss}" for loss in marker.losses) if marker else (),
        partitions=tuple(
            PartitionState(**facts) for facts in history.partitions(state, pipeline, name)
        ),
    )


def _without_table(name: str, note: str) -> TableStatus:
    return TableStatus(name, False, note, 0, None, None, None, None, None, None, 0, 0, 0, 0, 0, 0)


def _count(summary: Summary | None, key: str) -> int:
    return int((summary and summary[key]) or 0)


def _rate(commits: list[dict[str, Any]], now: float) -> float | None:
    """Rows per second over the last minutes, as far back as there are commits."""
    if not commits:
        return None
    rows = sum(int(commit["landed"]) for commit in commits)
    return round(rows / max(1.0, now - float(commits[0]["at"])), 1)
