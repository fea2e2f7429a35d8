"""Damage: a file of the index is not what it should be."""

from pathlib import Path

from icestream.errors import IndexDamaged as IndexDamaged


def damaged(what: str, where: Path | str) -> IndexDamaged:
    """Say what is wrong with a file."""
    return IndexDamaged(
        f"the key index is damaged: {what}",
        where=str(where),
        hint="start again: it is built anew from the table",
    )
