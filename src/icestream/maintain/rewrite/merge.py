"""Merging deletes: many position-delete files of a partition become few, without what dangles."""

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from icestream.commit.port import ReplacedFiles
from icestream.commit.table_state import TableState
from icestream.index.rewrite_update import RewriteIndexUpdate
from icestream.maintain.action import GaveWay
from icestream.maintain.rewrite.commit import RewriteAttempt
from icestream.tables.live_files import FileEntry, LiveFiles, removed_file_json
from icestream.tables.partition_values import PartitionKey
from icestream.tables.position_deletes import deleted_positions
from icestream.tables.storage import open_file
from icestream.write.position_deletes import MOST_SCOPED, write_deletes
from icestream.write.staged import changed_or_missing, discard
from icestream.write.target import StagedFile, StageTarget

_AT_ONCE = 256  # delete files that one commit replaces: each takes a call to Java


@dataclass(frozen=True)
class DeleteFileGroup:
    """Delete files of one partition that are replaced together."""

    deletes: tuple[FileEntry, ...]
    data: tuple[FileEntry, ...]  # of the partition, that they may be about

    @property
    def sequence(self) -> int:
        """What their successor must have, so that it is about the same data files."""
        return max(each.sequence for each in self.deletes)


class DeleteFileRewrite:
    """Delete files that take the place of others; none, if no row that those deleted is left."""

    def __init__(
        self,
        name: str,
        planned: TableState,
        share: DeleteFileGroup,
        place: PartitionKey,
        files: list[StagedFile],
    ) -> None:
        self.name, self.planned = name, planned
        self.share, self.files = share, files
        self._place = place

    def catch_up(self, state: TableState) -> None:
        """What has come since is none of its business."""

    def is_nearly_current(self, state: TableState) -> bool:
        """Always."""
        return True

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """The same for every base that still has the old ones."""
        if gone := changed_or_missing(self.files):
            raise GaveWay(f"{len(gone)} of its new files are gone: {gone[0]}")
        told = [
            removed_file_json(file, self._place, "position-deletes") for file in self.share.deletes
        ]
        kept = [(file.content_json, self.share.sequence) for file in self.files]
        replace = ReplacedFiles(uuid.uuid4().hex, removed_deletes=told, kept_deletes=kept)
        return RewriteAttempt(replace, RewriteIndexUpdate(replace.rewrite_id, ""))

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """Remove what nobody will ever name."""
        if hopeless:
            discard(self.files)


def delete_file_groups(listed: LiveFiles, wanted: Sequence[str] = ()) -> Iterator[DeleteFileGroup]:
    """Delete files that belong together: of the partitions of `wanted` files, or of all."""
    named = set(wanted)
    data: dict[tuple[int, str], list[FileEntry]] = {}
    for file in listed.data.values():
        data.setdefault(file.table_partition, []).append(file)
    deletes: dict[tuple[int, str], list[FileEntry]] = {}
    for file in listed.deletes.values():
        deletes.setdefault(file.table_partition, []).append(file)
    for home, there in deletes.items():
        mine = data.get(home, [])
        if named and not any(file.path in named for file in (*mine, *there)):
            continue
        # Those of one data file stay together, so that few are left of many.
        ordered = sorted(there, key=lambda each: (each.only_data_file or "", each.path))
        for start in range(0, len(ordered), _AT_ONCE):
            some = tuple(ordered[start : start + _AT_ONCE])
            about = {each.only_data_file for each in some}
            concerned = mine if None in about else [f for f in mine if f.path in about]
            yield DeleteFileGroup(some, tuple(concerned))


def is_worth_merging(share: DeleteFileGroup) -> bool:
    """Whether fewer files come out than go in, or some are about nothing."""
    about = {each.only_data_file for each in share.deletes}
    if None in about:
        return len(share.deletes) > 1
    return len(share.deletes) > len(share.data)


def write_merged_deletes(
    share: DeleteFileGroup, place: PartitionKey, target: StageTarget, attempt: str
) -> list[StagedFile]:
    """Write what is left of these deletes, as a commit would."""
    rows = {file.path: file.records for file in share.data}
    deleted = deleted_positions(open_file, share.data, share.deletes)
    kept = {path: positions[positions < rows[path]] for path, positions in deleted.items()}
    paths = [path for path, dead in kept.items() if len(dead)]
    step = MOST_SCOPED if all(each.only_data_file for each in share.deletes) else max(1, len(paths))
    files: list[StagedFile] = []
    for start in range(0, len(paths), step):
        part = {path: kept[path] for path in paths[start : start + step]}
        files += write_deletes(part, lambda _: place, target, f"{attempt}-{start:05d}")
    return files
