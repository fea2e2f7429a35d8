"""Reads dates, times and timestamps that are numbers since 1970 or midnight."""

from collections.abc import Callable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.formats.debezium.connect import Unit

_DAY = 86_400_000_000  # µs
_FIRST, _LAST = -62_135_596_800_000_000, 253_402_300_799_999_999  # years 1 to 9999, in µs


def _days(numbers: pa.Int64Array, unit: Unit) -> pa.Array:
    _within(numbers, _FIRST // _DAY, _LAST // _DAY)
    return numbers.cast(pa.int32()).view(pa.date32())


def _time(numbers: pa.Int64Array, unit: Unit) -> pa.Array:
    micros = _micros(numbers, unit)
    _within(micros, 0, _DAY - 1)
    return micros.view(pa.time64("us"))


def _timestamp(numbers: pa.Int64Array, unit: Unit) -> pa.Array:
    micros = _micros(numbers, unit)
    _within(micros, _FIRST, _LAST)
    return micros.view(pa.timestamp("us"))


def _micros(numbers: pa.Int64Array, unit: Unit) -> pa.Int64Array:
    if unit == "ms":
        return pc.multiply_checked(numbers, 1000)
    if unit == "ns":  # what is finer than a column is cut off, also before 1970
        whole = np.floor_divide(pc.fill_null(numbers, 0).to_numpy(), 1000)
        return pa.array(whole, mask=numbers.is_null().to_numpy(zero_copy_only=False))
    return numbers


def _within(numbers: pa.Int64Array, least: int, most: int) -> None:
    lowest, highest = pc.min_max(numbers).as_py().values()
    if lowest is not None and (lowest < least or highest > most):
        raise pa.ArrowInvalid("out of range")


CLOCKS: dict[str, Callable[[pa.Int64Array, Unit], pa.Array]] = {
    "days": _days,
    "time": _time,
    "timestamp": _timestamp,
}
