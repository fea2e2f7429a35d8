"""The bytes of some texts, to be compared and cut out at many places at once; numpy only."""

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from icestream.formats.jsonbytes import characters, offsets

Places = npt.NDArray[np.int64]
Flags = npt.NDArray[np.bool_]
Words = npt.NDArray[np.uint64]

_INLINE = 12  # bytes of a text that an Arrow view holds itself
_MASKS = np.array([(1 << 8 * min(size, 8)) - 1 for size in range(_INLINE + 1)], np.uint64)


class TextBuffer:
    """Texts as they stand in memory, few enough to stay in the processor's cache."""

    def __init__(self, texts: pa.StringArray) -> None:
        ends = offsets(texts).astype(np.int64)
        self.body = characters(texts)
        self.valid: Flags = texts.is_valid().to_numpy(zero_copy_only=False)
        self.start, self.end = ends[:-1] - ends[0], ends[1:] - ends[0]
        longest = int(np.diff(ends).max(initial=0))
        self.bytes = np.concatenate([self.body, np.zeros(16 + longest, np.uint8)])
        # Eight bytes from any place on, as one number.
        self.words = np.ndarray(len(self.bytes) - 7, np.dtype("<u8"), self.bytes, strides=(1,))

    def row(self, number: int) -> bytes:
        """One text."""
        return self.bytes[self.start[number] : self.end[number]].tobytes()

    def reads(self, at: Places, literal: bytes) -> Flags:
        """Where the literal stands at these places."""
        steps = [*range(0, len(literal) - 7, 8)]
        if len(literal) % 8:  # the last eight bytes once more, or all that there are
            steps.append(max(0, len(literal) - 8))
        found: Flags | None = None
        for step in steps:
            piece = literal[step : step + 8]
            words = self.words[step:][at]
            if len(piece) < 8:
                words &= np.uint64((1 << 8 * len(piece)) - 1)
            same: Flags = words == np.uint64(int.from_bytes(piece, "little"))
            found = same if found is None else found & same
        assert found is not None, "a literal has at least a byte"
        return found

    def pieces(self, at: Places, width: int) -> Words:
        """As many bytes from each of these places on, in eights: one row for each place."""
        kind = np.dtype(f"V{width}")
        found = np.ndarray(len(self.bytes) - width + 1, kind, self.bytes, strides=(1,))[at]
        return found.view("<u8").reshape(len(at), width // 8)

    def texts(self, start: Places, length: Places, null: Flags | None = None) -> pa.StringArray:
        """The texts at these places: Arrow views on our bytes, which Arrow then copies at once."""
        views = np.empty((len(start), 2), np.uint64)
        longest = length.max(initial=0)
        if longest > _INLINE:
            views[:, 0] = (self.words[start] << np.uint64(32)) | length.astype(np.uint64)
            views[:, 1] = start.astype(np.uint64) << np.uint64(32)
            inline = np.flatnonzero(length <= _INLINE)
            if len(inline):
                views[inline] = self._inline(start[inline], length[inline])
        else:
            views = self._inline(start, length)
        given = None
        if null is not None and null.any():
            given = pa.py_buffer(np.packbits(~null, bitorder="little"))
        buffers = [given, pa.py_buffer(views), pa.py_buffer(self.bytes)]
        found = pa.Array.from_buffers(pa.string_view(), len(start), buffers)
        return found.cast(pa.string())

    def _inline(self, start: Places, length: Places) -> Words:
        low = self.words[start] & _MASKS[length]
        high = self.words[8:][start] & _MASKS[np.maximum(length - 8, 0)]
        views = np.empty((len(start), 2), np.uint64)
        views[:, 0] = (low << np.uint64(32)) | length.astype(np.uint64)
        views[:, 1] = (low >> np.uint64(32)) | (high << np.uint64(32))
        return views
