"""A short campaign of harm; `make chaos` is the long one."""

import shutil

import pytest

from crash.chaos import Outcome, campaign, orders
from crash.harm import ways
from crash.plain import CHECKPOINT
from crash.world import World
from icestream.config.options.table import TableRule
from icestream.verify import verify

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]

WORST = {
    "local": ["at request-sent", "zombie at before-request", "lose state"],
    "rest": ["lie", "at between-tables"],
}
MORE = {
    "local": ["at quarantine-committed", "at rewrite-committed", "kill jvm"],
    "rest": ["kill broker", "lose state", "at rewrite-committed", "zombie at marker-checked"],
}


@pytest.mark.parametrize(
    "catalog, order",
    [
        *(pytest.param(name, order, id=name) for name, order in WORST.items()),
        *(
            pytest.param(name, order, id=f"{name}, more", marks=pytest.mark.long)
            for name, order in MORE.items()
        ),
    ],
)
def test_nothing_is_lost_doubled_or_made_up(tmp_path, catalog, order):
    outcome = Outcome(seed=7)
    campaign(tmp_path, catalog, order, outcome)
    assert outcome.clean, outcome.facts()
    assert outcome.records > 0
    assert outcome.verified > 1


@pytest.mark.long
def test_the_same_checks_find_the_duplicates_of_a_plain_stream(tmp_path):
    """Spark into Iceberg without us: kills alone do no harm, a lost checkpoint doubles records."""
    with World(tmp_path, "local").alive() as world:
        config = world.config.model_copy(update={"tables": [TableRule(name="db.clicks")]})

        def hurt() -> None:
            driver = world.start_script("plain.py", "icestream.yml", "clicks")
            driver.wait_for_commits(3)
            driver.kill()

        def finish() -> None:
            last = world.start_script("plain.py", "icestream.yml", "clicks", "--once")
            assert last.process.wait(240) == 0, last.last_words()

        hurt()
        finish()
        assert verify(config).duplicated == 0
        shutil.rmtree(tmp_path / CHECKPOINT)
        finish()
        found = verify(config)
    assert found.duplicated > 0
    assert {each.kind for each in found.violations} == {"duplicated"}


def test_a_seed_gives_the_order():
    assert orders(3, 50, ["local", "rest"]) == orders(3, 50, ["local", "rest"])
    assert orders(3, 50, ["local", "rest"]) != orders(4, 50, ["local", "rest"])
    long = orders(1, 2 * len(ways("rest")), ["rest"])["rest"]
    assert set(long) == set(ways("rest"))
