"""Protocols that are known to be wrong, each a small change to ours; the rules must catch them."""

from dataclasses import replace

from icestream.commit import protocol, retry, table_commits
from icestream.commit.port import AddedFiles
from icestream.commit.protocol import BatchPlan, BatchVerdict, CommitOutcome
from icestream.commit.table_commits import TableCommitter
from icestream.positions import max_positions

from .explore import Variant
from .world import World
from .writers import Run

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


class _OtherLook(TableCommitter):
    def _commit_files(self, name, view, work, append, counts, watermark):
        def advanced(seen):
            return protocol.marker_after_batch(
                seen, work.range, work.commit_id, counts, watermark, {}, work.stream_ids
            )

        def look(seen):
            return self.look(seen, advanced(view), view)

        settled = retry.commit_with_retries(
            self._tables, name, view, advanced, append, retry.backoff, look=look
        )
        self._raise_unless_landed(name, settled)
        return settled.attempts


class _NeverLooks(_OtherLook):
    def look(self, seen, tried, planned):
        return CommitOutcome.AGAIN


class _KeepsFiles(_OtherLook):
    def look(self, seen, tried, planned):
        outcome = protocol.outcome_of_commit(seen, tried, planned)
        return CommitOutcome.AGAIN if outcome is CommitOutcome.RESTAGE else outcome


class NeverStagesAgain(Run):
    """Files for the old columns are committed to a table that has new ones."""

    landing_type = _KeepsFiles


class NeverLooksAgain(Run):
    """Whatever is not a plain yes counts as not applied, and is done again."""

    landing_type = _NeverLooks


class _RowsFirst(TableCommitter):
    def commit_batch(self, work, report, stage_seconds):
        aside, report.quarantine_files = report.quarantine_files, ()
        try:
            if not super().commit_batch(work, report, stage_seconds):
                return False
        finally:
            report.quarantine_files = aside
        if not aside:
            return True
        rows = AddedFiles(
            [file.content_json for file in aside], sum(file.records for file in aside)
        )
        name, counts = f"{work.table.name}__quarantine", table_commits.Counts(landed=rows.records)
        return self._commit_files(name, work.quarantine, work, rows, counts, None) is not None


class RowsBeforeQuarantine(Run):
    """The table's marker passes bad records that are nowhere yet."""

    landing_type = _RowsFirst


class _StaleClaim(TableCommitter):
    def claim_table(self, name, view, start):
        allowed = protocol.claim_outcome(view, self.claim)
        if allowed is not CommitOutcome.AGAIN:
            raise table_commits.refusal(name, allowed.value, view)
        mine = protocol.marker_of_claim(
            view, self.claim, table_commits.uuid.uuid4().hex, start.positions, start.stream_ids, {}
        )

        def claimed(seen):
            return replace(mine, snapshot_sequence=seen.last_sequence + 1)

        def still_ours(seen):
            return protocol.claim_outcome(seen, self.claim)

        settled = retry.commit_with_retries(
            self._tables, name, view, claimed, AddedFiles(), retry.backoff, look=still_ours
        )
        self._raise_unless_landed(name, settled)
        return self._tables.load(name)


class ClaimsFromTheFirstLook(Run):
    """A claim that is tried again takes back what the run before has committed since."""

    landing_type = _StaleClaim


# ── runs ────────────────────────────────────────────────────────────────────────────────────────


class CountsBatches(Run):
    """A batch is known by its number; the count begins anew when the checkpoint is lost."""

    def judge(self, view, own, table, ids):
        plan = super().judge(view, own, table, ids)
        if plan.verdict not in (BatchVerdict.COMMIT, BatchVerdict.SKIP, BatchVerdict.GAP):
            return plan
        done = view.marker.sequence > self.batches + 1
        return BatchPlan(BatchVerdict.SKIP if done else BatchVerdict.COMMIT, own.start)


class ClaimsInAnyOrder(Run):
    """Two that start together can each take a table from the other, and both give up."""

    def claim_order(self, names):
        return sorted(names, key=lambda name: self.world.random())


class DoesNotTrim(Run):
    """A range that overlaps the marker is committed whole."""

    def floors(self, work):
        return work.range.start


class _OwnsAll(TableCommitter):
    def owns(self, view):
        return view.marker is not None


class IgnoresNewerRuns(Run):
    """Plans by the marker, whoever owns it."""

    landing_type = _OwnsAll

    def judge(self, view, own, table, ids):
        mark = view.marker
        claim = replace(self.landing.claim, generation=mark.generation, run_id=mark.run_id)
        return protocol.plan_batch(view, claim, own, table.consumed, ids)


class IgnoresGaps(Run):
    """Records that the source leaves out are passed in silence."""

    def judge(self, view, own, table, ids):
        plan = super().judge(view, own, table, ids)
        return (
            replace(plan, verdict=BatchVerdict.COMMIT) if plan.verdict is BatchVerdict.GAP else plan
        )


class IgnoresIdentity(Run):
    """A topic that was created again is taken for the old one."""

    def judge(self, view, own, table, ids):
        return super().judge(view, own, table, {})

    def same_streams(self, due):
        pass


class BeginsAtTheFurthest(Run):
    """Tables that are behind find a gap, at every start."""

    def begin(self, positions):
        return max_positions(*positions)


class ForgetsQuietRanges(Run):
    """A range without rows is forgotten, so the next one looks like a gap."""

    def move_on(self, table, batch, routes):
        return
        yield


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
    "quiet ranges forgotten": (Variant(run=ForgetsQuietRanges), "for no reason"),
}
