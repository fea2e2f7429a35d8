"""From health to actions: a table of cases, each with its reasons."""

import pytest

from healths import DAY, MB, NOW, File, files, health, maintenance, snapshots
from icestream.errors import ConfigError
from icestream.maintain.action import ActionKind, Ending, FileGroup
from icestream.maintain.compaction import CompactionRules
from icestream.maintain.policy import Budget, allowed_seconds, due_actions
from icestream.maintain.rewrite_speed import (
    BYTES_PER_S,
    FILE_SECONDS,
    PastAction,
    RewriteSpeed,
    rewrite_speed,
)

REWRITE, DELETES = ActionKind.REWRITE_DATA_FILES, ActionKind.REWRITE_POSITION_DELETE_FILES
MANIFESTS, EXPIRE, ORPHANS = (
    ActionKind.REWRITE_MANIFESTS,
    ActionKind.EXPIRE_SNAPSHOTS,
    ActionKind.REMOVE_ORPHAN_FILES,
)


def group(files, size):
    return FileGroup("", 0, tuple(map(str, range(files))), int(size), 0, ())


def ran(kind, ago, table="shop.orders", seconds=1.0, size=0, ending=Ending.DONE, files=1):
    return PastAction(table, kind, NOW - ago, seconds, files, size, ending)


CASES = [
    ("a new table", {}, {}, [], {}),
    (
        "small files",
        {"data": files(128, place="day=2026-11-14", age=540)},
        {},
        [],
        {REWRITE: "128 small files in day=2026-11-14, oldest 9 min"},
    ),
    (
        "small files, not partitioned",
        {"data": files(8, age=7200)},
        {},
        [],
        {REWRITE: "8 small files, oldest 2 h"},
    ),
    (
        "several partitions",
        {"data": files(8, place="a", age=7200) + files(9, place="b")},
        {},
        [],
        {REWRITE: "17 small files in 2 partitions, oldest 2 h"},
    ),
    (
        "deleted rows",
        {"data": [File(size=300, deleted=450, age=100)], "mirror": True},
        {},
        [],
        {REWRITE: "1 file with 45% of its rows deleted, oldest 100 s"},
    ),
    (
        "switched off",
        {"data": files(128)},
        {"rewrite_data_files": False},
        [],
        {},
    ),
    (
        "fewer files are enough if told so",
        {"data": files(3)},
        {"rewrite_data_files": {"min-input-files": "3"}},
        [],
        {REWRITE: "3 small files, oldest 1 h"},
    ),
    # ── snapshots ──
    ("as many snapshots as may stay", snapshots(500, 60), {}, [], {}),
    ("a few more", snapshots(549, 60), {}, [], {}),
    (
        "a tenth more",
        snapshots(550, 60),
        {},
        [],
        {EXPIRE: "550 snapshots, 500 of them may stay"},
    ),
    ("one is too old", snapshots(26, 3600), {}, [], {}),
    (
        "some are too old",
        snapshots(28, 3600),
        {},
        [],
        {EXPIRE: "3 snapshots older than 1 d, oldest 27 h"},
    ),
    (
        "one is far too old",
        {"snapshots": 22, "snapshot_times": (NOW - 3 * DAY, *([NOW - 60.0] * 20))},
        {},
        [],
        {EXPIRE: "1 snapshot older than 1 d, oldest 3 d"},
    ),
    ("old, but the last ones always stay", snapshots(20, DAY), {}, [], {}),
    (
        "old, and one more than always stay",
        snapshots(21, DAY),
        {},
        [],
        {EXPIRE: "1 snapshot older than 1 d, oldest 20 d"},
    ),
    (
        "retain_last wins over max_snapshots",
        snapshots(21, 1),
        {"expire_snapshots": {"max_snapshots": 5}},
        [],
        {},
    ),
    (
        "at its most aggressive",
        snapshots(2, 1),
        {"expire_snapshots": {"max_snapshots": 1, "retain_last": 1, "older_than": "1ms"}},
        [],
        {EXPIRE: "2 snapshots, 1 of them may stay"},
    ),
    (
        "tags keep them all",
        {"snapshots": 600, "snapshot_times": ()},
        {},
        [],
        {},
    ),
    ("expiry is off", snapshots(5000, 60), {"expire_snapshots": False}, [], {}),
    # ── manifests ──
    ("as many manifests as Iceberg leaves", {"manifests": 100}, {}, [], {}),
    (
        "many small manifests",
        {"manifests": 101, "data_files": 2000},
        {},
        [],
        {MANIFESTS: "101 manifests for 2,000 data files"},
    ),
    (
        "many, but they are as large as they should be",
        {"manifests": 400, "manifest_bytes": 400 * 6 * MB},
        {},
        [],
        {},
    ),
    ("manifests are off", {"manifests": 400}, {"rewrite_manifests": False}, [], {}),
    # ── position deletes ──
    (
        "many delete files on each data file",
        {"data": files(2, size=300, delete_files=12), "deletes": [""] * 24, "mirror": True},
        {},
        [],
        {DELETES: "24 delete files, up to 12 read with a file"},
    ),
    (
        "delete files that are read with every data file",
        {"data": files(9, size=300, delete_files=1), "deletes": [""] * 11, "shared": True},
        {},
        [],
        {DELETES: "11 delete files, up to 11 read with a file"},
    ),
    (
        "few delete files",
        {"data": files(2, size=300, delete_files=9), "deletes": [""] * 18, "mirror": True},
        {},
        [],
        {},
    ),
    (
        "fewer are too many if told so",
        {"data": files(2, size=300, delete_files=9), "deletes": [""] * 18, "mirror": True},
        {"rewrite_position_delete_files": {"min-input-files": "9"}},
        [],
        {DELETES: "18 delete files, up to 9 read with a file"},
    ),
    (
        "delete files go with the data files that are rewritten anyway",
        {
            "data": files(2, size=300, delete_files=12, deleted=500, place="a")
            + files(3, size=300, delete_files=20, place="b"),
            "deletes": ["a"] * 24 + ["b"] * 30,
        },
        {},
        [],
        {
            REWRITE: "2 files with up to 50% of their rows deleted in a, oldest 1 h",
            DELETES: "30 delete files in b, up to 20 read with a file",
        },
    ),
    (
        "deletes are off",
        {"data": files(2, size=300, delete_files=12), "deletes": [""] * 24},
        {"rewrite_position_delete_files": False},
        [],
        {},
    ),
    # ── orphans ──
    ("too young to have orphans", {"began": NOW - 3 * DAY + 1}, {}, [], {}),
    (
        "never looked for orphans",
        {"began": NOW - 3 * DAY},
        {},
        [],
        {ORPHANS: "files that no snapshot names, never looked for"},
    ),
    (
        "looked for them yesterday",
        {"began": NOW - 9 * DAY},
        {},
        [ran(ORPHANS, DAY + 1), ran(ORPHANS, 5 * DAY)],
        {ORPHANS: "files that no snapshot names, last looked for 24 h ago"},
    ),
    (
        "looked for them today",
        {"began": NOW - 9 * DAY},
        {},
        [ran(ORPHANS, DAY - 1, ending=Ending.NOTHING)],
        {},
    ),
    (
        "tried today, and failed",
        {"began": NOW - 9 * DAY},
        {},
        [ran(ORPHANS, 60, ending=Ending.FAILED), ran(ORPHANS, 60, table="shop.users")],
        {ORPHANS: "files that no snapshot names, never looked for"},
    ),
    ("orphans are off", {"began": 0.0}, {"remove_orphan_files": False}, [], {}),
]


