"""Fetch every jar of the lock files anew and write sizes and SHA-256 back (`make lock`)."""

import hashlib
import re
import sys
import tempfile
import tomllib
from pathlib import Path
from typing import Any

from icestream.spark.jars import Jar, download

ROOT = Path(__file__).parent.parent
LOCKS = (
    ROOT / "src" / "icestream" / "jars.lock.toml",
    ROOT / "bench" / "peers.lock.toml",
    ROOT / "tests" / "servers.lock.toml",
)


def main() -> None:
    """Rewrite the lock files (or those named) in place; comments and order stay."""
    for lock in map(Path, sys.argv[1:] or LOCKS):
        head, *blocks = re.split(r"(?m)^(?=\[\[jar\]\])", lock.read_text("utf-8"))
        lock.write_text(head + "\n".join(relocked(block) for block in blocks), "utf-8")


def relocked(block: str) -> str:
    """Return one [[jar]] block with the size and the hash of what the repository serves now."""
    entry: dict[str, Any] = tomllib.loads(block)["jar"][0]
    jar = Jar(**{"size": 0, "sha256": "", **entry})
    with tempfile.TemporaryDirectory() as folder:
        content = download(jar, Path(folder), lambda _jar, _received: None).read_bytes()
    size, sha256 = len(content), hashlib.sha256(content).hexdigest()
    if (size, sha256) != (jar.size, jar.sha256):
        print(f"{jar.coordinates}: {jar.sha256 or 'new'} -> {sha256}", file=sys.stderr)
    kept = re.sub(r"(?m)^(size|sha256) = .*\n", "", block).rstrip("\n")
    return f'{kept}\nsize = {size}\nsha256 = "{sha256}"\n'


if __name__ == "__main__":
    main()
