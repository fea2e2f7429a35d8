"""Which files are due: enough small ones, or too many deleted rows; never for little gain."""

import pytest

from healths import MB, NOW, File, contents, files
from icestream.errors import ConfigError
from icestream.maintain.compaction import CompactionRules, due_groups

RULES = CompactionRules.of({}, {}, mirror=False)
MIRROR = CompactionRules.of({}, {}, mirror=True)
HOT_SINCE = NOW - 300


def sizes(data, rules=RULES):
    """MB of the files in each group that is due."""
    found = due_groups(contents(data), rules, HOT_SINCE)
    return [sorted(data[int(name[1:])].size for name in each.group.files) for each in found]


@pytest.mark.parametrize(
    "data, expected",
    [
        pytest.param([], [], id="nothing"),
        pytest.param(files(7), [], id="too few"),
        pytest.param(files(8), [[1] * 8], id="enough"),
        pytest.param(files(15, age=10), [], id="too few in a partition that is being written"),
        pytest.param(files(16, age=10), [[1] * 16], id="enough also there"),
        pytest.param(
            files(8) + files(1, age=10, moved=True), [[1] * 9], id="a compaction is no writing"
        ),
        pytest.param(files(8, size=192), [], id="large enough"),
        pytest.param(files(7) + files(1, size=100), [], id="one large file is not copied for 7 MB"),
        pytest.param(files(8) + files(1, size=100), [[1] * 8], id="nor for 8"),
        pytest.param(
            files(60, size=2) + files(1, size=100), [[2] * 60 + [100]], id="but for its own size"
        ),
        pytest.param(files(3, size=100), [[100] * 3], id="few, but they fill a file"),
        pytest.param(files(2, size=100), [], id="few, and they do not"),
        pytest.param(
            files(8, place="a") + files(7, place="b") + files(9, place="c"),
            [[1] * 9, [1] * 8],
            id="partition by partition, the most files first",
        ),
        pytest.param(
            files(20, place="new", age=10) + files(8, place="old"),
            [[1] * 8, [1] * 20],
            id="what is being written comes last",
        ),
        pytest.param(
            files(1, size=300, deleted=300), [[300]], id="deleted rows, whatever the size"
        ),
        pytest.param(files(1, size=300, deleted=299), [], id="not enough deleted rows"),
        pytest.param(
            files(9, place="small") + files(1, size=300, place="dirty", deleted=500),
            [[300], [1] * 9],
            id="deleted rows first",
        ),
        pytest.param(
            files(1, size=300, place="x", age=10, deleted=900) + files(8, place="y"),
            [[1] * 8, [300]],
            id="but a partition at rest before them",
        ),
        pytest.param(
            files(8) + files(1, size=4, deleted=1000),
            [[1] * 8 + [4]],
            id="what is left of deleted ones joins the small",
        ),
    ],
)
def test_what_is_due(data, expected):
    assert sizes(data) == [sorted(group) for group in expected]


def test_groups_are_bounded_by_bytes():
    found = sizes(files(40, size=100))
    assert [sum(group) for group in found] == [1000] * 4
    assert all(sum(group) * MB <= RULES.group_bytes for group in found)


def test_groups_of_a_mirror_are_bounded_by_records():
    data = files(50, records=150_000)
    found = due_groups(contents(data), MIRROR, HOT_SINCE)
    assert [each.group.records for each in found] == [13 * 150_000] * 3 + [11 * 150_000]
    assert len(due_groups(contents(data), RULES, HOT_SINCE)) == 1


def test_a_group_tells_what_is_wrong():
    dirty = File(size=2, place="d=1", age=900, deleted=400)
    data = [dirty, *files(9, place="d=1", age=500)]
    (only,) = due_groups(contents(data), RULES, HOT_SINCE)
    assert (only.with_deletes, only.small, only.most_deleted, only.being_written) == (
        1,
        9,
        0.4,
        False,
    )
    assert only.oldest == NOW - 900
    assert only.group.files[0] == "f0"  # the worst first
    assert (only.group.partition, only.group.values, only.group.bytes) == ("d=1", ("d=1",), 11 * MB)
    assert only.group.largest == MB  # not the one that is there for its deletes


def test_many_delete_files_are_a_reason_if_asked_for():
    data = files(1, size=300, delete_files=12)
    assert sizes(data) == []
    rules = CompactionRules.of({"delete-file-threshold": "12"}, {}, mirror=False)
    assert sizes(data, rules) == [[300]]


def test_a_stream_of_small_files_is_rewritten_seldom_and_stays_few():
    """A file of 1 MB a minute for a day: what compaction keeps, and how often it writes."""
    data, written, most = [], 0.0, 0
    for _ in range(1440):
        data.append(File(age=10))
        for each in due_groups(contents(data), RULES, HOT_SINCE):
            taken = {int(name[1:]) for name in each.group.files}
            total = sum(data[at].size for at in taken)
            written += total
            data = [file for at, file in enumerate(data) if at not in taken]
            full, rest = divmod(total, 256)
            data += [File(size=256, moved=True)] * int(full)
            data += [File(size=rest, moved=True)] * bool(rest)
        most = max(most, sum(file.size < 192 for file in data))
    assert sum(file.size for file in data) == 1440
    assert most <= 24
    assert written / (1440) < 6  # times that a byte is written anew


def test_options_win_over_properties():
    properties = {"write.target-file-size-bytes": str(64 * MB)}
    assert CompactionRules.of({}, properties, mirror=False).target_bytes == 64 * MB
    rules = CompactionRules.of(
        {"target-file-size-bytes": str(32 * MB), "min-input-files": "3"}, properties, mirror=False
    )
    assert (rules.target_bytes, rules.small_bytes, rules.min_input_files) == (32 * MB, 24 * MB, 3)
    assert rules.group_bytes == 128 * MB


@pytest.mark.parametrize(
    "options",
    [
        {"target-file-size-bytes": "256MB"},
        {"min-input-files": "-1"},
        {"delete-ratio-threshold": "30%"},
        {"delete-ratio-threshold": "2"},
    ],
)
def test_values_that_mean_nothing_are_refused(options):
    with pytest.raises(ConfigError, match=next(iter(options))):
        CompactionRules.of(options, {}, mirror=False)
