"""Forecast, pure: what a commit interval means at a rate: freshness, commits, files a day."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from icestream.maintain.compaction import CompactionRules
from icestream.maintain.rewrite_speed import BYTES_PER_S

INTERVALS = (10.0, 60.0, 300.0, 900.0, 3600.0)
DAY = 86400.0
_WORK_SECONDS = 1.0  # from the end of an interval to its commit, until that was measured
_FILES = 2  # of a commit, until that was measured


@dataclass(frozen=True)
class Rate:
    """The rate at which records come to a table, and what its commits are like."""

    records_per_s: float
    bytes_per_record: float  # as stored
    files_per_commit: float = _FILES  # from tasks and partitions, where rows are few
    work_seconds: float = _WORK_SECONDS
    measured: int = 0  # commits that it was measured from; 0: the user gave it

    @property
    def bytes_per_day(self) -> float:
        """Bytes stored in a day."""
        return self.records_per_s * self.bytes_per_record * DAY


@dataclass(frozen=True)
class Forecast:
    """What one commit interval means; sizes in bytes, times in seconds."""

    interval: float
    freshness: float  # the oldest that a row may be when it can be read
    commits: float  # a day
    files: float  # a day, as they are committed
    file_bytes: float  # size of each
    files_after: float  # a day, after compaction
    rewritten_bytes: float  # a day, by compaction
    core_share: float  # of one core, for compaction

    @property
    def needs_compaction(self) -> bool:
        """Whether commits make files that compaction has to join."""
        return self.rewritten_bytes > 0


def forecast(
    rate: Rate, interval: float, rules: CompactionRules, every: float, speed: float = BYTES_PER_S
) -> Forecast:
    """Forecast one interval.

    Maintenance looks at tables each `every` seconds, and rewrites `speed` bytes in a second.
    """
    records = rate.records_per_s * interval
    size = records * rate.bytes_per_record
    # No more files than rows; and a writer begins another when one is full.
    files = max(min(rate.files_per_commit, records), size / rules.target_bytes)
    commits = DAY / interval * min(1.0, records)  # commits without rows are left out
    file_bytes = size / files if files else 0.0
    rewrites = _rewrites(file_bytes, size, interval, rules, every)
    rewritten = rate.bytes_per_day * rewrites
    full_files = rate.bytes_per_day / rules.target_bytes
    return Forecast(
        interval=interval,
        freshness=interval + rate.work_seconds,
        commits=commits,
        files=commits * files,
        file_bytes=file_bytes,
        files_after=min(commits * files, max(1.0, full_files)) if rewrites else commits * files,
        rewritten_bytes=rewritten,
        core_share=rewritten / speed / DAY,
    )


def _rewrites(
    file_bytes: float, commit_bytes: float, interval: float, rules: CompactionRules, every: float
) -> float:
    """Return how often a byte is rewritten until its file is large enough.

    Once from small files, when there are enough of them or maintenance looks; then at half of the
    doublings up to the target, as a file is joined with others of its own size, often with
    several at once.
    """
    if file_bytes == 0 or file_bytes >= rules.small_bytes:
        return 0.0
    commits_per_look = max(1.0, every / interval)
    joined_bytes = max(commit_bytes * commits_per_look, file_bytes * rules.min_input_files * 2)
    return 1.0 + max(0.0, math.log2(rules.target_bytes / joined_bytes)) / 2


def whiteboard(
    rate: Rate, own: float | None, rules: CompactionRules, every: float, speed: float = BYTES_PER_S
) -> list[Forecast]:
    """Forecast the usual intervals, and the pipeline's own."""
    intervals = sorted({*INTERVALS, *([own] if own else [])})
    return [forecast(rate, interval, rules, every, speed) for interval in intervals]


def measured(commits: Sequence[Mapping[str, Any]]) -> Rate | None:
    """Measure the rate from a table's commits, oldest first; None: too few of them.

    Of the first one only the time counts: it may hold what was waiting before the start.
    """
    with_rows = [commit for commit in commits[1:] if commit["landed"]]
    seconds = commits[-1]["at"] - commits[0]["at"] if commits else 0.0
    if len(with_rows) < 2 or seconds <= 0:
        return None
    records = sum(commit["landed"] for commit in with_rows)
    work_seconds = sum(commit["stage_seconds"] + commit["commit_seconds"] for commit in with_rows)
    return Rate(
        records_per_s=records / seconds,
        bytes_per_record=sum(commit["bytes"] for commit in with_rows) / records,
        files_per_commit=sum(commit["files"] for commit in with_rows) / len(with_rows),
        work_seconds=work_seconds / len(with_rows),
        measured=len(with_rows),
    )
