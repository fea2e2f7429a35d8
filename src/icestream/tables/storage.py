"""Where files are: a location, as Iceberg writes it, to a file system and a path."""

from typing import Any

from pyarrow import fs


def filesystem(location: str) -> tuple[Any, str]:
    """Open a location; Iceberg's paths are literal, so a `%` in them is never decoded."""
    scheme, colon, rest = location.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), location
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + rest.lstrip("/")
    host, _, key = rest.lstrip("/").partition("/")
    opened, root = fs.FileSystem.from_uri(f"{scheme}://{host}")
    return opened, f"{root}/{key}"
