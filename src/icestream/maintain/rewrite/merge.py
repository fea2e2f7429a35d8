"""Merges many position-delete files of a partition into few, without deletes of removed files."""

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

_MOST_FILES = 256  # that one commit replaces: each takes a call to Java


@dataclass(frozen=True)
class DeleteFileGroup:
    """Delete files of one partition that are replaced together."""

    deletes: tuple[FileEntry, ...]
    data: tuple[FileEntry, ...]  # data files of the partition that they may name

    @property
    def sequence(self) -> int:
        """The sequence number of the merged files: with it they apply to the same data files."""
        return max(file.sequence for file in self.deletes)


class DeleteFileRewrite:
    """A staged merge of delete files, for RewriteCommitter; without files if no row is left."""

    def __init__(
        self,
        name: str,
        planned: TableState,
        group: DeleteFileGroup,
        partition: PartitionKey,
        files: list[StagedFile],
    ) -> None:
        self.name, self.planned = name, planned
        self._group, self._files = group, files
        self._partition = partition

    def catch_up(self, state: TableState) -> None:
        """Nothing to read: deletes that were committed since are other files, which stay."""

    def is_nearly_current(self, state: TableState) -> bool:
        """True: there is nothing to read."""
        return True

    def next_attempt(self, state: TableState) -> RewriteAttempt:
        """Replace the old delete files, whichever the base is."""
        if missing := changed_or_missing(self._files):
            raise GaveWay(f"{len(missing)} of its new files are gone: {missing[0]}")
        removed = [
            removed_file_json(file, self._partition, "position-deletes")
            for file in self._group.deletes
        ]
        kept = [(file.content_json, self._group.sequence) for file in self._files]
        replace = ReplacedFiles(uuid.uuid4().hex, removed_deletes=removed, kept_deletes=kept)
        # An empty update. Without it the index would not know this snapshot, and would read the
        # table to follow it.
        return RewriteAttempt(replace, RewriteIndexUpdate(replace.rewrite_id, ""))

    def clean_up(self, landed: RewriteAttempt | None, hopeless: bool) -> None:
        """Remove the new files if no attempt can have committed them."""
        if hopeless:
            discard(self._files)


def delete_file_groups(live: LiveFiles, wanted: Sequence[str] = ()) -> Iterator[DeleteFileGroup]:
    """Group delete files by partition: those of the `wanted` files' partitions, or of all."""
    wanted_paths = set(wanted)
    data: dict[tuple[int, str], list[FileEntry]] = {}
    for file in live.data.values():
        data.setdefault(file.table_partition, []).append(file)
    deletes: dict[tuple[int, str], list[FileEntry]] = {}
    for file in live.deletes.values():
        deletes.setdefault(file.table_partition, []).append(file)
    for partition, delete_files in deletes.items():
        data_files = data.get(partition, [])
        paths = {file.path for file in (*data_files, *delete_files)}
        if wanted_paths and not wanted_paths & paths:
            continue
        # Those of one data file stay together, so that few are left of many.
        ordered = sorted(delete_files, key=lambda file: (file.only_data_file or "", file.path))
        for start in range(0, len(ordered), _MOST_FILES):
            part = tuple(ordered[start : start + _MOST_FILES])
            named = {file.only_data_file for file in part}
            concerned = data_files if None in named else [f for f in data_files if f.path in named]
            yield DeleteFileGroup(part, tuple(concerned))


def is_worth_merging(group: DeleteFileGroup) -> bool:
    """Whether fewer files come out than go in, or some name no live data file."""
    named = {file.only_data_file for file in group.deletes}
    if None in named:
        return len(group.deletes) > 1
    return len(group.deletes) > len(group.data)


def write_merged_deletes(
    group: DeleteFileGroup, partition: PartitionKey, target: StageTarget, attempt: str
) -> list[StagedFile]:
    """Write the deletes of live data files, in files as a batch would write them."""
    rows = {file.path: file.records for file in group.data}
    deleted = deleted_positions(open_file, group.data, group.deletes)
    kept = {path: positions[positions < rows[path]] for path, positions in deleted.items()}
    paths = [path for path, positions in kept.items() if len(positions)]
    step = MOST_SCOPED if all(file.only_data_file for file in group.deletes) else max(1, len(paths))
    files: list[StagedFile] = []
    for start in range(0, len(paths), step):
        part = {path: kept[path] for path in paths[start : start + step]}
        files += write_deletes(part, lambda _: partition, target, f"{attempt}-{start:05d}")
    return files
