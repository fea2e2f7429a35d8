"""How a run asks the catalog, one answer at a time.

The real code of a run calls the catalog and waits for its answer. Here each run is a greenlet: at
each question it gives way to the scheduler, and goes on when its turn has come, so that anything
may happen in between.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from greenlet import getcurrent, greenlet

from icestream import pipeline
from icestream.batch import commit_batch, run_tables
from icestream.commit import retry, table_commits
from icestream.errors import IcestreamError

_ATTEMPTS = 3


class _Ids:
    """Commit ids that a seed repeats: each run counts its own."""

    @staticmethod
    def uuid4():
        return SimpleNamespace(hex=_run_of(getcurrent()).new_id())


@contextmanager
def at_once():
    """The real code without waiting, without files, and with commit ids that a seed repeats."""
    with (
        patch.object(table_commits, "uuid", _Ids),
        patch.object(run_tables, "uuid", _Ids),
        patch.object(retry, "backoff", lambda attempt: attempt < _ATTEMPTS),
        patch.object(commit_batch, "changed_or_missing", lambda files: []),
        patch.object(pipeline, "discard", lambda files: None),
    ):
        yield


class Task(greenlet):
    """Real code that gives way to whoever runs it, whenever it asks for something."""

    def __init__(self, run, call):
        super().__init__(call)
        self.run_of = run


def _run_of(current):
    while not isinstance(current, Task):
        current = current.parent
    return current.run_of


def ask(request):
    """Give way to the scheduler, with what is asked for; returns the answer, or raises it."""
    current = getcurrent()
    answer = current.parent.switch(request)
    if isinstance(answer, Exception):
        raise answer
    return answer


class Port:
    """The catalog of one run: looks, single attempts, and changes of tables."""

    def __init__(self, run):
        self.run = run

    def load(self, name):
        return self._ask(name)

    def commit(self, name, base, marker, before, work):
        self._ask(self.run.request(name, base, marker, before, work))

    def exists(self, name):
        return name in self.run.world.tables

    def list_tables(self, reaches):
        return list(self.run.world.tables)

    def create(self, design):
        known = design.name in self.run.world.tables
        self.run.world.create(design.name, self.run.keeps_bad_records_of(design.name))
        return not known

    def evolve(self, design, base, new, wider=()):
        raise AssertionError("nothing here asks for a column")

    def _ask(self, request):
        if self.run.undisturbed(request):
            answer = self.run.send(request)
            if isinstance(answer, Exception):
                raise answer
            return answer
        return ask(request)


class Together:
    """Several calls at a time, as threads do it: all come to their end, then errors count."""

    def __init__(self, run):
        self.run = run

    def map(self, call, items):
        items = list(items)
        tasks = [Task(self.run, lambda each=each: call(each)) for each in items]
        answers, results, failure = [()] * len(items), [None] * len(items), None
        live = list(range(len(items)))
        while live:
            at = live[int(self.run.world.random() * len(live))]
            try:
                request = tasks[at].switch(*answers[at])
            except IcestreamError as error:
                failure = failure or error
                live.remove(at)
                continue
            if tasks[at].dead:
                results[at] = request
                live.remove(at)
                continue
            try:
                answers[at] = (ask(request),)
            except Exception as error:
                answers[at] = (error,)
        if failure:
            raise failure
        self.run.world.seen["settled restage"] += results.count(False)
        return results

    def shutdown(self):
        pass
