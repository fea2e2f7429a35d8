"""How a run asks the catalog, one answer at a time.

TableCommitter and `protocol.commit_with_retries` are plain code: they cannot stop in the middle and
let others go first. So they are called anew with one answer more each time; given the answers, they
always do the same.
"""

from contextlib import contextmanager
from types import SimpleNamespace
from unittest.mock import patch

from icestream.commit import retry, table_commits
from icestream.errors import IcestreamError

from .world import Request

_ATTEMPTS = 3
_NEW_ID = SimpleNamespace(hex="")  # what TableCommitter takes for a fresh uuid


@contextmanager
def at_once():
    """TableCommitter without waiting, and with commit ids that a seed repeats."""
    with (
        patch.object(table_commits, "uuid", SimpleNamespace(uuid4=lambda: _NEW_ID)),
        patch.object(retry, "backoff", lambda attempt: attempt < _ATTEMPTS),
    ):
        yield


class _Ask(BaseException):
    """Nobody has answered this request yet."""

    def __init__(self, request):
        self.request = request


class Port:
    """The protocol's `CommitCatalog`, on answers that are known so far."""

    def __init__(self, run):
        self.run = run
        self.answers = []
        self.at = 0

    def load(self, name):
        return self._answer() if self.at < len(self.answers) else self._ask(name)

    def commit(self, name, base, marker, before, work):
        if self.at < len(self.answers):
            self._answer()
        else:
            self._ask(Request(self.run, name, base, marker, before, work))

    def _answer(self):
        answer = self.answers[self.at]
        self.at += 1
        if isinstance(answer, Exception):
            raise answer
        return answer

    def _ask(self, request):
        if not self.run.undisturbed(request):
            raise _Ask(request)
        self.answers.append(self.run.send(request))
        return self._answer()

    def asking(self, new_id, call, *arguments):
        """Run `call` to its end; whenever it needs an answer, ask and run it again."""
        answers = []
        while True:
            self.answers, self.at, _NEW_ID.hex = answers, 0, new_id
            self.run.heard.clear()
            try:
                return call(*arguments)
            except _Ask as ask:
                request = ask.request
            answers.append((yield request))


def together(calls, random):
    """Several calls at a time, as threads do it: all come to their end, then errors count."""
    answers, results, failure = [None] * len(calls), [False] * len(calls), None
    live = list(range(len(calls)))
    while live:
        at = live[int(random() * len(live))]
        try:
            request = calls[at].send(answers[at])
        except StopIteration as end:
            results[at] = end.value
            live.remove(at)
        except IcestreamError as error:
            failure = failure or error
            live.remove(at)
        else:
            answers[at] = yield request
    if failure:
        raise failure
    return results
