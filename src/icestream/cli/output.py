"""The only place that prints: results to stdout, everything else to stderr."""

import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any

import click

from icestream.errors import IcestreamError, InternalError
from icestream.events import (
    Event,
    EventBus,
    MaintenanceFailed,
    MaintenanceFinished,
    MaintenanceProgress,
    MaintenanceStarted,
    RunRestarting,
    TableCommitted,
    TopicUnrouted,
)

_QUIET = {"batch_planned", "maintenance_progress"}  # too many for a log


def is_terminal() -> bool:
    """Whether a person sees stderr as it comes."""
    return sys.stderr.isatty() and os.environ.get("TERM") != "dumb"


def result(text: str) -> None:
    """A result, as text."""
    click.echo(text)


def result_json(value: Any) -> None:
    """A result for machines; keys are stable."""
    click.echo(json.dumps(value, indent=2, default=str))


def note(text: str) -> None:
    """Something to know that is no result: to stderr."""
    click.echo(text, err=True)


def warning(text: str) -> None:
    """Something that wants attention but stops nothing."""
    click.echo(click.style("warning: ", fg=_colour("yellow")) + text, err=True)


def error(failure: IcestreamError) -> None:
    """Show an error: what, where, and the next command as its hint."""
    click.echo(click.style("error: ", fg=_colour("red")) + failure.what, err=True)
    if failure.where:
        click.echo(f"  {failure.where}", err=True)
    if failure.hint:
        click.echo(f"  hint: {failure.hint}", err=True)


def table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], title: str | None = None
) -> None:
    """Print rows under headings; columns of numbers are aligned to the right."""
    from rich.table import Table

    rows = [list(row) for row in rows]
    grid = Table(title=title, title_justify="left", box=None, pad_edge=False)
    for index, name in enumerate(columns):
        numeric = all(isinstance(row[index], int | float) for row in rows) and bool(rows)
        grid.add_column(name, justify="right" if numeric else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(_cell(value) for value in row))
    _console().print(grid)


def age(seconds: float | None) -> str | None:
    """`19s`, `4m`, `3h`, `2d`: short enough for a column."""
    if seconds is None:
        return None
    for unit, unit_seconds in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * unit_seconds:
            return f"{seconds / unit_seconds:.0f}{unit}"
    return f"{max(0.0, seconds):.0f}s"


class EventLog:
    """Events as lines on stderr: key=value for people and grep, or JSON."""

    def __init__(self, as_json: bool) -> None:
        self._json = as_json

    def __call__(self, event: Event) -> None:
        """Write one event."""
        if event.kind in _QUIET:
            return
        facts = {key: value for key, value in event.facts().items() if value is not None}
        now = datetime.now(UTC).isoformat(timespec="milliseconds")
        if self._json:
            click.echo(json.dumps({"at": now, "event": event.kind, **facts}, default=str), err=True)
            return
        facts.pop("partitions", None)
        pairs = " ".join(f"{key}={_plain(value)}" for key, value in facts.items())
        click.echo(f"{now} {event.kind} {pairs}", err=True)


class LiveView:
    """On a terminal: one line per table that is kept up to date."""

    def __init__(self) -> None:
        self._rows: dict[str, dict[str, Any]] = {}
        self._notes: list[str] = []

    def __call__(self, event: Event) -> None:
        """Take note of an event."""
        if isinstance(event, TableCommitted):
            row = self._rows.setdefault(
                event.table, {"rows": 0, "commits": 0, "bad": 0, "marks": []}
            )
            row["rows"] += event.landed
            row["bad"] += event.quarantined + event.dropped
            row["commits"] += 1
            row["last"] = event
            row["marks"] = [*row["marks"][-5:], (time.monotonic(), event.landed)]
        elif isinstance(event, TopicUnrouted):
            self._notes.append(f"topic `{event.topic}` matches no rule of `tables:`; left out")
        elif event.kind in ("table_created", "schema_evolved", "commit_retried", "loss_accepted"):
            facts = event.facts()
            detail = facts.get("columns") or facts.get("reason") or facts.get("ranges")
            what = f"{event.kind.replace('_', ' ')}: {facts['table']}"
            self._notes.append(f"{what} {_plain(detail)}" if detail else what)
        elif isinstance(event, RunRestarting):
            again = f"again in {event.wait_seconds:.0f} s, try {event.attempt}"
            self._notes.append(f"broke: {event.error}; {again}")
        elif isinstance(event, MaintenanceFinished):
            files = f"{event.files_before:,} → {event.files_after:,}"
            detail = event.detail if event.ending != "done" else files
            self._notes.append(f"{event.action} {event.table}: {event.ending} {detail}".rstrip())
        elif isinstance(event, MaintenanceFailed):
            self._notes.append(f"maintenance cannot look at the tables: {event.error}")
        elif event.kind == "run_started":
            names = ", ".join(event.facts()["tables"])
            self._notes.append(f"running: {names}; Ctrl-C stops at a commit")

    @contextmanager
    def shown(self) -> Iterator[None]:
        """Context manager: draw the view until the end of the block."""
        from rich.live import Live

        console = _console(stderr=True)
        with Live(get_renderable=self._picture, console=console, refresh_per_second=2):
            yield

    def _picture(self) -> Any:
        from rich.console import Group
        from rich.table import Table
        from rich.text import Text

        grid = Table(box=None, pad_edge=False)
        for name in ("table", "rows", "rows/s", "behind", "bad", "commits", "last commit", "fresh"):
            grid.add_column(name, justify="left" if name == "table" else "right")
        for name, row in sorted(self._rows.items()):
            last: TableCommitted = row["last"]
            grid.add_row(
                name,
                f"{row['rows']:,}",
                f"{_rate(row['marks']):,.0f}",
                f"{last.lag_records:,}",
                f"{row['bad']:,}",
                f"{row['commits']:,}",
                f"{time.monotonic() - row['marks'][-1][0]:.0f} s ago",
                f"{last.freshness_seconds:.1f} s" if last.freshness_seconds is not None else "",
            )
        notes = [Text(f"  {text}", style="dim") for text in self._notes[-4:]]
        return Group(*notes, grid if self._rows else Text("  waiting for the first commit …"))


