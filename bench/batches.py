"""Batches of changes on a table that is large already: by icestream, and by Spark's MERGE INTO."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import statements
from changes import Changes, Feed, Maker, Sender
from load import create_topics
from measure import Tree, running
from mirror import TABLE, MirrorLake
from peers import Job, upsert_
from runs import Failed, compare, reaches, wait_for

# The quicker of the two that Iceberg has; copy-on-write rewrites every file that is touched.
MERGE_PROPERTIES = {"write.merge.mode": "merge-on-read"}
MERGE = """
MERGE INTO {table} AS t USING parquet.`{changes}` AS s ON t.id = s.id
WHEN MATCHED AND s.op = 2 THEN DELETE
WHEN MATCHED THEN UPDATE SET *
WHEN NOT MATCHED AND s.op <> 2 THEN INSERT *
"""
CREATE_SECONDS = 120


class Course:
    """The same table and the same changes for both, with what must come of it."""

    def __init__(self, rows: int, count: int, size: int, warm: int) -> None:
        self.rows, self.size, self.warm = rows, size, warm
        self._feed = Feed(rows)
        self.changes = [self._feed.changes(size) for _ in range(count)]

    def seed(self, lake: MirrorLake) -> None:
        lake.fill(Feed(self.rows), self.rows)

    def truth(self) -> dict[str, int]:
        return Maker().truth(self._feed)


def by_icestream(folder: Path, bootstrap: str, course: Course) -> dict[str, Any]:
    """Send a batch, wait for its commit, send the next: one batch every ten seconds."""
    lake, topic = MirrorLake(folder / "warehouse"), folder.name
    create_topics(bootstrap, topic)
    job = Job(folder, bootstrap, topic, lake, False, 10 * course.size)
    with running(upsert_.command(job, "--once")) as tree:  # makes the table
        if code := tree.process.wait(CREATE_SECONDS):
            raise Failed(f"it ended with {code} before there was anything to do")
    course.seed(lake)
    sender = Sender(bootstrap, topic)
    with running(upsert_.command(job)) as tree:
        for number, changes in enumerate(course.changes, 1):
            sender.put(changes)
            sender.flush()
            wait_for(number * course.size, tree, lake)
    found = _by_commits(tree, lake, course, job.commit_ms / 1000)
    right = course.truth()
    compare(lake.by_pyiceberg(), right)
    compare(lake.by_duckdb(), right)
    figures, scans = lake.scans(folder / "scans")
    compare(figures, right)
    return found | scans


def _by_commits(tree: Tree, lake: MirrorLake, course: Course, interval: float) -> dict[str, Any]:
    """From commit to commit, so that what is done after one counts for the next."""
    commits = lake.commits()
    ends = [reaches(commits, n * course.size) for n in range(1, len(course.changes) + 1)]
    times = [commits[end].at for end in ends]
    cpu = np.diff([tree.cpu_at(at) for at in times])
    # Spark starts batches at whole multiples of the interval.
    wall = [at % interval for at in times[1:]]
    return _steady(cpu[course.warm - 1 :], wall[course.warm - 1 :]) | {
        "peak_rss_mb": round(tree.peak_rss(times[0], times[-1]) / 1e6)
    }


def by_merge(folder: Path, course: Course) -> dict[str, Any]:
    """The changes as Parquet files, which spare Spark Kafka and JSON; one MERGE after the other."""
    lake, maker = MirrorLake(folder / "warehouse"), Maker()
    lake.create_keyed(MERGE_PROPERTIES)
    course.seed(lake)
    merges = []
    for number, changes in enumerate(course.changes):
        file = folder / f"changes-{number}.parquet"
        pq.write_table(_rows(maker, changes), file)
        merges.append((f"merge {number}", MERGE.format(table=TABLE, changes=file)))
    done = statements.run(folder / "merges", lake, merges)[course.warm :]
    figures, scans = lake.scans(folder / "scans")
    compare(figures, course.truth())
    return _steady([each.cpu for each in done], [each.seconds for each in done]) | scans


def _rows(maker: Maker, changes: Changes) -> Any:
    return maker.rows(changes, ", op")


def _steady(cpu: Sequence[float], wall: Sequence[float]) -> dict[str, Any]:
    """Medians of the batches after the warm-up, and all of them."""
    return {
        "cpu_s": round(float(np.median(cpu)), 3),
        "seconds": round(float(np.median(wall)), 3),
        "each_cpu_s": [round(float(each), 2) for each in cpu],
        "each_seconds": [round(float(each), 2) for each in wall],
    }
