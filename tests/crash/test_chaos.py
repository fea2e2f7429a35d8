"""A short campaign of harm; `make chaos` is the long one."""

import pytest

from crash.chaos import Outcome, campaign, orders
from crash.harm import ways

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

WORST = {
    "local": ["at request-sent", "zombie", "at quarantine-committed", "lose state"],
    "rest": ["lie", "at between-tables", "kill jvm", "kill broker"],
}


@pytest.mark.parametrize("catalog", WORST)
def test_nothing_is_lost_doubled_or_made_up(tmp_path, catalog):
    outcome = Outcome(seed=7)
    campaign(tmp_path, catalog, WORST[catalog], outcome)
    assert outcome.clean, outcome.facts()
    assert outcome.records > 0
    assert outcome.kills.total() == len(WORST[catalog])


def test_a_seed_gives_the_order():
    assert orders(3, 50, ["local", "rest"]) == orders(3, 50, ["local", "rest"])
    assert orders(3, 50, ["local", "rest"]) != orders(4, 50, ["local", "rest"])
    long = orders(1, 2 * len(ways("rest")), ["rest"])["rest"]
    assert set(long) == set(ways("rest"))
