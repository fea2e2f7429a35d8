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


def open_file(location: str) -> Any:
    """Open a file to read; a context manager, and as seekable as the storage is."""
    system, path = filesystem(location)
    return system.open_input_file(path)