@pytest.mark.parametrize(
    "facts, options, past, expected", [pytest.param(*c[1:], id=c[0]) for c in CASES]
)
def test_cases(facts, options, past, expected):
    rules = CompactionRules.of(
        options.get("rewrite_data_files") or {}, {}, facts.get("mirror", False)
    )
    actions = due_actions([health(rules=rules, **facts)], maintenance(**options), past, NOW)
    assert {each.kind: each.reason for each in actions} == expected
    assert all(each.table == "shop.orders" for each in actions)
    assert len(actions) == len(expected)


def test_all_of_it_can_be_switched_off():
    sick = health(files(500), began=0.0, manifests=500, **snapshots(900, 60))
    assert len(due_actions([sick], maintenance(), [], NOW)) == 4
    assert due_actions([sick], False, [], NOW) == []


def test_delete_files_are_named():
    sick = health(files(2, size=300, delete_files=12), deletes=[""] * 24)
    (action,) = due_actions([sick], maintenance(), [], NOW)
    assert action.groups[0].files == tuple(f"d{at}" for at in range(24))


def test_a_value_that_means_nothing_is_refused():
    sick = health(files(2, size=300, delete_files=12), deletes=[""] * 24)
    with pytest.raises(ConfigError, match="min-input-files"):
        due_actions(
            [sick], maintenance(rewrite_position_delete_files={"min-input-files": "x"}), [], NOW
        )


# ── the budget ──────────────────────────────────────────────────────────────────────────────────


def test_rewrites_stop_where_the_budget_ends():
    """5 min, a quarter of a core, twice at most: 150 s of work, at a guess 10 MB each."""
    sick = health(files(8, size=100, place="a") + files(8, size=80, place="b"))
    assert sick.compaction_bytes == 1440 * MB  # 151 s, and what a group costs besides
    (action,) = due_actions([sick], maintenance(), [], NOW)
    assert [each.partition for each in action.groups] == ["a"]
    fast = [ran(REWRITE, 7200, seconds=10, size=10 * 2 * 10**7)]
    (action,) = due_actions([sick], maintenance(), fast, NOW)
    assert [each.partition for each in action.groups] == ["a", "b"]


def test_more_is_done_when_much_is_waiting():
    sick = health(files(600, size=10))
    (action,) = due_actions([sick], maintenance(), [], NOW)
    assert len(action.groups) == 2  # of 6, each 102 of 1,020 MB: half a core for 600 s
    assert 2000 * MB < sum(each.bytes for each in action.groups) < 300 * BYTES_PER_S


