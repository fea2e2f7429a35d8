"""The whiteboard: interval → freshness → files → compaction."""

from itertools import pairwise

import pytest

from healths import MB, NOW, File, contents
from icestream.maintain.compaction import CompactionRules, due_groups
from icestream.maintain.forecast import DAY, Rate, forecast, measured, whiteboard

RULES = CompactionRules.of({}, {}, mirror=False)
EVERY = 300.0


def test_a_line():
    """5,000 records/s of 60 bytes: 18 MB a minute."""
    line = forecast(Rate(5000, 60, files_per_commit=2), 60, RULES, EVERY)
    assert (line.commits, line.files, line.file_bytes) == (1440, 2880, 9_000_000)
    assert line.freshness == 61
    assert line.files_after == pytest.approx(5000 * 60 * DAY / (256 * MB))
    assert line.needs_compaction
    assert line.core_share == pytest.approx(line.rewritten_bytes / 10e6 / DAY)


def test_longer_intervals_make_fewer_and_larger_files():
    lines = whiteboard(Rate(5000, 60), None, RULES, EVERY)
    assert [line.interval for line in lines] == [10, 60, 300, 900, 3600]
    for before, after in pairwise(lines):
        assert before.freshness < after.freshness
        assert before.commits > after.commits
        assert before.files > after.files
        assert before.file_bytes < after.file_bytes
        assert before.rewritten_bytes >= after.rewritten_bytes
        assert before.files_after == after.files_after


def test_files_are_no_larger_than_the_target():
    line = forecast(Rate(5000, 60), 3600, RULES, EVERY)
    assert line.file_bytes == RULES.target_bytes
    assert (line.rewritten_bytes, line.needs_compaction) == (0, False)
    assert line.files_after == line.files


def test_fewer_rows_than_files():
    """One record in ten seconds: no commit without a row, and no file without one."""
    line = forecast(Rate(0.01, 100, files_per_commit=8), 10, RULES, EVERY)
    assert line.commits == line.files * 10 == pytest.approx(864)


def test_the_own_interval_is_among_them():
    lines = whiteboard(Rate(10, 60), 30.0, RULES, EVERY)
    assert [line.interval for line in lines] == [10, 30, 60, 300, 900, 3600]
    assert len(whiteboard(Rate(10, 60), 60.0, RULES, EVERY)) == 5


@pytest.mark.parametrize("interval, size", [(60, 1.0), (60, 8.0), (300, 3.0), (10, 0.25)])
def test_compaction_rewrites_about_as_much_as_forecast(interval, size):
    """By the rules themselves: a day of commits of two files each, and a look every 5 minutes."""
    data, written = [], 0.0
    for at in range(int(DAY / interval)):
        data += [File(size=size, age=10)] * 2
        if (at * interval) % EVERY:
            continue
        for each in due_groups(contents(data), RULES, NOW - EVERY):
            taken = {int(name[1:]) for name in each.group.files}
            total = sum(data[number].size for number in taken)
            written += total
            full, rest = divmod(total, 256)
            data = [file for number, file in enumerate(data) if number not in taken]
            data += [File(size=256, moved=True)] * int(full)
            data += [File(size=rest, moved=True)] * bool(rest)
    rate = Rate(1000, 2 * size * MB / interval / 1000)
    expected = forecast(rate, interval, RULES, EVERY)
    assert written * MB == pytest.approx(expected.rewritten_bytes, rel=0.5)
    assert len(data) <= expected.files_after + 2 * EVERY / interval + 24


def commit(at, landed=100, **facts):
    known = {"files": 2, "bytes": 5000, "stage_seconds": 0.5, "commit_seconds": 0.1}
    return {"at": at, "landed": landed, **known, **facts}


def test_rates_are_measured_between_commits():
    """What the first one held had waited for nobody knows how long."""
    commits = [commit(0, 10**6), commit(10), commit(20, 300, bytes=15000, files=4), commit(30, 0)]
    rate = measured(commits)
    assert rate is not None
    assert rate.records_per_s == pytest.approx(400 / 30)
    assert (rate.bytes_per_record, rate.files_per_commit, rate.measured) == (50, 3, 2)
    assert rate.work_seconds == pytest.approx(0.6)


@pytest.mark.parametrize(
    "commits", [[], [commit(0)], [commit(0), commit(1)], [commit(0), commit(1, 0), commit(2)]]
)
def test_too_few_commits_tell_no_rate(commits):
    assert measured(commits) is None
