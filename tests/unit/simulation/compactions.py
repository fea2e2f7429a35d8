"""Simulated compactions: the real commit of a rewrite, beside whatever runs there are."""

from itertools import count
from types import SimpleNamespace

from icestream.commit.port import InputsReplaced, ReplacedFiles
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.commit import RewriteAttempt, RewriteCommitter

from .port import Port, Task
from .rules import Violation


class RewriteRequest:
    """One attempt of a rewrite on its way to the catalog."""

    __slots__ = ("base", "by", "name", "rewrite_id")

    def __init__(self, by, name, base, rewrite_id):
        self.by = by
        self.name = name
        self.base = base
        self.rewrite_id = rewrite_id

    def __str__(self):
        return f"rewrite {self.rewrite_id} of {self.name} from version {self.base.version}"


class RewritePort(Port):
    """The catalog of a compaction."""

    def commit_rewrite(self, name, base, files):
        self._ask(RewriteRequest(self.run, name, base, files.rewrite_id))


class Compaction:
    """One rewrite of the files that a table has now, from its plan to its end."""

    port_type = RewritePort

    def __init__(self, world, pipeline, table, number):
        self.world = world
        self.pipeline = pipeline
        self.name = table.name
        self.run_id = f"compaction {number}"
        self.inputs = table.chain[-1].objects
        self.withdrawn = set()  # attempts that it takes for refused, and cleans up after
        self.hopeless = False  # none of its attempts can land any more, it says
        self.task = Task(self, self.live)
        self.answer = ()
        self._ids = count(1)

    def step(self):
        """Take the answer, work up to the next request and send it."""
        request = self.task.switch(*self.answer)
        if self.task.dead:
            raise StopIteration
        self.answer = (self.send(request),)

    def live(self):
        port = self.port_type(self)
        indexes = SimpleNamespace(
            announce_rewrite=lambda name, move: None,
            withdraw_rewrite=lambda name, rewrite_id: self.withdrawn.add(rewrite_id),
        )
        staged = _Staged(self, port.load(self.name))
        RewriteCommitter(port, indexes, None).commit(staged, lambda: False)

    def send(self, request):
        if isinstance(request, str):
            return self.world.load(self.pipeline, request)
        return self.world.commit_rewrite(request)

    def undisturbed(self, request):
        return self.world.calm or (isinstance(request, str) and self.world.random() < 0.5)

    def new_id(self):
        return f"{self.run_id}.{next(self._ids)}"

    def lands(self, rewrite_id):
        """An attempt of it gets into the table; it must not have been given up."""
        if rewrite_id in self.withdrawn or self.hopeless:
            raise Violation(f"{self.name}: a rewrite landed after its files were cleaned up")


class _Staged:
    """What is staged: files for the table's files as they were when it was planned."""

    def __init__(self, compaction, planned):
        if not planned.ancestors:
            raise GaveWay("the table is empty")
        self.compaction = compaction
        self.name = compaction.name
        self.planned = planned

    def catch_up(self, state):
        pass

    def is_nearly_current(self, state):
        return self.compaction.world.calm or self.compaction.world.random() < 0.9

    def next_attempt(self, state):
        rewrite_id = self.compaction.new_id()
        update = RewriteIndexUpdate(rewrite_id, "o")
        return RewriteAttempt(ReplacedFiles(rewrite_id), update)

    def clean_up(self, landed, hopeless):
        self.compaction.hopeless = hopeless


def rewrite(world, request):
    """The compare-and-set of a rewrite; its inputs must be there. Returns whether it is in."""
    table = world.tables[request.name]
    if request.base.version != table.version:
        return False
    if not table.chain or not request.by.inputs <= table.chain[-1].objects:
        raise InputsReplaced("Missing required files to delete")
    request.by.lands(request.rewrite_id)
    left = table.chain[-1].objects - request.by.inputs
    table.add(table.content, left | {next(world.objects), next(world.objects)})
    table.chain[-1].rewrite_id = request.rewrite_id
    return True
