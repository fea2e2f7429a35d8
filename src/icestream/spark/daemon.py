"""Spark's Python daemon with our code imported once, before it forks workers.

Without it every worker imports the task's libraries for itself: seconds of CPU per core at start,
and again whenever a worker is replaced. And PySpark does two things around every task that cost
more than a small task itself (docs/design/speed.md): it reads the directory of each archive on
Python's path again, and it collects garbage among all that was ever imported.
"""

import gc
import sys
from importlib.machinery import PathFinder


def forget_archives() -> None:
    """Take archives off Python's path if all that we need is installed beside them."""
    kept = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
    if all(PathFinder.find_spec(name, kept) for name in ("pyspark", "py4j")):
        sys.path[:] = kept
        for path in list(sys.path_importer_cache):
            if ".zip" in path or ".jar" in path:
                del sys.path_importer_cache[path]


if __name__ == "__main__":
    forget_archives()
    from pyspark.daemon import manager

    if sys.argv[1:] in ([], ["pyspark.worker"]):
        import icestream.formats.json
        import icestream.task  # noqa: F401

        gc.collect()
        gc.freeze()
    manager()  # type: ignore[no-untyped-call]
