"""The simulated catalog with its tables, and everybody else who changes them."""

from bisect import bisect
from collections import Counter
from itertools import count

from icestream.commit.port import CommitFailed, InputsReplaced
from icestream.commit.table_state import AncestorSnapshot, TableState
from icestream.errors import Unreachable
from icestream.tables.commits import summary
from icestream.tables.marker import Marker
from icestream.tables.metadata import Metadata

from . import rules
from .compactions import rewrite

FATES = ("ok", "lost", "5xx after", "5xx before", "delayed", "replayed", "409")
MEDDLING = ("rolled back", "history dropped", "created again")
_DOCUMENT = {
    "location": "nowhere",
    "current-schema-id": 0,
    "schemas": [{"schema-id": 0, "fields": []}],
}


class _Metadata(Metadata):
    """The same for all tables, but for what a rewrite looks for."""

    def __init__(self, chain):
        object.__setattr__(self, "document", _DOCUMENT)
        object.__setattr__(self, "chain", list(chain))

    def rewrites(self, snapshot_ids):
        wanted = set(snapshot_ids)
        return {
            each.sequence: each.rewrite_id
            for each in self.chain
            if each.rewrite_id and each.sequence in wanted
        }


class Base:
    """The metadata that a commit compares against."""

    __slots__ = ("version",)

    def __init__(self, version):
        self.version = version


class Snapshot:
    """One snapshot: the records and the files in it, and the marker if one of ours made it."""

    __slots__ = ("content", "marker", "objects", "parent", "rewrite_id", "sequence")

    def __init__(self, sequence, parent, content, objects, marker=None):
        self.sequence = sequence  # also its id
        self.parent = parent
        self.content = content
        self.objects = objects  # manifests and data files
        self.marker = marker
        self.rewrite_id = None  # if a compaction made it


class Request:
    """One commit on its way; the manifest is written by the attempt, the data files are not."""

    __slots__ = ("base", "before", "manifest", "marker", "name", "run", "work")

    def __init__(self, run, name, base, marker, before, work):
        self.run = run
        self.name = name
        self.base = base
        self.marker = marker
        self.before = before
        self.work = work
        self.manifest = 0

    def __str__(self):
        mark = self.marker
        return (
            f"commit to {self.name}: {mark.commit_id} generation {mark.generation} "
            f"#{mark.sequence} at {_short(mark.positions)} from version {self.base.version}"
        )


class Table:
    """One table of the catalog; `chain` is its retained history, oldest first."""

    def __init__(self, name, of):
        self.name = name
        self.of = of or self  # the table itself, or the one whose bad records it keeps
        self.uuid = f"uuid of {name}"
        self.version = 0
        self.schema_id = 0
        self.last_sequence = 0
        self.chain = []
        self.marks = {}  # pipeline → the marker property
        self.begin = {}  # pipeline → where the first claim said to begin
        self.applied = set()  # commit ids
        self.spoilt = None  # what somebody did to it, until they undo it
        self.undo = None
        self.views = {}
        self.lineages = {}

    @property
    def content(self):
        return self.chain[-1].content if self.chain else 0

    @property
    def meant(self):
        """The records in it, leaving aside what somebody did to it."""
        chain = self.undo[0] if self.spoilt else self.chain
        return chain[-1].content if chain else 0

    def changed(self):
        self.version += 1
        self.views = {}

    def add(self, content, objects, marker=None):
        """A new current snapshot."""
        self.changed()
        self.last_sequence += 1
        parent = self.chain[-1].sequence if self.chain else None
        new = Snapshot(self.last_sequence, parent, content, objects, marker)
        self.chain.append(new)
        for pipeline, lineage in self.lineages.items():
            self.lineages[pipeline] = (_ancestor(new, pipeline), *lineage)
        return new

    def lineage(self, pipeline):
        """Newest first, built once and then kept up."""
        known = self.lineages.get(pipeline)
        if known is None:
            known = tuple(_ancestor(each, pipeline) for each in reversed(self.chain))
            self.lineages[pipeline] = known
        return known

    def rebuild(self, chain):
        self.chain, self.lineages = chain, {}
        self.changed()


def _ancestor(snapshot, pipeline):
    mark = snapshot.marker
    own = mark.commit_id if mark and mark.pipeline == pipeline else None
    return AncestorSnapshot(snapshot.sequence, snapshot.parent, snapshot.sequence, own)


