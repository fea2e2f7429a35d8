"""The position map of a rewrite against a list, and deletes that are carried over by it."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from icestream.errors import InternalError
from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.carry_over import DeleteCarryOver
from icestream.maintain.rewrite.merge import DeleteFileGroup, delete_file_groups, is_worth_merging
from icestream.maintain.rewrite.row_mapping import RewriteInput, RewriteOutput, RowMapping
from icestream.tables.live_files import FileEntry, LiveFiles


def positions(*numbers):
    return np.array(numbers, dtype=np.int64)


@st.composite
def histories(draw):
    """Inputs with dead rows, how the rest is cut into outputs, and what dies later."""
    sources = []
    for number in range(draw(st.integers(1, 4))):
        rows = draw(st.integers(0, 12))
        dead = draw(st.sets(st.integers(0, max(0, rows - 1)))) if rows else set()
        sources.append(RewriteInput(f"in{number}", rows, positions(*sorted(dead))))
    live = sum(each.live for each in sources)
    cuts = sorted(draw(st.lists(st.integers(0, live), max_size=3)))
    sizes = np.diff([0, *cuts, live]).tolist()
    outputs = [RewriteOutput(f"out{number}", size) for number, size in enumerate(sizes)]
    later = {
        f"in{number}": positions(*draw(st.lists(st.integers(0, 14), max_size=8)))
        for number in draw(st.sets(st.integers(0, 5)))
    }
    return sources, outputs, later


@given(histories())
def test_every_row_is_found_where_it_went(history):
    sources, outputs, later = history
    written = [
        (source.path, position)
        for source in sources
        for position in range(source.rows)
        if position not in source.deleted
    ]
    places = [(output.path, at) for output in outputs for at in range(output.rows)]
    went = dict(zip(written, places, strict=True))
    expected = {
        went[path, position]
        for path, dead in later.items()
        for position in dead.tolist()
        if (path, position) in went
    }
    moved = RowMapping(sources, outputs).map_positions(later)
    assert {(path, at) for path, dead in moved.items() for at in dead.tolist()} == expected
    assert sum(len(dead) for dead in moved.values()) == len(expected)
    assert all((np.diff(dead) > 0).all() for dead in moved.values())


def test_a_row_too_few_is_a_bug():
    with pytest.raises(InternalError, match="3 rows were read to be written anew, and 2 are"):
        RowMapping([RewriteInput("a", 4, positions(1))], [RewriteOutput("x", 2)])


# -- deletes that arrive -----------------------------------------------------------------------


class Deletes:
    """Delete files by name, and how often each was read."""

    def __init__(self):
        self.contents = {}
        self.reads = []

    def add(self, name, sequence, **dead):
        self.contents[name] = {path: positions(*numbers) for path, numbers in dead.items()}
        bounds = sorted(path.encode() for path in dead)
        count = sum(len(numbers) for numbers in dead.values())
        return FileEntry(name, 0, (), sequence, count, 1, bounds[0], bounds[-1])

    def read(self, name):
        self.reads.append(name)
        return iter(self.contents[name].items())


def listed(*deletes, data=("a", "b", "c")):
    files = {path: FileEntry(path, 0, (), 1, 10, 1) for path in data}
    return LiveFiles(files, {each.path: each for each in deletes}, 1, 9)


@pytest.fixture
def deletes():
    return Deletes()


def carry(deletes, planned):
    moves = RowMapping(
        [RewriteInput("a", 5, positions(0)), RewriteInput("b", 5, positions())],
        [RewriteOutput("x", 6), RewriteOutput("y", 3)],
    )
    return DeleteCarryOver(moves, ["a", "b"], planned, deletes.read)


def dead(found):
    return {path: some.tolist() for path, some in found.deleted_in_outputs().items()}


def test_what_was_dead_when_planned_is_not_carried(deletes):
    old = deletes.add("old", 3, a=[0])
    found = carry(deletes, listed(old))
    found.read_new_deletes(listed(old))
    assert dead(found) == {}
    assert deletes.reads == []
    new, other = deletes.add("new", 10, a=[0, 1], b=[4]), deletes.add("other", 10, c=[2])
    found.read_new_deletes(listed(old, new, other))
    found.read_new_deletes(listed(old, new, other))
    assert dead(found) == {"x": [0], "y": [2]}
    assert deletes.reads == ["new"]


def test_deletes_of_nothing_but_inputs_go(deletes):
    mine = deletes.add("mine", 3, a=[0])
    both = deletes.add("both", 4, a=[0], b=[1], gone=[7])
    mixed = deletes.add("mixed", 5, b=[1], c=[1])
    found = carry(deletes, listed(mine, both, mixed))
    new = deletes.add("new", 10, a=[2], later=[3])  # `later` came after the list of data files
    now = listed(mine, both, mixed, new)
    found.read_new_deletes(now)
    told = found.dangling(now, carries=True)
    assert [each.path for each in told.removed] == ["mine", "both"]
    assert told.pruned is None


def test_a_delete_file_is_written_anew_if_none_can_go(deletes):
    mixed = deletes.add("mixed", 5, b=[1], c=[1, 2], gone=[3])
    found = carry(deletes, listed(mixed))
    assert found.dangling(listed(mixed), carries=False).removed == ()
    told = found.dangling(listed(mixed), carries=True)
    assert [each.path for each in told.removed] == ["mixed"]
    assert {path: some.tolist() for path, some in told.pruned.items()} == {"c": [1, 2]}


def test_deletes_that_were_taken_back(deletes):
    found = carry(deletes, listed())
    with pytest.raises(GaveWay, match="taken back"):
        found.dangling(listed(), carries=True)


# -- deletes that are merged -------------------------------------------------------------------


def test_shares_are_of_one_partition(deletes):
    one = [deletes.add(f"d{n}", n, a=[n]) for n in range(3)]
    elsewhere = FileEntry("e", 0, ("north",), 5, 1, 1, b"z", b"z")
    (first, second) = delete_file_groups(listed(*one, elsewhere))
    assert first == DeleteFileGroup(tuple(one), (FileEntry("a", 0, (), 1, 10, 1),))
    assert (first.sequence, is_worth_merging(first)) == (2, True)
    assert second == DeleteFileGroup((elsewhere,), ())
    assert is_worth_merging(second)  # it is about nothing that is there
    assert not is_worth_merging(DeleteFileGroup((one[0],), first.data))
    assert list(delete_file_groups(listed(*one, elsewhere), ["a"])) == [first]
    assert list(delete_file_groups(listed(*one, elsewhere), ["e"])) == [second]
