"""What an upsert campaign found: the figures that follow from others, and a table."""

from collections.abc import Mapping
from typing import Any

from report import _add, _find
from rich.console import Console
from rich.table import Table

SMALL, LARGE = 1_000_000, 10_000_000  # the sizes that `growth` speaks of, where both were run
EVENTS = (
    (("records_per_s",), "events/s", 0),
    (("cpu_s_per_million",), "CPU-s per million", 2),
    (("peak_rss_mb",), "peak RSS, MB", 0),
    (("commits",), "commits", 0),
    (("total", "seconds"), "total: seconds", 1),
    (("total", "cpu_s_per_million"), "total: CPU-s per million", 2),
    (("scan", "seconds"), "full scan, s", 2),
    (("scan", "copy", "seconds"), "of a clean copy, s", 2),
    (("scan_ratio",), "scan / scan of the copy", 2),
    (("scan", "cpu_ratio"), "the same in CPU", 2),
)
BATCHES = (
    (("cpu_s",), "CPU-s", 2),
    (("seconds",), "seconds", 2),
    (("scan_ratio",), "scan / scan of the copy", 2),
    (("scan", "cpu_ratio"), "the same in CPU", 2),
)


def conclude(result: dict[str, Any]) -> None:
    """Add what compares: peers with icestream, and a large table with a small one."""
    systems = result["systems"]
    own = systems.get("icestream", {})
    for name, each in systems.items():
        pairs = {path[0]: (each.get(path[0]), own.get(path[0])) for path, *_ in EVENTS[:3]}
        found = {key: round(a / b, 3) for key, (a, b) in pairs.items() if a and b}
        if name != "icestream" and found:
            each["ratio"] = found
    sizes = sorted(map(int, own.get("batches", {})))
    if not sizes:
        return
    small, large = (SMALL, LARGE) if {SMALL, LARGE} <= {*sizes} else (sizes[0], sizes[-1])
    ours = {size: own["batches"][str(size)]["cpu_s"] for size in sizes}
    merge = _find(systems.get("merge"), ("batches", str(large), "cpu_s"))
    result["growth"] = round(ours[large] / ours[small], 3) if small != large else None
    result["merge_ratio"] = round(ours[large] / merge, 3) if merge else None
    result["compared_rows"] = [small, large]


def show(result: Mapping[str, Any]) -> None:
    """Print each figure, and how many times icestream's it is."""
    systems = result["systems"]
    if "records" in result:
        title = f"upsert, {result['records']:,} change events, {result['rows']:,} rows left"
        table = _table(title, systems)
        for path, name, digits in EVENTS:
            _add(table, name, systems, path, digits)
        Console(width=30 + 24 * len(systems)).print(table)
    sizes = sorted({int(n) for each in systems.values() for n in each.get("batches", {})})
    if sizes:
        table = _table("one batch of changes", systems)
        for size in sizes:
            table.add_section()
            for path, name, digits in BATCHES:
                place = ("batches", str(size), *path)
                _add(table, f"{size:,} rows: {name}", systems, place, digits)
        Console(width=40 + 24 * len(systems)).print(table)
        small, large = result.get("compared_rows", (0, 0))
        print(f"growth: {result.get('growth')} (CPU of a batch, {large:,} rows / {small:,})")
        print(f"merge_ratio: {result.get('merge_ratio')} (of that of MERGE, {large:,} rows)")


def _table(title: str, systems: Mapping[str, Any]) -> Table:
    table = Table(title=title, title_justify="left")
    table.add_column("")
    for name in systems:
        table.add_column(name, justify="right")
    return table
