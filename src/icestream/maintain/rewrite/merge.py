"""Merging deletes: many position-delete files of a partition become few, without what dangles."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from icestream.commit.java_catalog import Replace
from icestream.commit.protocol import TableView
from icestream.index.rewrite_update import Move
from icestream.maintain.rewrite.commit import Try
from icestream.maintain.rewrite.stage import Numbered, deleted
from icestream.tables.live_files import File, GiveWay, Listed, content_of
from icestream.write.discard import discard
from icestream.write.position_deletes import MOST_SCOPED, Place, write_deletes
from icestream.write.staged import missing
from icestream.write.target import StagedFile, StageTarget

_AT_ONCE = 256  # delete files that one commit replaces: each takes a call to Java


@dataclass(frozen=True)
class Share:
    """Delete files of one partition that are replaced together."""

    deletes: tuple[File, ...]
    data: tuple[File, ...]  # of the partition, that they may be about

    @property
    def sequence(self) -> int:
        """What their successor must have, so that it is about the same data files."""
        return max(each.sequence for each in self.deletes)


class NewDeletes:
    """Delete files that take the place of others; none, if no row that those deleted is left."""

    def __init__(
        self, name: str, planned: TableView, share: Share, place: Place, files: list[StagedFile]
    ) -> None:
        self.name, self.planned = name, planned
        self.share, self.files = share, files
        self._place = place

    def catch_up(self, view: TableView) -> None:
        """What has come since is none of its business."""

    def is_near(self, view: TableView) -> bool:
        """Always."""
        return True

    def fit(self, view: TableView) -> Try:
        """The same for every base that still has the old ones."""
        if gone := missing(self.files):
            raise GiveWay(f"{len(gone)} of its new files are gone: {gone[0]}")
        told = [content_of(file, self._place, "position-deletes") for file in self.share.deletes]
        kept = [(file.content_json, self.share.sequence) for file in self.files]
        replace = Replace(uuid.uuid4().hex, removed_deletes=told, kept_deletes=kept)
        return Try(replace, Move(replace.rewrite_id, ""))

    def let_go(self, landed: Try | None, hopeless: bool) -> None:
        """Remove what nobody will ever name."""
        if hopeless:
            discard(self.files)


def shares(listed: Listed, wanted: Sequence[str] = ()) -> Iterator[Share]:
    """Delete files that belong together: of the partitions of `wanted` files, or of all."""
    named = set(wanted)
    data: dict[tuple[int, str], list[File]] = {}
    for file in listed.data.values():
        data.setdefault(file.home, []).append(file)
    deletes: dict[tuple[int, str], list[File]] = {}
    for file in listed.deletes.values():
        deletes.setdefault(file.home, []).append(file)
    for home, there in deletes.items():
        mine = data.get(home, [])
        if named and not any(file.path in named for file in (*mine, *there)):
            continue
        # Those of one data file stay together, so that few are left of many.
        ordered = sorted(there, key=lambda each: (each.about or "", each.path))
        for start in range(0, len(ordered), _AT_ONCE):
            some = tuple(ordered[start : start + _AT_ONCE])
            about = {each.about for each in some}
            concerned = mine if None in about else [f for f in mine if f.path in about]
            yield Share(some, tuple(concerned))


def worth_it(share: Share) -> bool:
    """Whether fewer files come out than go in, or some are about nothing."""
    about = {each.about for each in share.deletes}
    if None in about:
        return len(share.deletes) > 1
    return len(share.deletes) > len(share.data)


def merge(share: Share, place: Place, target: StageTarget, attempt: str) -> list[StagedFile]:
    """Write what is left of these deletes, as a commit would."""
    inputs = [Numbered(file.path, file.sequence) for file in share.data]
    some = [Numbered(file.path, file.sequence) for file in share.deletes]
    rows = {file.path: file.records for file in share.data}
    kept = {path: dead[dead < rows[path]] for path, dead in deleted(inputs, some).items()}
    paths = [path for path, dead in kept.items() if len(dead)]
    step = MOST_SCOPED if all(each.about for each in share.deletes) else max(1, len(paths))
    files: list[StagedFile] = []
    for start in range(0, len(paths), step):
        part = {path: kept[path] for path in paths[start : start + step]}
        files += write_deletes(part, lambda _: place, target, f"{attempt}-{start:05d}")
    return files
