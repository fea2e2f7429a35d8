"""Scratch folders, one per run, for Spark's checkpoint and the logs of planned sources.

A folder has the generation of the run's claim in its name. A run removes those of earlier
generations, which it has fenced, and never a later one: a run that slept between its claim and
this point removes nothing of the run that has fenced it meanwhile.
"""

import os
import shutil
from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.errors import SetupError


def make_scratch(folder: Path, generation: int, run_id: str) -> Path:
    """Create the folder of a run that has claimed its tables; removes those of earlier runs."""
    scratch = folder / f"{generation}-{run_id}"
    scratch.mkdir(parents=True)
    for other in folder.iterdir():
        if _generation(other) < generation:
            shutil.rmtree(other, ignore_errors=True)
    return scratch


def _generation(folder: Path) -> int:
    number, _, run_id = folder.name.partition("-")
    return int(number) if run_id and number.isdecimal() else 0


def make_state_folder(config: PipelineConfig) -> Path:
    """Create the folder for derived data; raises SetupError if it cannot be written to."""
    state = Path(config.state_location)
    hint = "set `state_location` to a folder that you may write to"
    try:
        state.mkdir(parents=True, exist_ok=True)
    except OSError as failure:
        raise SetupError(
            f"state folder `{state}` cannot be made: {failure.strerror}", hint=hint
        ) from None
    if not os.access(state, os.W_OK):
        raise SetupError(f"state folder `{state}` is not writable", hint=hint)
    return state
