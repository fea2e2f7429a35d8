"""The shop's books, against one change after the other."""

import json

from icestream.cli.demo.expected_orders import kept
from icestream.cli.demo.generated import MALFORMED, RATE, SEED
from icestream.sources.shop import make


def test_the_books_have_the_newest_change_of_each_order_that_was_not_cancelled():
    numbers = [n for n in range(6000) if n % 17]
    orders = {}
    changes = make("order_changes", 0, 6000, SEED, 0, RATE, MALFORMED, mixed=True)
    values = changes.column("value").to_pylist()
    for number in numbers:
        try:
            change = json.loads(values[number])
        except ValueError:
            continue
        if change["status"] == "cancelled":
            orders.pop(change["order_id"], None)
        else:
            orders[change["order_id"]] = (change["customer_id"], change["status"])
    books = kept(numbers, 0).to_pylist()
    assert {row["order_id"]: (row["customer_id"], row["status"]) for row in books} == orders
    assert 0 < len(orders) < 2000
    assert len(books) == len(orders)


def test_no_changes_no_orders():
    assert kept([], 0).num_rows == 0
