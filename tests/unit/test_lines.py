"""Lines of files: no cut and no chunk edge loses, doubles or moves a record."""

import gzip
import json
import os
from dataclasses import astuple
from types import SimpleNamespace

import pyarrow as pa
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from icestream.errors import SourceChanged
from icestream.records import RECORDS
from icestream.sources import lines
from icestream.sources.ledger import Split
from icestream.sources.lines import LineReader, cut_into_splits

BOM = b"\xef\xbb\xbf"


def seen(folder, path):
    stat = (folder / path).stat()
    return SimpleNamespace(path=path, size=stat.st_size, mtime_ns=stat.st_mtime_ns)


def read(folder, splits):
    """All records of these splits, as (offset, value)."""
    order = json.dumps([astuple(each) for each in splits])
    batches = list(LineReader(str(folder)).read(iter([pa.record_batch({"work": [order]})])))
    assert all(each.schema == RECORDS for each in batches)
    table = pa.Table.from_batches(batches, RECORDS)
    assert set(table["topic"].to_pylist()) <= {each.path for each in splits}
    assert set(table["partition"].to_pylist()) <= {0}
    assert table["key"].null_count == len(table)
    return list(zip(table["offset"].to_pylist(), table["value"].to_pylist(), strict=True))


def expected(text):
    """Slowly: the offset at which each line starts, and the line without its end."""
    found, at = [], 0
    for line in text.split(b"\n"):
        value = line.rstrip(b"\r")
        if at == 0 and value.startswith(BOM):
            value = value[len(BOM) :]
        if value:
            found.append((at, value))
        at += len(line) + 1
    return found


LINE = st.binary(max_size=12).map(lambda one: one.replace(b"\n", b"").replace(b"\r", b"-"))
TEXT = st.builds(
    lambda body, last, bom: (BOM if bom else b"") + b"".join(body) + last,
    st.lists(st.builds(bytes.__add__, LINE, st.sampled_from([b"\n", b"\r\n"])), max_size=14),
    st.just(b"") | LINE,
    st.booleans(),
).filter(len)


@settings(max_examples=80)
@given(
    text=TEXT,
    split=st.integers(1, 40),
    chunk=st.integers(1, 40),
    most=st.integers(1, 6),
    packed=st.booleans(),
)
@example(text=b"\n", split=1, chunk=1, most=1, packed=False)
@example(text=BOM, split=1, chunk=1, most=1, packed=False)
@example(text=BOM + b"\r\n{}", split=2, chunk=2, most=1, packed=False)
@example(text=b"a\n" + BOM + b"b\n", split=1, chunk=2, most=1, packed=False)
@example(text=b"x" * 500, split=10, chunk=7, most=1, packed=False)
@example(text=b"a\n" + b"x" * 500 + b"\nb\n", split=10, chunk=7, most=2, packed=False)
def test_every_cut_gives_the_whole_file(tmp_path_factory, text, split, chunk, most, packed):
    folder = tmp_path_factory.getbasetemp()
    path = "lines.gz" if packed else "lines"
    (folder / path).write_bytes(gzip.compress(text, mtime=0) if packed else text)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(lines, "_SPLIT_BYTES", split)
        patch.setattr(lines, "_CHUNK_BYTES", chunk)
        splits = cut_into_splits(folder, seen(folder, path), most)
        records = [read(folder, [each]) for each in splits]
    assert [row for part in records for row in part] == expected(text)
    # Splits lie side by side from 0 to the end, each ends at a line end or at the end.
    edges = [0, *(each.stop for each in splits)]
    assert [each.start for each in splits] == edges[:-1]
    assert edges[-1] == len(text)
    assert all(text[each.stop - 1 : each.stop] == b"\n" for each in splits[:-1])
    for each, part in zip(splits, records, strict=True):
        whole = text[each.start : each.stop]
        assert each.lines == whole.count(b"\n") + (not whole.endswith(b"\n"))
        assert each.lines >= max(len(part), 1)
        assert packed or each.lines <= most
        assert each.size == (folder / path).stat().st_size
    if packed:
        assert len(splits) == 1


def test_a_split_is_not_larger_than_it_must_be(tmp_path, monkeypatch):
    monkeypatch.setattr(lines, "_SPLIT_BYTES", 10)
    (tmp_path / "f").write_bytes(b"123\n" * 10)
    splits = cut_into_splits(tmp_path, seen(tmp_path, "f"), 1000)
    assert [each.stop - each.start for each in splits] == [12, 12, 12, 4]
    assert [each.lines for each in splits] == [3, 3, 3, 1]


