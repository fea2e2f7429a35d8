"""A change feed whose truth is known at each of its positions: what a mirror must hold there."""

import json
import random
from collections.abc import Iterator, Mapping

from pyiceberg.table import Table
from pyiceberg.table.snapshots import Snapshot, ancestors_of

TOPIC, TABLE = "people", "db.people"
PARTITIONS = 2
KEYS = 400
BAD_EVERY = 89
OFFSETS = "icestream.offsets"
MARKER = "icestream.chaos.marker"

State = dict[int, tuple[int, str]]  # key → version and name


class People:
    """Makes changes and remembers each of them, by partition, in the order sent."""

    def __init__(self, keys: int = KEYS) -> None:
        self._rng = random.Random(1)
        self._keys = keys
        self._made = 0
        self._log: list[list[tuple[int, int, str | None] | None]] = [[] for _ in range(PARTITIONS)]

    def everyone(self) -> Iterator[tuple[int, str]]:
        """All of them once, as they are at the beginning."""
        return (self._change(key, late=False, gone=False) for key in range(self._keys))

    def change(self) -> tuple[int, str]:
        """The next one: an insert or update, sometimes a delete, a late one or a broken one."""
        key = self._rng.randrange(self._keys)
        late, gone = self._rng.random() < 0.1, self._rng.random() < 0.1
        return self._change(key, late, gone)

    def _change(self, key: int, late: bool, gone: bool) -> tuple[int, str]:
        self._made += 1
        version = self._made - (self._rng.randrange(2000) if late else 0)
        name = None if gone else f"name {self._made}"
        text = json.dumps({"id": key, "version": version, "name": name, "gone": name is None})
        bad = self._made % BAD_EVERY == 0
        partition = key % PARTITIONS
        self._log[partition].append(None if bad else (key, version, name))
        return partition, text[:-1] if bad else text

    def at(self, offsets: Mapping[int, int]) -> State:
        """What a mirror holds that has taken everything below these offsets."""
        newest: dict[int, tuple[int, str | None]] = {}
        for partition, stop in offsets.items():
            for change in self._log[partition][:stop]:
                if change and change[1] >= newest.get(change[0], (-1 << 62, None))[0]:
                    newest[change[0]] = change[1:]
        return {key: (version, name) for key, (version, name) in newest.items() if name is not None}

    def end(self) -> dict[int, int]:
        """Behind the last change that was made."""
        return {partition: len(log) for partition, log in enumerate(self._log)}


def differences(people: People, table: Table, last: int | None = None) -> Iterator[str]:
    """Compare each retained snapshot of the mirror with the truth at its own position.

    Or the last ones only, of a mirror that is too large for that.
    """
    newest = sorted(table.metadata.snapshots, key=lambda each: -each.timestamp_ms)[:last]
    for snapshot in newest:
        offsets = _offsets(snapshot, table)
        if offsets is None:
            continue  # older than any position that is still known
        rows = table.scan(
            snapshot_id=snapshot.snapshot_id, selected_fields=("id", "version", "name")
        ).to_arrow()
        found = list(
            zip(*(rows.column(name).to_pylist() for name in rows.column_names), strict=True)
        )
        state = {key: (version, name) for key, version, name in found}
        truth = people.at(offsets)
        if len(state) < len(found):
            yield f"snapshot {snapshot.snapshot_id}: {len(found)} rows of {len(state)} keys"
        elif state != truth:
            odd = sorted(key for key in state.keys() | truth if state.get(key) != truth.get(key))
            yield (
                f"snapshot {snapshot.snapshot_id} at {offsets}: {len(odd)} keys differ, such as "
                f"{odd[0]}: {state.get(odd[0])}, not {truth.get(odd[0])}"
            )


def reached(table: Table) -> dict[int, int]:
    """How far the mirror has come."""
    marker = json.loads(table.properties[MARKER])
    return {int(number): at for number, at in marker["positions"].get(TOPIC, {}).items()}


def _offsets(snapshot: Snapshot, table: Table) -> dict[int, int] | None:
    """Where it stands: each snapshot tells of the partitions that moved; the marker of them all."""
    if snapshot == table.current_snapshot():
        return reached(table)
    found: dict[int, int] = {}
    each = snapshot
    for each in ancestors_of(snapshot, table.metadata):
        told = each.summary.additional_properties.get(OFFSETS, "{}") if each.summary else "{}"
        moved = json.loads(told).get(TOPIC, {})
        found = {int(number): at for number, at in moved.items()} | found
    whole = each.parent_snapshot_id is None or len(found) == PARTITIONS
    return found if whole else None
