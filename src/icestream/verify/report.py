"""Findings of `icestream verify`: all are counted, the first of each check are kept."""

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

MOST = 20  # findings that are kept of one check of one table; all are counted

CheckName = Literal["chain", "files", "rows", "quarantine", "source"]
CheckStatus = Literal["ok", "violated", "unchecked"]
Harm = Literal["lost", "duplicated", "phantom"]


@dataclass(frozen=True)
class Finding:
    """One violation: what should be so, and what is."""

    check: CheckName
    kind: str
    table: str
    expected: str
    seen: str
    snapshot_id: int | None = None
    stream: str | None = None
    partition: int | None = None
    start: int | None = None  # a range of positions, without its stop
    stop: int | None = None
    records: int = 0
    harm: Harm | None = None

    def location(self) -> str:
        """Where it was seen: `snapshot 12, orders/0 120 to 180`."""
        parts = [] if self.snapshot_id is None else [f"snapshot {self.snapshot_id}"]
        if self.stream is not None:
            name = self.stream if self.partition is None else f"{self.stream}/{self.partition}"
            parts.append(name if self.start is None else f"{name} {self.start} to {self.stop}")
        return ", ".join(parts)


@dataclass(frozen=True)
class CheckResult:
    """One check of one table: how it ended, and what it looked at."""

    name: CheckName
    status: CheckStatus
    detail: str
    findings: int = 0  # all of them, also those that are not kept


@dataclass(frozen=True)
class TableReport:
    """All results for one table, in `verify --json`."""

    table: str
    checks: tuple[CheckResult, ...]
    findings: tuple[Finding, ...]
    notes: tuple[str, ...]
    lost: int = 0
    duplicated: int = 0
    phantom: int = 0


@dataclass(frozen=True)
class VerifyResult:
    """All results for one pipeline."""

    pipeline: str
    tables: tuple[TableReport, ...]

    @property
    def violations(self) -> tuple[Finding, ...]:
        """The findings of all tables, at most `MOST` of each check."""
        return tuple(finding for table in self.tables for finding in table.findings)

    @property
    def clean(self) -> bool:
        """Whether no table has a violation."""
        return not self.violations

    @property
    def lost(self) -> int:
        """Records that should be in a table and are not."""
        return sum(table.lost for table in self.tables)

    @property
    def duplicated(self) -> int:
        """Rows that are in a table once too often."""
        return sum(table.duplicated for table in self.tables)

    @property
    def phantom(self) -> int:
        """Rows that no record below the marker explains."""
        return sum(table.phantom for table in self.tables)

    def facts(self) -> dict[str, Any]:
        """The result as plain data with stable keys."""
        return {
            "pipeline": self.pipeline,
            "clean": self.clean,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "phantom": self.phantom,
            "tables": [asdict(table) for table in self.tables],
        }


@dataclass
class TableFindings:
    """Collects the findings of one table while its checks run."""

    table: str
    notes: list[str] = field(default_factory=list)
    _kept: list[Finding] = field(default_factory=list)
    _total: dict[CheckName, int] = field(default_factory=dict)
    _harm: dict[tuple[Harm, CheckName, int | None], int] = field(default_factory=dict)
    _checks: list[CheckResult] = field(default_factory=list)

    def add(self, check: CheckName, kind: str, expected: str, seen: str, **facts: Any) -> None:
        """Add a finding; of each check only the first `MOST` are kept, all are counted."""
        finding = Finding(check, kind, self.table, expected, seen, **facts)
        self._total[check] = self._total.get(check, 0) + 1
        if self._total[check] <= MOST:
            self._kept.append(finding)
        if finding.harm:
            key = (finding.harm, check, finding.snapshot_id)
            self._harm[key] = self._harm.get(key, 0) + finding.records

    def add_ranges(
        self,
        check: CheckName,
        kind: str,
        expected: str,
        seen: str,
        partition: tuple[str, int],
        ranges: Iterable[tuple[int, int, int]],
        **facts: Any,
    ) -> None:
        """Add the same finding for each range of positions; `{}` in `seen` is the range's count."""
        stream, number = partition
        for start, stop, count in ranges:
            where = {"stream": stream, "partition": number, "start": start, "stop": stop}
            self.add(
                check, kind, expected, seen.format(count), **where | {"records": count} | facts
            )

    def note(self, text: str) -> None:
        """Add something to know that is no violation, once."""
        if text not in self.notes:
            self.notes.append(text)

    def count(self, check: CheckName) -> int:
        """Return how many findings this check has so far."""
        return self._total.get(check, 0)

    def finish_check(self, name: CheckName, detail: str, looked: bool = True) -> None:
        """End a check. `looked`: it could look at everything; else it is never ok."""
        count = self.count(name)
        status: CheckStatus = "violated" if count else "ok" if looked else "unchecked"
        self._checks.append(CheckResult(name, status, detail, count))

    def report(self) -> TableReport:
        """Return the results as they are now."""
        return TableReport(
            self.table, tuple(self._checks), tuple(self._kept), tuple(self.notes), **self._worst()
        )

    def _worst(self) -> Mapping[str, int]:
        """Return, by harm, the largest count of any one check: checks find the same rows again."""
        worst: dict[str, int] = {}
        for (harm, _, _), records in self._harm.items():
            worst[harm] = max(records, worst.get(harm, 0))
        return worst