def test_splits_can_be_read_together_and_out_of_order(tmp_path):
    (tmp_path / "f").write_bytes(b"a\nbb\nccc\n")
    (tmp_path / "g").write_bytes(b"d\n")
    whole = [
        *cut_into_splits(tmp_path, seen(tmp_path, "f"), 1),
        *cut_into_splits(tmp_path, seen(tmp_path, "g"), 1),
    ]
    assert read(tmp_path, [whole[2], whole[3], whole[0]]) == [(5, b"ccc"), (0, b"d"), (0, b"a")]


def test_records_carry_the_time_of_the_file(tmp_path):
    (tmp_path / "f").write_bytes(b"a\n")
    os.utime(tmp_path / "f", ns=(0, 1_700_000_000_123_456_789))
    order = json.dumps(
        [astuple(each) for each in cut_into_splits(tmp_path, seen(tmp_path, "f"), 9)]
    )
    (batch,) = LineReader(str(tmp_path)).read(iter([pa.record_batch({"work": [order]})]))
    assert batch.column("timestamp").cast(pa.int64()).to_pylist() == [1_700_000_000_123_456]


def test_bytes_that_are_no_text_pass_through(tmp_path):
    (tmp_path / "f").write_bytes(b"\xff\xfe\x00x\n\x80\n")
    assert read(tmp_path, cut_into_splits(tmp_path, seen(tmp_path, "f"), 9)) == [
        (0, b"\xff\xfe\x00x"),
        (5, b"\x80"),
    ]


def test_an_empty_packed_file_has_no_split(tmp_path):
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"", mtime=0))
    assert cut_into_splits(tmp_path, seen(tmp_path, "f.gz"), 9) == []


def test_packed_members_are_read_to_the_end(tmp_path):
    (tmp_path / "f.gz").write_bytes(gzip.compress(b"a\n", mtime=0) + gzip.compress(b"b\n"))
    assert read(tmp_path, cut_into_splits(tmp_path, seen(tmp_path, "f.gz"), 9)) == [
        (0, b"a"),
        (2, b"b"),
    ]


# ── files that contradict what was planned ──────────────────────────────────────────────────────


@pytest.fixture
def planned(tmp_path):
    (tmp_path / "f").write_bytes(b"a\nb\n")
    return tmp_path, cut_into_splits(tmp_path, seen(tmp_path, "f"), 9)


def test_a_file_that_grew(planned):
    folder, splits = planned
    with (folder / "f").open("ab") as file:
        file.write(b"c\n")
    with pytest.raises(SourceChanged, match="changed"):
        read(folder, splits)


def test_a_file_that_was_written_again(planned):
    folder, splits = planned
    os.utime(folder / "f", ns=(0, splits[0].mtime_ns + 1))
    with pytest.raises(SourceChanged, match="changed"):
        read(folder, splits)


def test_a_file_that_is_gone(planned):
    folder, splits = planned
    (folder / "f").unlink()
    with pytest.raises(SourceChanged, match="gone"):
        read(folder, splits)


def test_a_file_that_changes_under_our_hands(planned, monkeypatch):
    folder, splits = planned
    monkeypatch.setattr(lines, "_CHUNK_BYTES", 2)
    order = json.dumps([astuple(each) for each in splits])
    records = LineReader(str(folder)).read(iter([pa.record_batch({"work": [order]})]))
    next(records)
    (folder / "f").write_bytes(b"a\n")
    with pytest.raises(SourceChanged, match="changed"):
        list(records)


def test_a_file_that_vanishes_before_it_is_cut(tmp_path):
    with pytest.raises(SourceChanged, match="gone"):
        cut_into_splits(tmp_path, SimpleNamespace(path="f", size=1, mtime_ns=1), 9)


WHOLE = gzip.compress(b"".join(b"line %d\n" % at for at in range(5000)), mtime=0)


@pytest.mark.parametrize(
    "content",
    [
        WHOLE[: len(WHOLE) // 2],
        WHOLE[:-3],
        WHOLE[:5],
        b"not packed at all",
        WHOLE[:60] + b"\x00" * 20 + WHOLE[80:],
        WHOLE[:-8] + b"\x00" * 8,
        WHOLE + b"garbage",
    ],
)
def test_a_broken_packed_file(tmp_path, content):
    (tmp_path / "f.gz").write_bytes(content)
    with pytest.raises(SourceChanged, match="gzip"):
        cut_into_splits(tmp_path, seen(tmp_path, "f.gz"), 9)
    file = seen(tmp_path, "f.gz")
    whole = Split(file.path, file.size, file.mtime_ns, 0, 10**6, 0)
    with pytest.raises(SourceChanged, match="gzip"):
        read(tmp_path, [whole])
