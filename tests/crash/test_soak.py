"""A short soak; `make soak` is the long one, and only there figures of time mean something."""

import pytest

from crash.soak import MAINTENANCE, TABLES, part, proof, rewrites, soaked
from crash.world import BRIEF

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


def test_maintenance_beside_a_commit_every_second(tmp_path):
    with soaked(tmp_path, keys=5_000, spark=BRIEF) as world:
        world.configure(MAINTENANCE)
        _, samples = part(world, seconds=15, warm=3, commits=15 * len(TABLES))
        world.feeder.stop()
        facts = proof(world)
        rewritten = {each["table"] for driver in world.drivers for each in rewrites(driver)}
    assert facts["violations"] == []
    assert facts["verify_clean"]
    assert facts["complete"]
    assert (facts["failed_batches"], facts["last_exit"]) == (0, 0)
    assert rewritten & set(TABLES)
    for name in rewritten & set(TABLES):
        assert samples[-1][name]["data_files"] < facts["commits"] / len(TABLES), name
