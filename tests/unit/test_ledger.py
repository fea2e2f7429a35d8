"""The ledger: stored in links, restored as a whole, or refused."""

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.errors import SourceChanged
from icestream.sources import ledger as ledgers
from icestream.sources.ledger import (
    FOLDER,
    Ledger,
    Split,
    longest_ledger,
    restore_ledger,
    store_list,
)


def splits(count, name="f"):
    return [Split(f"{name}{at}.json", 100 + at, at * 10**9, 0, 100 + at, 7) for at in range(count)]


def lines(location, name):
    return [json.loads(line) for line in (location / FOLDER / name).read_text().splitlines()]


def test_a_list_comes_back(tmp_path):
    whole = Ledger(splits(5))
    name = store_list(whole, 5, str(tmp_path), "c1", None)
    back = restore_ledger(str(tmp_path), name, 5)
    assert back.splits == whole.splits
    assert back.digest(5) == whole.digest(5)
    assert "c1" in name


def test_only_the_part_that_a_table_has_reached_is_stored(tmp_path):
    name = store_list(Ledger(splits(5)), 3, str(tmp_path), "c1", None)
    assert restore_ledger(str(tmp_path), name, 3).splits == splits(3)


def test_an_empty_list(tmp_path):
    assert (
        len(restore_ledger(str(tmp_path), store_list(Ledger(), 0, str(tmp_path), "c1", None), 0))
        == 0
    )
    assert len(restore_ledger(str(tmp_path), None, 0)) == 0


def test_a_marker_without_a_list_knows_nothing(tmp_path):
    with pytest.raises(SourceChanged):
        restore_ledger(str(tmp_path), None, 3)


def test_only_what_came_since_is_written(tmp_path):
    whole = Ledger(splits(9))
    one = store_list(whole, 4, str(tmp_path), "c1", None)
    two = store_list(whole, 4, str(tmp_path), "c2", one)  # a commit that took nothing
    three = store_list(whole, 9, str(tmp_path), "c3", two)
    assert [len(lines(tmp_path, name)) - 1 for name in (one, two, three)] == [4, 0, 5]
    for name, count in ((one, 4), (two, 4), (three, 9)):
        assert restore_ledger(str(tmp_path), name, count).splits == splits(count)


def test_after_64_links_the_whole_is_written_again(tmp_path):
    whole, name, sizes = Ledger(splits(140)), None, []
    for count in range(1, 131):
        name = store_list(whole, count, str(tmp_path), f"c{count}", name)
        sizes.append(len(lines(tmp_path, name)) - 1)
        if count in (63, 64, 65, 66, 128, 129, 130):
            assert restore_ledger(str(tmp_path), name, count).splits == whole.splits[:count]
    assert sizes == [1] * 64 + [65] + [1] * 63 + [129, 1]


def test_a_table_that_is_behind_its_own_list_starts_anew(tmp_path):
    """A commit that did not land left a longer list behind; nobody refers to it."""
    whole = Ledger(splits(9))
    far = store_list(whole, 9, str(tmp_path), "c1", None)
    name = store_list(whole, 5, str(tmp_path), "c2", far)
    assert lines(tmp_path, name)[0]["previous"] is None
    assert restore_ledger(str(tmp_path), name, 5).splits == splits(5)


@settings(max_examples=30)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=8), st.data())
def test_any_chain_gives_the_prefix(tmp_path_factory, steps, data):
    location = str(tmp_path_factory.getbasetemp())
    whole, count, name = Ledger(splits(60)), 0, None
    for number, step in enumerate(steps):
        count += step
        name = store_list(whole, count, location, f"c{number}", name)
    assert restore_ledger(location, name, count).splits == whole.splits[:count]
    wrong = data.draw(st.integers(0, 60).filter(lambda one: one != count))
    with pytest.raises(SourceChanged):
        restore_ledger(location, name, wrong)


