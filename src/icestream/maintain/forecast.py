"""Forecast: pure, what a commit interval makes of a rate: freshness, commits and files a day."""

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
    """What comes to a table."""

    records_per_s: float
    bytes_per_record: float  # as stored
    files_per_commit: float = _FILES  # from tasks and partitions, where rows are few
    work_seconds: float = _WORK_SECONDS
    measured: int = 0  # commits that tell it; 0: somebody said it

    @property
    def bytes_per_day(self) -> float:
        """Stored a day."""
        return self.records_per_s * self.bytes_per_record * DAY


@dataclass(frozen=True)
class Forecast:
    """One line of the whiteboard; sizes in bytes, times in seconds."""

    interval: float
    freshness: float  # the oldest that a row may be when it can be read
    commits: float  # a day
    files: float  # a day, as they are committed
    file_bytes: float  # size of each
    files_after: float  # a day, after compaction
    rewritten_bytes: float  # a day, by compaction
    core_share: float  # of one core, for that

    @property
    def needs_compaction(self) -> bool:
        """Whether files come out smaller than they should be."""
        return self.rewritten_bytes > 0


def forecast(
    rate: Rate, interval: float, rules: CompactionRules, every: float, speed: float = BYTES_PER_S
) -> Forecast:
    """One interval; compaction looks `every` so many seconds and rewrites `speed` bytes in one."""
    records = rate.records_per_s * interval
    size = records * rate.bytes_per_record
    # No more files than rows; and a writer begins another when one is full.
    files = max(min(rate.files_per_commit, records), size / rules.target_bytes)
    commits = DAY / interval * min(1.0, records)  # commits without rows are left out
    each = size / files if files else 0.0
    rewrites = _rewrites(each, size, interval, rules, every)
    rewritten = rate.bytes_per_day * rewrites
    whole = rate.bytes_per_day / rules.target_bytes
    return Forecast(
        interval=interval,
        freshness=interval + rate.work_seconds,
        commits=commits,
        files=commits * files,
        file_bytes=each,
        files_after=min(commits * files, max(1.0, whole)) if rewrites else commits * files,
        rewritten_bytes=rewritten,
        core_share=rewritten / speed / DAY,
    )


def _rewrites(
    each: float, commit: float, interval: float, rules: CompactionRules, every: float
) -> float:
    """How often a byte is written anew until its file is large enough.

    Once from small files, of which enough must be there or an interval of maintenance passed; then,
    as a file is joined with others of its own size and often with several at once, at half of the
    doublings that are left.
    """
    if each == 0 or each >= rules.small_bytes:
        return 0.0
    looks = max(1.0, every / interval)
    first = max(commit * looks, each * rules.min_input_files * 2)
    return 1.0 + max(0.0, math.log2(rules.target_bytes / first)) / 2


def whiteboard(
    rate: Rate, own: float | None, rules: CompactionRules, every: float, speed: float = BYTES_PER_S
) -> list[Forecast]:
    """The usual intervals, and the pipeline's own."""
    intervals = sorted({*INTERVALS, *([own] if own else [])})
    return [forecast(rate, each, rules, every, speed) for each in intervals]


def measured(commits: Sequence[Mapping[str, Any]]) -> Rate | None:
    """The rate by a table's commits, oldest first; None: too few of them.

    The first one only says when the others began: it may hold what was waiting before the start.
    """
    some = [each for each in commits[1:] if each["landed"]]
    seconds = commits[-1]["at"] - commits[0]["at"] if commits else 0.0
    if len(some) < 2 or seconds <= 0:
        return None
    records = sum(each["landed"] for each in some)
    return Rate(
        records_per_s=records / seconds,
        bytes_per_record=sum(each["bytes"] for each in some) / records,
        files_per_commit=sum(each["files"] for each in some) / len(some),
        work_seconds=sum(each["stage_seconds"] + each["commit_seconds"] for each in some)
        / len(some),
        measured=len(some),
    )
