"""The one folder outside a project where icestream keeps what can be fetched or made again."""

import os
from pathlib import Path


def cache_folder() -> Path:
    """Name the cache folder (`ICESTREAM_CACHE`, else the user's); it may not exist yet."""
    if own := os.environ.get("ICESTREAM_CACHE"):
        return Path(own).expanduser().absolute()
    # The XDG specification says that a relative path is to be ignored.
    shared = Path(os.environ.get("XDG_CACHE_HOME", ""))
    return (shared if shared.is_absolute() else Path.home() / ".cache") / "icestream"
