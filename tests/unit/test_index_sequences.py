"""Sequences: sixteen bytes and a size compare as the whole does, or say that they cannot tell."""

import pyarrow as pa
from hypothesis import given, settings
from hypothesis import strategies as st

from icestream.index.sequences import KEPT, UNDECIDED, SourceSequences

SHORT = st.none() | st.binary(max_size=20)
LOG = st.binary(min_size=8, max_size=8)


def expected(left, right):
    if left is None or right is None:
        return 0
    if len(left) > KEPT and len(right) > KEPT and left[:KEPT] == right[:KEPT]:
        return UNDECIDED
    return (left > right) - (left < right)


def compared(lefts, rights, kind=None):
    one, two = (
        SourceSequences.of(pa.array(v, kind or pa.binary()), len(v)) for v in (lefts, rights)
    )
    return one.compare(two).tolist()


@settings(max_examples=300)
@given(st.lists(st.tuples(SHORT, SHORT), min_size=1, max_size=20))
def test_any_bytes(pairs):
    lefts, rights = zip(*pairs, strict=True)
    assert compared(lefts, rights) == [expected(*pair) for pair in pairs]


@given(st.lists(st.tuples(LOG, LOG), min_size=1, max_size=20))
def test_one_width(pairs):
    lefts, rights = zip(*pairs, strict=True)
    for kind in (pa.binary(), pa.large_binary(), pa.binary(8)):
        assert compared(lefts, rights, kind) == [expected(*pair) for pair in pairs]


def test_slices_and_nothing():
    column = pa.array([b"\x01", None, b"\x02" * 17, b""])
    found = SourceSequences.of(column.slice(1, 3), 3)
    assert found.size.tolist() == [31, 17, 0]
    assert found.hi.tolist() == [0, 0x0202020202020202, 0]
    assert SourceSequences.of(None, 2).size.tolist() == [31, 31]
    assert SourceSequences.of(pa.array([], pa.binary()), 0).hi.tolist() == []
    assert SourceSequences.of(pa.chunked_array([[b"a"], [b"b"]]), 2).size.tolist() == [1, 1]
