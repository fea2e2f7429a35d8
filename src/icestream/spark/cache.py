"""The cache folder: the one place outside a project for what can be fetched or made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Return the cache folder (`ICESTREAM_CACHE`, else the user's); it may not exist yet."""
    if configured := os.environ.get("ICESTREAM_CACHE"):
        return Path(configured).expanduser().absolute()
    # The XDG specification says that a relative path is to be ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "icestream"
