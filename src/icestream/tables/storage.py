"""Opens locations as Iceberg writes them: a file system and a path."""

from typing import Any

from pyarrow import fs


def filesystem(location: str) -> tuple[Any, str]:
    """Return the file system of a location, and the path there.

    Iceberg's paths are literal: a `%` in them is never decoded.
    """
    scheme, colon, path = location.partition(":")
    if not colon or "/" in scheme:
        return fs.LocalFileSystem(), location
    if scheme == "file":
        return fs.LocalFileSystem(), "/" + path.lstrip("/")
    host, _, key = path.lstrip("/").partition("/")
    system, root = fs.FileSystem.from_uri(f"{scheme}://{host}")
    return system, f"{root}/{key}"


def open_file(location: str) -> Any:
    """Open a file to read, as a context manager; seekable."""
    system, path = filesystem(location)
    return system.open_input_file(path)