def test_a_group_larger_than_the_budget_runs_alone():
    sick = health(files(40, size=25))
    slow = [ran(REWRITE, 7200, seconds=1000, size=100 * MB)]
    (action,) = due_actions([sick], maintenance(), slow, NOW)
    assert len(action.groups) == 1
    assert action.groups[0].bytes == 1000 * MB


def test_a_group_costs_more_than_its_bytes():
    tiny = [File(place=f"p{at}", size=0.001) for at in range(2000) for _ in range(8)]
    (action,) = due_actions([health(tiny)], maintenance(), [], NOW)
    assert len(action.groups) == 598  # half a second each, and a little
    assert action.reason.startswith("4,784 small files in 598 partitions")


def test_what_was_spent_counts():
    sick = health(files(8))
    spent = [ran(REWRITE, 600, seconds=974.0, size=974 * 10**7)]
    assert due_actions(
        [sick], maintenance(), spent, NOW
    )  # a quarter of 3,900 s, but for one second
    spent = [ran(EXPIRE, 600, seconds=975.0)]
    assert due_actions([sick], maintenance(), spent, NOW) == []
    assert due_actions([sick], maintenance(), [ran(EXPIRE, 3601, seconds=975.0)], NOW)


@pytest.mark.parametrize(
    "waiting, spent, expected",
    [(0, 0, 150), (300, 0, 150), (301, 0, 300), (301, 1800, 150), (0, 900, 75), (0, 9999, 0)],
)
def test_seconds_that_are_allowed(waiting, spent, expected):
    past = [ran(REWRITE, 60, seconds=spent)] if spent else []
    assert allowed_seconds(maintenance(), past, waiting, NOW, Budget()) == pytest.approx(expected)


def test_tables_take_turns_and_share_one_budget():
    few = health(files(8, size=30), table="a.few")
    many = health(files(200, size=30), table="z.many")
    taken = {
        each.table: len(each.groups) for each in due_actions([few, many], maintenance(), [], NOW)
    }
    assert taken == {"z.many": 2, "a.few": 1}
    (only,) = due_actions([few, many], maintenance(), [], NOW, Budget(share=0.02, most=0.02))
    assert (only.table, len(only.groups)) == ("z.many", 1)


def test_a_guess_until_rewrites_were_seen():
    gave_way = ran(REWRITE, 20, seconds=1, size=9000, ending=Ending.GAVE_WAY)
    assert (
        rewrite_speed([]) == rewrite_speed([gave_way, ran(EXPIRE, 10, seconds=1)]) == RewriteSpeed()
    )


@pytest.mark.parametrize("speed", [2e6, 10e6, 40e6])
def test_the_pace_of_large_files_is_that_of_their_bytes(speed):
    runs = [ran(REWRITE, 9, files=10, size=size, seconds=size / speed) for size in [2 * 10**9] * 20]
    assert RewriteSpeed(FILE_SECONDS, speed).cost(group(10, 2e9)) == pytest.approx(
        rewrite_speed(runs).cost(group(10, 2e9)), rel=0.15
    )


def test_small_files_that_waited_make_large_ones_no_slower():
    runs = [ran(REWRITE, 9, files=16, size=10**6, seconds=2.0 + at % 3) for at in range(20)]
    pace = rewrite_speed(runs)
    assert pace.cost(group(16, 1e6)) == pytest.approx(3, rel=0.2)
    assert pace.cost(group(16, 20e6)) < 8  # and not 60


def test_many_groups_are_not_one():
    runs = [ran(REWRITE, 9, files=4784, size=5 * 10**6, seconds=300.0)]
    assert rewrite_speed(runs).cost(group(8, 8e3)) == pytest.approx(0.5, rel=0.1)


def test_expiry_takes_a_fiftieth_of_the_time():
    busy, aggressive = (
        health(**snapshots(60, 1)),
        maintenance(expire_snapshots={"older_than": "30s", "retain_last": 5}),
    )
    assert due_actions([busy], aggressive, [ran(EXPIRE, 49, seconds=1)], NOW) == []
    assert len(due_actions([busy], aggressive, [ran(EXPIRE, 51, seconds=1)], NOW)) == 1
    assert (
        len(due_actions([busy], aggressive, [ran(EXPIRE, 9, seconds=1, table="a.other")], NOW)) == 1
    )
    assert (
        len(due_actions([busy], aggressive, [ran(EXPIRE, -9, seconds=1)], NOW)) == 1
    )  # a wrong clock
    asked = Budget(expiry=float("inf"))
    assert len(due_actions([busy], aggressive, [ran(EXPIRE, 9, seconds=1)], NOW, asked)) == 1


def test_expiry_does_not_rest_while_snapshots_pile_up():
    """The first one of a run may take ten seconds: Java is cold."""
    few = maintenance(expire_snapshots={"max_snapshots": 100, "retain_last": 5})
    slow = [ran(EXPIRE, 49, seconds=9)]
    assert due_actions([health(**snapshots(149, 1))], few, slow, NOW) == []
    (action,) = due_actions([health(**snapshots(150, 1))], few, slow, NOW)
    assert action.reason == "150 snapshots, 100 of them may stay"
