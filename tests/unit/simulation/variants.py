"""Protocols that are known to be wrong, each a small change to ours; the rules must catch them."""

from dataclasses import replace
from types import SimpleNamespace

from icestream.batch.commit_batch import BatchCommitter
from icestream.commit import protocol
from icestream.commit.port import CommitFailed, InputsReplaced
from icestream.commit.protocol import BatchPlan, BatchVerdict, CommitOutcome
from icestream.commit.steps import BatchStep, ClaimStep
from icestream.commit.table_commits import TableCommitter
from icestream.positions import max_positions

from .compactions import Compaction, RewritePort
from .explore import Variant
from .world import World
from .writers import Job, Run, Tables

# ── catalogs ────────────────────────────────────────────────────────────────────────────────────


class CheckThenCommit(World):
    """The marker is looked at, then rows are committed whatever has happened since."""

    def apply(self, request):
        table = self.tables[request.name]
        number = table.last_sequence + 1
        request.marker = replace(request.marker, snapshot_sequence=number)
        self.land(table, request)
        return True


class CleansUp(World):
    """Iceberg's own clean-up: a conflict means that the attempt's manifest is not needed."""

    def commit(self, request):
        answer = super().commit(request)
        if answer and str(answer).startswith("409"):
            self.delete(self.tables[request.name], {request.manifest})
        return answer


class ClaimsByProperty(World):
    """Later claims only set the property, and a catalog asserts nothing about properties."""

    def apply(self, request):
        table, mark = self.tables[request.name], request.marker
        now = table.marks.get(mark.pipeline)
        if now and mark.generation > now.generation:
            owner = {"generation": mark.generation, "run_id": mark.run_id}
            table.marks[mark.pipeline] = replace(now, **owner)
            table.views = {}  # and no new version
            return True
        return super().apply(request)


class SummaryOnly(World):
    """No property: the marker is in the newest own snapshot that is still there."""

    def view(self, table, pipeline):
        marks = (each.marker for each in reversed(table.chain) if each.marker)
        newest = next((mark for mark in marks if mark.pipeline == pipeline), None)
        return replace(super().view(table, pipeline), marker=newest)


# ── commits ─────────────────────────────────────────────────────────────────────────────────────


class _OtherJudge(TableCommitter):
    """Looks at the table in another way after an attempt to commit files."""

    def _commit(self, name, planned, step):
        if isinstance(step, BatchStep):
            step = self.judged(step)
        return super()._commit(name, planned, step)


class _NeverLooks(_OtherJudge):
    def judged(self, step):
        return _judging(step, lambda seen, tried, planned: CommitOutcome.AGAIN)


class _KeepsFiles(_OtherJudge):
    def judged(self, step):
        def judge(seen, tried, planned):
            outcome = step.judge(seen, tried, planned)
            return CommitOutcome.AGAIN if outcome is CommitOutcome.RESTAGE else outcome

        return _judging(step, judge)


def _judging(step, judge):
    return SimpleNamespace(files=step.files, marker=step.marker, judge=judge)


class NeverStagesAgain(Run):
    """Files for the old columns are committed to a table that has new ones."""

    committer_type = _KeepsFiles


class NeverLooksAgain(Run):
    """Whatever is not a plain yes counts as not applied, and is done again."""

    committer_type = _NeverLooks


class _RowsFirst(BatchCommitter):
    def commit(self, batch, report, stage_seconds, deletes=()):
        bad = report.staged.quarantine_files
        rows = replace(report, staged=replace(report.staged, quarantine_files=()))
        if not super().commit(batch, rows, stage_seconds, deletes):
            return False
        return not bad or self._commit_quarantine(batch, bad, None)


class RowsBeforeQuarantine(Run):
    """The table's marker passes bad records that are nowhere yet."""

    batch_committer_type = _RowsFirst


class _StaleClaim(TableCommitter):
    def _commit(self, name, planned, step):
        if isinstance(step, ClaimStep):
            first = step.marker(planned)

            def marker(state):
                return replace(first, snapshot_sequence=state.last_sequence + 1)

            step = SimpleNamespace(files=step.files, marker=marker, judge=step.judge)
        return super()._commit(name, planned, step)


class ClaimsFromTheFirstLook(Run):
    """A claim that is tried again takes back what the run before has committed since."""

    committer_type = _StaleClaim


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


