"""Fetch the jars of all servers that tests start, before a test is timed: `make test` calls it."""

from connect import WORKER_LOCK
from databases import locked
from icestream.spark import jars

SERVERS = ("debezium", "mysql", "postgres")


def main() -> None:
    """What is in the cache already is only looked at."""
    jars.ensure(jars.known_sets())
    servers = [jar for name in SERVERS for jar in locked(name)]
    jars.obtain([*servers, *locked("connect", WORKER_LOCK)])


if __name__ == "__main__":
    main()
