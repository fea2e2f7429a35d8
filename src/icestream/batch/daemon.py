"""Spark's Python daemon with our code imported once, before it forks workers.

Without it every worker imports the task's libraries for itself: seconds of CPU per core at start,
and again whenever a worker is replaced. And PySpark does two things around every task that cost
more than a small task itself (docs/design/speed.md): it reads the directory of each archive on
Python's path again, and it collects garbage among all that was ever imported. The third thing that
costs is memory that goes back to the system after each batch, only to be allocated again.
"""

import ctypes
import gc
import sys
from importlib.machinery import PathFinder

# glibc's numbers for its options, and how much freed memory a worker may keep.
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_THRESHOLD = -1, -2, -3
_KEPT, _STEP, _LARGEST = 256 << 20, 16 << 20, 32 << 20


def forget_archives() -> None:
    """Remove archives from Python's path if PySpark and py4j are installed outside of them."""
    folders = [path for path in sys.path if not path.endswith((".zip", ".jar"))]
    if all(PathFinder.find_spec(name, folders) for name in ("pyspark", "py4j")):
        sys.path[:] = folders
        for path in list(sys.path_importer_cache):
            if ".zip" in path or ".jar" in path:
                del sys.path_importer_cache[path]


def keep_memory() -> None:
    """Make glibc, and Arrow through it, keep freed memory for the next batch; else do nothing."""
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is None:
        return
    options = {_TRIM_THRESHOLD: _KEPT, _TOP_PAD: _STEP, _MMAP_THRESHOLD: _LARGEST}
    if all(mallopt(option, value) for option, value in options.items()):
        import pyarrow as pa

        pa.set_memory_pool(pa.system_memory_pool())


if __name__ == "__main__":
    forget_archives()
    from pyspark.daemon import manager

    if sys.argv[1:] in ([], ["pyspark.worker"]):
        import pandas  # noqa: F401  Arrow asks for it when it makes a scalar

        keep_memory()
        gc.collect()
        gc.freeze()
    manager()  # type: ignore[no-untyped-call]