class _ByNumber(Tables):
    def judge(self, table, state, table_range, ids):
        plan = super().judge(table, state, table_range, ids)
        if plan.verdict not in (BatchVerdict.COMMIT, BatchVerdict.SKIP, BatchVerdict.GAP):
            return plan
        done = state.marker.sequence > self.run.batches
        return BatchPlan(BatchVerdict.SKIP if done else BatchVerdict.COMMIT, table_range.start)


class CountsBatches(Run):
    """A batch is known by its number; the count begins anew when the checkpoint is lost."""

    tables_type = _ByNumber


class _AnyOrder(Tables):
    def _in_claim_order(self, names):
        return sorted(names, key=lambda name: self.run.world.random())


class ClaimsInAnyOrder(Run):
    """Two that start together can each take a table from the other, and both give up."""

    tables_type = _AnyOrder


class _Whole(Job):
    def floors(self, part):
        return part.range.start


class DoesNotTrim(Run):
    """A range that overlaps the marker is committed whole."""

    job_type = _Whole


class _OwnsAll(TableCommitter):
    def owns(self, state):
        return state.marker is not None


class _ByTheMarker(Tables):
    def judge(self, table, state, table_range, ids):
        mark = state.marker
        own = self._committer.claim
        claim = replace(own, generation=mark.generation, run_id=mark.run_id)
        return protocol.plan_batch(state, claim, table_range, table.consumed, ids)


class IgnoresNewerRuns(Run):
    """Plans by the marker, whoever owns it."""

    committer_type = _OwnsAll
    tables_type = _ByTheMarker


class _NoGaps(Tables):
    def judge(self, table, state, table_range, ids):
        plan = super().judge(table, state, table_range, ids)
        if plan.verdict is BatchVerdict.GAP:
            return replace(plan, verdict=BatchVerdict.COMMIT)
        return plan


class IgnoresGaps(Run):
    """Records that the source leaves out are passed in silence."""

    tables_type = _NoGaps


class _NoIdentity(Tables):
    def judge(self, table, state, table_range, ids):
        return super().judge(table, state, table_range, {})

    def refuse_recreated_streams(self, batches):
        pass


class IgnoresIdentity(Run):
    """A topic that was created again is taken for the old one."""

    tables_type = _NoIdentity


class _Furthest(Tables):
    def _first_positions(self, committed):
        return max_positions(*committed)


class BeginsAtTheFurthest(Run):
    """Tables that are behind find a gap, at every start."""

    tables_type = _Furthest


class _Forgetful(Tables):
    def note_consumed(self, batch, routes):
        pass


class ForgetsQuietRanges(Run):
    """A range without rows is forgotten, so the next one looks like a gap."""

    tables_type = _Forgetful


class _TakesNoForAnAnswer(RewritePort):
    def commit_rewrite(self, name, base, files):
        try:
            super().commit_rewrite(name, base, files)
        except CommitFailed as failure:
            raise InputsReplaced(str(failure)) from None


class CleansUpAfterSilence(Compaction):
    """An attempt without an answer counts as refused, and its files are removed."""

    port_type = _TakesNoForAnAnswer


# name → the variant, and what the rules have to say about it
KNOWN_BAD = {
    "check, then commit": (Variant(world=CheckThenCommit), "a second time"),
    "a batch counter": (Variant(run=CountsBatches), "missing"),
    "Iceberg's own clean-up": (Variant(world=CleansUp), "a live file was deleted"),
    "claims without order": (Variant(run=ClaimsInAnyOrder), "belongs to"),
    "claims without compare-and-set": (Variant(world=ClaimsByProperty), "had claimed it"),
    "marker in the summary only": (Variant(world=SummaryOnly), "chain of commits is broken"),
    "no second look": (Variant(run=NeverLooksAgain), "a second time"),
    "no second staging": (Variant(run=NeverStagesAgain), "another schema"),
    "rows before quarantine": (Variant(run=RowsBeforeQuarantine), "not in quarantine"),
    "claims from the first look": (Variant(run=ClaimsFromTheFirstLook), "chain of commits"),
    "no trimming": (Variant(run=DoesNotTrim), "a second time"),
    "no fence": (Variant(run=IgnoresNewerRuns), "in the name of"),
    "no gaps": (Variant(run=IgnoresGaps), "missing"),
    "no identity": (Variant(run=IgnoresIdentity), "too many"),
    "the furthest start": (Variant(run=BeginsAtTheFurthest), "cannot go on"),
    "a rewrite cleaned up too early": (
        Variant(compaction=CleansUpAfterSilence),
        "after its files were cleaned up",
    ),
    "quiet ranges forgotten": (Variant(run=ForgetsQuietRanges), "for no reason"),
}
