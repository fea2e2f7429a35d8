"""Python packages that only a benchmark needs, in the cache and not among icestream's own."""

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from icestream.spark.cache import cache_folder


def installed(lock: Path) -> Path:
    """A folder with the packages of a lock file, installed once and checked by its hashes."""
    name = hashlib.sha256(lock.read_bytes()).hexdigest()[:12]
    home = cache_folder() / "bench" / f"wheels-{lock.stem}-{name}"
    if not home.is_dir():
        home.parent.mkdir(parents=True, exist_ok=True)
        uv = os.environ.get("UV") or shutil.which("uv") or ".uv/bin/uv"
        with tempfile.TemporaryDirectory(dir=home.parent) as draft:
            flags = ("--quiet", "--no-deps", "--require-hashes", "--requirement", str(lock))
            place = ("--python", sys.executable, "--target", f"{draft}/packages")
            subprocess.run([uv, "pip", "install", *flags, *place], check=True)
            (Path(draft) / "packages").rename(home)
    return home
