"""`init` and `validate`: a first pipeline file; whether its catalog and source can be used."""

from pathlib import Path
from typing import cast

from icestream.config.load import LoadedConfig
from icestream.config.starter import StarterKind, starter
from icestream.errors import UsageError


def write_starter(file: Path, kind: str) -> None:
    """Write the commented file, never over an existing one."""
    try:
        with file.open("x", encoding="utf-8") as out:
            out.write(starter(cast(StarterKind, kind)))
    except FileExistsError:
        raise UsageError(
            f"{file} exists already", hint=f"name another: `icestream init {file.stem}-2.yml`"
        ) from None
    except OSError as failure:
        raise UsageError(f"{file} cannot be written: {failure.strerror}") from None


def check_environment(loaded: LoadedConfig) -> None:
    """Phase 3 of `validate`: raise when catalog or source cannot be used from here."""
    from icestream.catalogs import catalog_for
    from icestream.sources import source_for

    catalog_for(loaded.pipeline.catalog).check()
    source_for(loaded.pipeline.source).check()