class World:
    """Answers each request with a fate that the seed draws; a calm one just answers."""

    def __init__(self, random, weights, through_json=False, seen=None, trace=None):
        self.random = random
        self.weights = weights  # cumulative, one per fate
        self.through_json = through_json
        self.seen = Counter() if seen is None else seen
        self.trace = trace
        self.calm = False
        self.tables = {}
        self.sources = {}
        self.owners = {}  # (pipeline, generation) → run
        self.late = []
        self.deleted = set()
        self.objects = count(1)

    def say(self, line):
        if self.trace is not None:
            self.trace.append(line)

    def create(self, name, of=None):
        if name not in self.tables:
            self.tables[name] = Table(name, self.tables[of] if of else None)

    # -- the catalog ---------------------------------------------------------------------------

    def load(self, pipeline, name):
        """→ a view, or the error that the caller gets."""
        if not self.calm and self.random() < 0.02:
            self.seen["load failed"] += 1
            return Unreachable("the catalog does not answer")
        table = self.tables[name]
        view = table.views.get(pipeline)
        if view is None:
            view = table.views[pipeline] = self.view(table, pipeline)
        return view

    def view(self, table, pipeline):
        return TableState(
            uuid=table.uuid,
            marker=table.marks.get(pipeline),
            ancestors=table.lineage(pipeline),
            last_sequence=table.last_sequence,
            schema_id=table.schema_id,
            base=Base(table.version),
            metadata=_Metadata(table.chain),
        )

    def commit(self, request):
        """→ None for a plain yes, or the error that the caller gets."""
        request.manifest = next(self.objects)
        return self.answered(request, self.apply)

    def commit_rewrite(self, request):
        """→ None for a plain yes, or the error that the caller gets."""
        return self.answered(request, self.apply_rewrite)

    def answered(self, request, apply):
        fate = "ok"
        if not self.calm:
            fate = FATES[bisect(self.weights, self.random())]
        self.seen[fate] += 1
        if self.trace is not None:
            self.say(f"    {request}: {fate}")
        if fate == "5xx before" or fate == "409":
            return CommitFailed("503 Service Unavailable" if fate != "409" else "409 busy")
        if fate == "delayed":
            self.late.append(request)
            return CommitFailed("timeout")
        try:
            applied = apply(request)
            if fate == "replayed":  # by the HTTP client: the second meets what the first has done
                applied = apply(request)
        except InputsReplaced as refused:
            return refused
        if not applied:
            self.seen["409 stale"] += fate != "replayed"
            return CommitFailed("409 the base is stale")
        if fate == "ok":
            return None
        return CommitFailed("connection reset" if fate == "lost" else "504 after all")

    def apply(self, request):
        """The compare-and-set."""
        table = self.tables[request.name]
        if request.base.version != table.version:
            return False
        self.land(table, request)
        return True

    def land(self, table, request):
        marker, work = request.marker, request.work
        if self.through_json:
            marker = self.read_back(marker, request)
        last = table.chain[-1] if table.chain else None
        content, objects = (last.content, last.objects) if last else (0, frozenset())
        added = 0
        if work.files:
            for name, rows, schema_id in work.files:
                rules.once(table, content | added, rows)
                rules.same("files for another schema", schema_id, table.schema_id)
                added |= rows
                objects |= {name, request.manifest}
        before = table.marks.get(marker.pipeline)
        snapshot = table.add(content | added, objects, marker)
        table.marks[marker.pipeline] = marker
        if before is None:
            table.begin[marker.pipeline] = marker.positions
        rules.commit(self, table, request, before, added, snapshot)
        table.applied.add(marker.commit_id)

    def read_back(self, marker, request):
        """What the property and the summary give back of a marker."""
        again = Marker.from_json(marker.to_json())
        notes = summary(marker, request.before, request.work.records)
        rules.same("not read back as written", again, marker)
        rules.same("another id in the summary", notes["icestream.commit-id"], marker.commit_id)
        return again

    def deliver(self, at):
        """A request that was on its way for long comes in."""
        late = self.late.pop(at)
        if isinstance(late, Request):
            landed, what = self.apply(late), "late commit"
        else:
            landed, what = self.late_rewrite(late), "late rewrite"
        self.seen[f"{what} {'landed' if landed else 'refused'}"] += 1
        if self.trace is not None:
            self.say(f"  {what} comes in: {'landed' if landed else 'refused'} ({late})")

    # -- everybody else ------------------------------------------------------------------------

    def append_foreign(self, table):
        last = table.chain[-1] if table.chain else None
        new = {next(self.objects)}
        table.add(last.content if last else 0, (last.objects if last else frozenset()) | new)

    def change_schema(self, table):
        table.schema_id += 1
        table.changed()

    def apply_rewrite(self, request):
        return rewrite(self, request)

    def late_rewrite(self, request):
        try:
            return self.apply_rewrite(request)
        except InputsReplaced:
            return False

    def compacted(self, name, version):
        table = self.tables[name]
        if table.version != version:
            return False
        rewritten = frozenset((next(self.objects), next(self.objects)))
        table.add(table.content, rewritten)
        return True

    def expire(self, table, keep):
        """Remove all but the newest snapshots, and the files that only they had."""
        if table.spoilt or len(table.chain) <= keep:
            return
        gone, kept = table.chain[:-keep], table.chain[-keep:]
        live = frozenset().union(*(each.objects for each in kept))
        table.rebuild(kept)
        self.delete(table, frozenset().union(*(each.objects for each in gone)) - live)

    def delete(self, table, objects):
        self.deleted |= objects
        rules.files_exist(self, table, table.chain)

    def meddle(self, table, how, at):
        """Somebody does to a table of ours what the protocol must notice."""
        table.undo = (table.chain, table.uuid)
        if how == "created again":
            table.uuid = "another"
        table.spoilt = how
        table.rebuild(table.chain[: at + 1] if how == "rolled back" else [])

    def make_good(self):
        """Whoever meddled takes it back."""
        for table in self.tables.values():
            if table.spoilt:
                chain, table.uuid = table.undo
                table.spoilt = None
                table.rebuild(chain)
        for source in self.sources.values():
            source.restore()


def _short(positions):
    return " ".join(
        f"{stream}/{number}:{at}"
        for stream, partitions in positions.items()
        for number, at in partitions.items()
    )
