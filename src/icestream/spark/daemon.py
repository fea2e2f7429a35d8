"""Spark's Python daemon with our code imported once, before it forks workers.

Without it every worker imports the task's libraries for itself: seconds of CPU per core at start,
and again whenever a worker is replaced.
"""

import sys

from pyspark.daemon import manager

if sys.argv[1:] in ([], ["pyspark.worker"]):
    import icestream.task  # noqa: F401

if __name__ == "__main__":
    manager()  # type: ignore[no-untyped-call]