@given(st.lists(st.sampled_from("abc"), max_size=6), st.lists(st.sampled_from("abc"), max_size=6))
def test_digests_tell_prefixes(one, two):
    left, right = Ledger(_named(one)), Ledger(_named(two))
    for count in range(min(len(one), len(two)) + 1):
        assert (left.digest(count) == right.digest(count)) == (one[:count] == two[:count])


def _named(names):
    return [Split(name, 1, 1, 0, 1, 1) for name in names]


@pytest.mark.parametrize("field", ["path", "size", "mtime_ns", "start", "stop", "lines"])
def test_digests_cover_every_field(field):
    one = splits(1)[0]
    other = Split(**{**vars(one), field: "x" if field == "path" else 99})
    assert Ledger([one]).digest(1) != Ledger([other]).digest(1)


def _gone(file):
    file.unlink()


def _emptied(file):
    file.write_bytes(b"")


def _cut_in_a_line(file):
    file.write_bytes(file.read_bytes()[:-5])


def _cut_at_a_line(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[:-1]))


def _without_header(file):
    file.write_text("".join(file.read_text().splitlines(keepends=True)[1:]))


def _changed_entry(file):
    file.write_text(file.read_text().replace("f1.json", "g1.json"))


def _swapped_entries(file):
    header, first, second, *rest = file.read_text().splitlines(keepends=True)
    file.write_text("".join([header, second, first, *rest]))


def _short_entry(file):
    header, first, *rest = file.read_text().splitlines()
    entry = json.dumps(json.loads(first)[:-1])
    file.write_text("\n".join([header, entry, *rest]) + "\n")


def _not_text(file):
    file.write_bytes(b"\xff\xfe\x00")


DAMAGES = [
    _gone, _emptied, _cut_in_a_line, _cut_at_a_line, _without_header, _changed_entry,
    _swapped_entries, _short_entry, _not_text,
]  # fmt: skip


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.parametrize("which", ["newest", "oldest"])
def test_damage_is_seen(tmp_path, damage, which):
    whole = Ledger(splits(6))
    one = store_list(whole, 3, str(tmp_path), "c1", None)
    two = store_list(whole, 6, str(tmp_path), "c2", one)
    if which == "newest":
        one = two = store_list(whole, 6, str(tmp_path), "c3", None)
    damage(tmp_path / FOLDER / one)
    with pytest.raises(SourceChanged, match="missing or damaged"):
        restore_ledger(str(tmp_path), two, 6)


@pytest.mark.parametrize("damage", [_gone, _emptied, _not_text, _without_header])
def test_nothing_is_added_to_a_damaged_list(tmp_path, damage):
    whole = Ledger(splits(6))
    one = store_list(whole, 3, str(tmp_path), "c1", None)
    damage(tmp_path / FOLDER / one)
    with pytest.raises(SourceChanged, match="missing or damaged"):
        store_list(whole, 6, str(tmp_path), "c2", one)


def test_a_link_that_is_not_ours_is_seen(tmp_path):
    """The chain hangs together by numbers, yet the entries are others."""
    one = store_list(Ledger(splits(3, "x")), 3, str(tmp_path), "c1", None)
    two = store_list(Ledger(splits(6)), 6, str(tmp_path), "c2", one)
    with pytest.raises(SourceChanged):
        restore_ledger(str(tmp_path), two, 6)


def test_longest():
    short, long = Ledger(splits(2)), Ledger(splits(5))
    assert longest_ledger([short, long, Ledger()]) is long
    assert len(longest_ledger([])) == 0
    for others in ([long, Ledger(splits(2, "x"))], [Ledger(splits(1, "x")), long, short]):
        with pytest.raises(SourceChanged, match="different files"):
            longest_ledger(others)


def test_a_location_may_hold_anything(tmp_path):
    location = f"file://{tmp_path}/a b%20c"
    name = store_list(Ledger(splits(1)), 1, location, "c1", None)
    assert restore_ledger(location, name, 1).splits == splits(1)
    assert (tmp_path / "a b%20c" / FOLDER / name).exists()


def test_the_folder_is_passed_over_by_orphan_removal():
    """Spark's procedure skips paths whose parts begin with an underscore."""
    assert ledgers.FOLDER.startswith("_")
