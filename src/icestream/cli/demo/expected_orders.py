"""The demo's proof: the orders that the shop's changes must have made, against the mirror."""

from collections.abc import Sequence

import duckdb
import numpy as np
import pyarrow as pa

from icestream import table
from icestream.cli import output
from icestream.cli.demo.generated import MALFORMED, RATE, SEED
from icestream.config.load import LoadedConfig
from icestream.errors import InternalError
from icestream.sources.shop import make
from icestream.tables.marker import Marker, property_name

# The newest change of each order, but for those that end in a cancellation.
_EXPECTED = """
    SELECT order_id, customer_id, status, amount::DECIMAL(12,2) AS amount
    FROM (
        SELECT from_json(value, '{"change_id": "BIGINT", "order_id": "BIGINT",
                         "customer_id": "BIGINT", "status": "VARCHAR", "amount": "VARCHAR"}') AS c,
               unnest(c)
        FROM changes
        WHERE json_valid(value)
    )
    QUALIFY row_number() OVER (PARTITION BY order_id ORDER BY change_id DESC) = 1
        AND status <> 'cancelled'
    ORDER BY order_id
"""


def prove_generated(loaded: LoadedConfig) -> None:
    """Prove the demo without Kafka: `shop.orders` is what all changes below its position make."""
    stored = table(loaded.path, "shop.orders").properties[property_name(loaded.pipeline.name)]
    marker = Marker.from_json(stored)
    topic = "order_changes"
    began_ms = int(marker.stream_ids[topic].partition("@")[2])
    prove(loaded, np.arange(marker.positions[topic][0]), began_ms)


def prove(loaded: LoadedConfig, numbers: "Sequence[int] | np.ndarray", began_ms: int) -> None:
    """Raise InternalError unless `shop.orders` is what the changes with these numbers make."""
    expected = kept(numbers, began_ms)
    columns = expected.column_names
    scan = table(loaded.path, "shop.orders").scan(selected_fields=tuple(columns))
    rows = scan.to_arrow().select(columns).cast(expected.schema).sort_by("order_id")
    if rows != expected:
        raise InternalError(
            f"the mirror has {rows.num_rows:,} orders, the shop's books {expected.num_rows:,}, "
            "and they are not the same",
            hint="please report this, with the demo's folder",
        )
    changes = len(numbers)
    output.result(f"{changes:,} order changes = {rows.num_rows:,} orders, as in the shop's books")


def kept(numbers: "Sequence[int] | np.ndarray", began_ms: int) -> pa.Table:
    """Compute the shop's orders after these changes."""
    high = int(max(numbers, default=-1)) + 1
    with duckdb.connect(":memory:") as connection:
        values = pa.table({"value": pa.array([], pa.string())})
        if high:
            batch = make("order_changes", 0, high, SEED, began_ms, RATE, MALFORMED, mixed=True)
            texts = batch.column("value").take(pa.array(numbers)).cast(pa.string())
            values = pa.table({"value": texts})
        connection.register("changes", values)
        return connection.execute(_EXPECTED).to_arrow_table()
