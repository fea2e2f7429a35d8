"""What must hold, looked at with every commit; each snapshot is immutable, so once is enough."""


class Violation(AssertionError):
    """The protocol let something happen that must never happen."""


def once(table, content, rows):
    """No record comes into a table that has it."""
    if content & rows:
        raise Violation(f"{table.name}: records land a second time")


def same(what, one, other):
    if one != other:
        raise Violation(f"{what}: {one} and {other}")


def commit(world, table, request, before, rows, snapshot):
    """All that one commit of ours has to respect."""
    name, after = table.name, request.marker
    if table.spoilt:
        raise Violation(f"{name}: written to although it was {table.spoilt}")
    if after.commit_id in table.applied:
        raise Violation(f"{name}: commit {after.commit_id} landed twice")
    if after.snapshot_sequence != snapshot.sequence:
        raise Violation(f"{name}: the marker foresaw another snapshot")
    _chain(name, before, after)
    _owner(world, name, request.run, before, after)
    if before is None or rows or after.positions != before.positions:
        _content(world, table, snapshot)
    if not world.deleted.isdisjoint(snapshot.objects):
        raise Violation(f"{name}: the snapshot refers to a file that was deleted")


def _chain(name, before, after):
    if before is None:
        if after.sequence != 1 or after.previous_commit_id is not None:
            raise Violation(f"{name}: the chain does not begin at its beginning")
        return
    if after.sequence != before.sequence + 1 or after.previous_commit_id != before.commit_id:
        raise Violation(f"{name}: the chain of commits is broken")
    for stream, partitions in before.positions.items():
        now = after.positions.get(stream, {})
        for number, at in partitions.items():
            if now.get(number, -1) < at:
                raise Violation(f"{name}: {stream}/{number} moved back from {at}")


def _owner(world, name, run, before, after):
    """One run per generation, over all tables; and nobody writes after a newer claim."""
    if after.run_id != run.run_id:
        raise Violation(f"{name}: {run.run_id} wrote in the name of {after.run_id}")
    owner = world.owners.setdefault((after.pipeline, after.generation), run.run_id)
    if owner != run.run_id:
        raise Violation(f"{name}: generation {after.generation} belongs to {owner} already")
    if before and after.generation < before.generation:
        raise Violation(f"{name}: written to after generation {before.generation} had claimed it")


def _content(world, table, snapshot):
    """Exactly the records below the markers; the bad ones are in quarantine by then."""
    aside, mark = table.of is not table, snapshot.marker
    source, begin = world.sources[mark.pipeline], table.of.begin.get(mark.pipeline, {})
    landed, bad, dropped = (
        source.truth(column, table.of.name, begin, mark.positions)
        for column in ("bad" if aside else "good", "bad", "dropped")
    )
    expected = landed
    for other, told in table.marks.items():
        if other != mark.pipeline:
            begin = table.of.begin.get(other, {})
            column = "bad" if aside else "good"
            expected |= world.sources[other].truth(column, table.of.name, begin, told.positions)
    if snapshot.content != expected:
        lost, more = expected & ~snapshot.content, snapshot.content & ~expected
        raise Violation(
            f"{table.name}: {lost.bit_count()} records below the marker are missing, "
            f"{more.bit_count()} are too many"
        )
    if aside:
        bad = dropped = 0
    kept = world.tables.get(quarantine(table.name))
    if bad & ~(kept.meant if kept else 0):
        raise Violation(f"{table.name}: bad records are passed and not in quarantine")
    counted = (mark.counts.landed, mark.counts.quarantined, mark.counts.dropped)
    if counted != (landed.bit_count(), bad.bit_count(), dropped.bit_count()):
        raise Violation(f"{table.name}: {mark.counts} is not what went by")


def quarantine(name):
    return f"{name}__quarantine"


def files_exist(world, table, chain):
    for each in chain:
        if not world.deleted.isdisjoint(each.objects):
            raise Violation(f"{table.name}: a live file was deleted")


def caught_up(world):
    """After a quiet run over everything there is."""
    for pipeline, source in world.sources.items():
        ends = source.ends()
        for name in source.tables:
            table = world.tables.get(name)
            streams = source.streams_of(name)
            stop = {stream: at for stream, at in ends.items() if stream in streams}
            begin = table.begin.get(pipeline, {}) if table else {}
            expected = source.truth("good", name, begin, stop)
            if expected & ~(table.content if table else 0):
                raise Violation(f"{name}: not all records of {pipeline} are there in the end")
            bad = source.truth("bad", name, begin, stop)
            kept = world.tables.get(quarantine(name))
            if bad & ~(kept.content if kept else 0):
                raise Violation(f"{name}: bad records of {pipeline} are nowhere in the end")
