"""The bytes of a chunk of texts: compares and cuts out many of their parts at once; numpy only."""

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
    """Texts as bytes in memory; callers give few enough to stay in the processor's cache."""

    def __init__(self, texts: pa.StringArray) -> None:
        ends = offsets(texts).astype(np.int64)
        self.body = characters(texts)
        self.valid: Flags = texts.is_valid().to_numpy(zero_copy_only=False)
        self.start, self.end = ends[:-1] - ends[0], ends[1:] - ends[0]
        longest = int(np.diff(ends).max(initial=0))
        # Padded, so that what is read from any place on in a text never ends beyond the array.
        self.bytes = np.concatenate([self.body, np.zeros(16 + longest, np.uint8)])
        # words[i]: the eight bytes from i on, as one number.
        self.words = np.ndarray(len(self.bytes) - 7, np.dtype("<u8"), self.bytes, strides=(1,))

    def row(self, row: int) -> bytes:
        """Return one text."""
        return self.bytes[self.start[row] : self.end[row]].tobytes()

    def reads(self, places: Places, literal: bytes) -> Flags:
        """Return at which of these places the literal stands."""
        steps = [*range(0, len(literal) - 7, 8)]
        if len(literal) % 8:  # the last eight bytes once more, or all that there are
            steps.append(max(0, len(literal) - 8))
        matches: Flags | None = None
        for step in steps:
            piece = literal[step : step + 8]
            words = self.words[step:][places]
            if len(piece) < 8:
                words &= np.uint64((1 << 8 * len(piece)) - 1)
            is_equal: Flags = words == np.uint64(int.from_bytes(piece, "little"))
            matches = is_equal if matches is None else matches & is_equal
        assert matches is not None, "a literal has at least a byte"
        return matches

    def pieces(self, places: Places, width: int) -> Words:
        """Return `width` bytes from each of these places on, as words: one row for each place."""
        dtype = np.dtype(f"V{width}")
        pieces = np.ndarray(len(self.bytes) - width + 1, dtype, self.bytes, strides=(1,))[places]
        return pieces.view("<u8").reshape(len(places), width // 8)

    def texts(self, start: Places, length: Places, is_null: Flags | None = None) -> pa.StringArray:
        """Return the texts at these places: string views on `bytes`, which Arrow copies at once."""
        # Arrow's string view: length and 12 bytes of text, or length, prefix, buffer 0 and start.
        views = np.empty((len(start), 2), np.uint64)
        longest = length.max(initial=0)
        if longest > _INLINE:
            views[:, 0] = (self.words[start] << np.uint64(32)) | length.astype(np.uint64)
            views[:, 1] = start.astype(np.uint64) << np.uint64(32)
            short_rows = np.flatnonzero(length <= _INLINE)
            if len(short_rows):
                views[short_rows] = self._inline(start[short_rows], length[short_rows])
        else:
            views = self._inline(start, length)
        validity = None
        if is_null is not None and is_null.any():
            validity = pa.py_buffer(np.packbits(~is_null, bitorder="little"))
        buffers = [validity, pa.py_buffer(views), pa.py_buffer(self.bytes)]
        array = pa.Array.from_buffers(pa.string_view(), len(start), buffers)
        return array.cast(pa.string())

    def _inline(self, start: Places, length: Places) -> Words:
        low = self.words[start] & _MASKS[length]
        high = self.words[8:][start] & _MASKS[np.maximum(length - 8, 0)]
        views = np.empty((len(start), 2), np.uint64)
        views[:, 0] = (low << np.uint64(32)) | length.astype(np.uint64)
        views[:, 1] = (low >> np.uint64(32)) | (high << np.uint64(32))
        return views