@contextmanager
def jar_progress() -> Iterator[Callable[[Any, int], None]]:
    """Context manager: a callback for downloads, with a bar or a line for each jar."""
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    lock = threading.Lock()
    bars: dict[Any, Any] = {}
    with Progress(*columns, console=_console(stderr=True), disable=not is_terminal()) as drawing:

        def progress(jar: Any, received: int) -> None:
            with lock:
                if jar not in bars:
                    bars[jar] = drawing.add_task(jar.artifact, total=jar.size)
                    if not is_terminal():
                        note(f"downloading {jar.artifact} {jar.version}, {jar.size / 1e6:.0f} MB")
            drawing.update(bars[jar], completed=received)

        yield progress


@contextmanager
def maintenance_progress(bus: EventBus, as_json: bool) -> Iterator[None]:
    """Context manager: show maintenance as a bar on a terminal, as log lines elsewhere."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    if as_json or not is_terminal():
        bus.join(EventLog(as_json))
        yield
        return
    text = TextColumn("{task.description}")
    columns = (text, BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
    with Progress(*columns, console=_console(stderr=True), transient=True) as drawing:
        bars: list[Any] = []

        def listen(event: Event) -> None:
            if isinstance(event, MaintenanceStarted):
                what = f"{event.table}: {event.action}, {event.reason}"
                bars.append(drawing.add_task(what, total=None))
            elif isinstance(event, MaintenanceProgress) and bars:
                drawing.update(bars[-1], completed=event.done, total=event.total or None)
            elif isinstance(event, MaintenanceFinished) and bars:
                drawing.remove_task(bars.pop())

        bus.join(listen)
        yield


def _console(stderr: bool = False) -> Any:
    from rich.console import Console

    is_shown = (sys.stderr if stderr else sys.stdout).isatty()
    # Nobody sees the edge of a pipe: rows there are as long as they are.
    return Console(stderr=stderr, highlight=False, width=None if is_shown else 200)


def _colour(name: str) -> str | None:
    return None if os.environ.get("NO_COLOR") else name


def _rate(marks: Sequence[tuple[float, int]]) -> float:
    if len(marks) < 2:
        return 0.0
    return sum(rows for _, rows in marks[1:]) / max(0.001, marks[-1][0] - marks[0][0])


def _cell(value: object) -> str:
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}"
    return f"{value:,.1f}" if isinstance(value, float) else str(value)


def _plain(value: object) -> str:
    if isinstance(value, Mapping):
        return json.dumps(value, separators=(",", ":"))
    if isinstance(value, list | tuple):
        value = ",".join(str(each) for each in value)
    text = str(value)
    return json.dumps(text) if " " in text or not text else text


def unexpected(failure: Exception) -> None:
    """Show an exception that nobody expected, with its traceback, as a bug to be reported."""
    import traceback

    error(InternalError(f"{type(failure).__name__}: {failure}", hint="please report this"))
    click.echo("".join(traceback.format_exception(failure)), err=True)


def clear() -> None:
    """Empty the screen, if it is a terminal."""
    if sys.stdout.isatty():
        click.clear()
