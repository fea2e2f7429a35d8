"""Writes files of the key index so that each is there as a whole or not at all."""

import os
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from icestream.errors import IndexDamaged as IndexDamaged
from icestream.errors import SetupError


def write_whole(path: Path, data: Any) -> None:
    """Write a file, which gets its name once all of it is on disk; replaces an older one."""
    with writing(path):
        draft = _draft(path, data)
        draft.replace(path)


def write_once(path: Path, data: Any) -> bool:
    """Write a file as `write_whole` does, but never over another; False: the name is taken."""
    with writing(path):
        draft = _draft(path, data)
        try:
            os.link(draft, path)
        except FileExistsError:
            return False
        finally:
            draft.unlink()
        _sync(path.parent)
        return True


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Context manager: turn an OSError while writing into a SetupError that says what to do."""
    try:
        yield
    except OSError as failure:
        raise SetupError(
            f"the key index cannot be written: {failure.strerror}",
            where=str(path),
            hint="free some space, or set `state_location` to a folder with more",
        ) from failure


def _sync(folder: Path) -> None:
    """Flush the file names of a folder to disk, so that they outlive a power cut."""
    fd = os.open(folder, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _draft(path: Path, data: Any) -> Path:
    draft = path.with_name(f".{path.name}.{uuid.uuid4().hex}.tmp")
    try:
        with draft.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        draft.unlink(missing_ok=True)
        raise
    return draft


def damaged(what: str, where: Path | str) -> IndexDamaged:
    """Return the error for a file of the index that is missing, torn or not its own."""
    return IndexDamaged(
        f"the key index is damaged: {what}",
        where=str(where),
        hint="start again: it is built anew from the table",
    )
