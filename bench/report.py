"""What a campaign found: a table on the terminal, JSON, and a picture."""

import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import picture
from peers import Peer
from rich.console import Console
from rich.table import Table

# Where a figure is, its title and digits. The first two lines are the steady state.
FIGURES = (
    (("records_per_s",), "records/s", 0),
    (("cpu_s_per_million",), "CPU-s per million", 2),
    (("peak_rss_mb",), "peak RSS, MB", 0),
    (("freshness_p50_s",), "freshness p50, s", 3),
    (("freshness_p95_s",), "freshness p95, s", 3),
    (("freshness", "cores"), "cores while fresh", 2),
)
DETAILS = (
    ("seconds", "seconds", 1),
    ("records_per_s", "records/s", 0),
    ("cpu_s_per_million", "CPU-s per million", 2),
    ("peak_rss_mb", "peak RSS, MB", 0),
    ("data_files", "data files", 0),
    ("data_bytes", "data bytes", 0),
)


def head(systems: Mapping[str, Peer]) -> dict[str, Any]:
    """The result before anything ran."""
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "machine": {"cores": os.cpu_count()},
        "systems": {
            name: {"title": peer.TITLE, "versions": dict(peer.VERSIONS)}
            for name, peer in systems.items()
        },
    }


def show(result: Mapping[str, Any]) -> None:
    """Print each figure, and how many times icestream's it is."""
    systems: dict[str, Any] = result["systems"]
    table = Table(title=f"append, {result.get('records', 0):,} records", title_justify="left")
    table.add_column("")
    for name in systems:
        table.add_column(name, justify="right")
    for path, title, digits in FIGURES:
        _add(table, title, systems, path, digits)
    for part in ("steady", "total"):
        table.add_section()
        for key, title, digits in DETAILS:
            _add(table, f"{part}: {title}", systems, (part, key), digits)
    Console(width=30 + 24 * len(systems)).print(table)


def _add(table: Table, title: str, systems: Any, path: tuple[str, ...], digits: int) -> None:
    values = {name: _find(each, path) for name, each in systems.items()}
    if any(value is not None for value in values.values()):
        table.add_row(title, *(_cell(values, name, digits) for name in values))


def _cell(values: Mapping[str, Any], name: str, digits: int) -> str:
    value, own = values[name], values.get("icestream")
    if value is None:
        return "-"
    ratio = f" ({value / own:.2f} x)" if own and name != "icestream" else ""
    return f"{value:,.{digits}f}{ratio}"


def _find(figures: Mapping[str, Any] | None, path: tuple[str, ...]) -> Any:
    found: Any = figures
    for key in path:
        found = found.get(key) if found else None
    return found


def compare(result: Mapping[str, Any]) -> None:
    """Add to each peer its figures as multiples of icestream's."""
    own = result["systems"].get("icestream", {})
    for name, each in result["systems"].items():
        pairs = {path[0]: (each.get(path[0]), own.get(path[0])) for path, *_ in FIGURES[:5]}
        if name != "icestream":
            each["ratio"] = {key: round(a / b, 3) for key, (a, b) in pairs.items() if a and b}


def save(result: Mapping[str, Any], folder: Path) -> None:
    compare(result)
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "append.json").write_text(json.dumps(result, indent=2) + "\n")
    (folder / "append.svg").write_text(picture.draw(result))
