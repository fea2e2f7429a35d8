"""The records of the demo's shop: any range of them can be made again, equal to the byte."""

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from icestream.records import RECORDS

ORDERS_EVERY = 5  # one order change for four page events
_BLOCK = 4096  # records that share one random state
_ACTIONS = ["view", "view", "view", "search", "add_to_cart", "checkout"]
_COUNTRIES = ["DE", "FR", "GB", "IN", "JP", "NL", "US", "BR"]
_DEVICES = ["desktop", "mobile", "mobile", "tablet"]
_REFERRERS = ["https://search.example/", "https://mail.example/", None, None]
_STATUSES = ["created", "paid", "shipped", "cancelled"]
_CHANGES = 3  # of each order
_CANCELLED = 10  # one order in so many


def make(
    topic: str,
    low: int,
    high: int,
    seed: int,
    began_ms: int,
    rate: int | None,
    malformed: float,
    mixed: bool = False,
) -> pa.RecordBatch:
    """Make records low … high-1 of a topic; `mixed`: those of the other topic come in between."""
    numbers = np.arange(low, high, dtype=np.int64)
    orders = topic == "order_changes"
    shop_numbers = numbers  # among the records of both topics
    if mixed and orders:
        shop_numbers = numbers * ORDERS_EVERY + ORDERS_EVERY - 1
    elif mixed:
        shop_numbers = numbers + numbers // (ORDERS_EVERY - 1)
    # Without a rate the shop is taken to be as busy as 1,000 records a second.
    times = began_ms * 1000 + shop_numbers * 1_000_000 // (rate or 1000)
    draw = _draw((seed % (1 << 64), int(orders)), low, high)
    keys, values = (_orders if orders else _pages)(numbers, times, draw)
    if malformed:
        cut = pa.array(draw[:, 7] < malformed * (1 << 32))
        values = pc.if_else(cut, pc.utf8_slice_codeunits(values, 0, 60), values)
    count = len(numbers)
    return pa.RecordBatch.from_arrays(
        [
            pa.repeat(pa.scalar(topic, pa.string()), count),
            pa.repeat(pa.scalar(0, pa.int32()), count),
            pa.array(numbers),
            pa.array(times).cast(pa.timestamp("us", tz="UTC")),
            keys.cast(pa.binary()),
            values.cast(pa.binary()),
        ],
        schema=RECORDS,
    )


def _pages(numbers: np.ndarray, times: np.ndarray, draw: np.ndarray) -> tuple[pa.Array, pa.Array]:
    users = pa.array(draw[:, 0] % 50_000).cast(pa.string())
    products = pa.array(draw[:, 1] % 2_000).cast(pa.string())
    values = _join(
        '{"event_id":"', _hex(numbers, draw[:, 2]),
        '","event_time":"', _iso(times),
        '","user_id":', users,
        ',"session_id":"s-', pa.array(draw[:, 3]).cast(pa.string()),
        '","action":"', _pick(_ACTIONS, draw[:, 4]),
        '","page":"/products/', products,
        '","product_id":', products,
        ',"price":', _cents(draw[:, 5] % 20_000 + 99),
        ',"country":"', _pick(_COUNTRIES, draw[:, 6]),
        '","device":"', _pick(_DEVICES, draw[:, 2]),
        '","referrer":', _quoted(_pick(_REFERRERS, draw[:, 3])),
        "}",
    )  # fmt: skip
    return users, values


def _orders(numbers: np.ndarray, times: np.ndarray, draw: np.ndarray) -> tuple[pa.Array, pa.Array]:
    """Each order is created, paid and shipped, or cancelled; its changes follow one another."""
    order = pa.array(numbers // _CHANGES).cast(pa.string())
    # Whatever belongs to the order, not to the change, is drawn from the order's own number.
    fixed = (numbers // _CHANGES) * 2_654_435_761 % (1 << 32)
    last = numbers % _CHANGES == _CHANGES - 1
    status = np.where(last & (fixed // 7 % _CANCELLED == 0), 3, numbers % _CHANGES)
    values = _join(
        '{"change_id":', pa.array(numbers).cast(pa.string()),
        ',"change_time":"', _iso(times),
        '","order_id":', order,
        ',"customer_id":', pa.array(fixed % 50_000).cast(pa.string()),
        ',"status":"', _pick(_STATUSES, status),
        '","amount":', _cents(fixed % 90_000 + 500),
        ',"items":', pa.array(fixed % 6 + 1).cast(pa.string()),
        "}",
    )  # fmt: skip
    return order, values


def _draw(key: tuple[int, int], low: int, high: int) -> np.ndarray:
    """Eight random numbers per record, drawn block by block so that any range can be had again."""
    first, last = low // _BLOCK, (high - 1) // _BLOCK
    blocks = []
    for block in range(first, last + 1):
        state = np.random.Philox(key=np.array(key, np.uint64), counter=block << 64)
        numbers = np.random.Generator(state).integers(0, 1 << 32, (_BLOCK, 8), np.int64)
        blocks.append(numbers)
    return np.concatenate(blocks)[low - first * _BLOCK : high - first * _BLOCK]


def _pick(choices: list[str | None] | list[str], numbers: np.ndarray) -> pa.Array:
    return pa.array(choices, pa.string()).take(pa.array(numbers % len(choices)))


def _iso(times: np.ndarray) -> pa.Array:
    stamps = pa.array(times // 1000).cast(pa.timestamp("ms"))
    return pc.binary_join_element_wise(pc.strftime(stamps, "%Y-%m-%dT%H:%M:%S"), "Z", "")


def _hex(numbers: np.ndarray, salt: np.ndarray) -> pa.Array:
    digits = pc.utf8_lpad(pa.array(salt * 1_000_003 % (1 << 40)).cast(pa.string()), 13, "0")
    return _join(pc.utf8_lpad(pa.array(numbers).cast(pa.string()), 12, "0"), "-", digits)


def _cents(cents: np.ndarray) -> pa.Array:
    whole = pa.array(cents // 100).cast(pa.string())
    return _join(whole, ".", pc.utf8_lpad(pa.array(cents % 100).cast(pa.string()), 2, "0"))


def _quoted(texts: pa.Array) -> pa.Array:
    return pc.fill_null(_join('"', texts, '"'), "null")


def _join(*parts: pa.Array | str) -> pa.Array:
    return pc.binary_join_element_wise(*parts, "")
