"""A short soak; `make soak` is the long one, and only there figures mean something."""

import pytest

from crash.soak import TABLES, soak

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(900)]


def test_maintenance_beside_a_commit_every_second(tmp_path):
    facts = soak(tmp_path, minutes=0.7, keys=5_000, warm=5)
    assert facts["violations"] == []
    assert facts["verify_clean"]
    assert facts["complete"]
    assert (facts["failed_batches"], facts["last_exit"]) == (0, 0)
    assert facts["commits"] > 20 * len(TABLES)
    commits = facts["commits"] / len(TABLES)
    for name in TABLES:
        assert facts["tables"][name]["data_files"][-1] < commits / 2, "nobody joined them"
