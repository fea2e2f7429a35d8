"""Scratch of runs: what streams and planners write down on the way, a folder for each run.

A folder has the generation of the run's claim in its name. A run removes those of earlier claims,
which its own has fenced, and never looks at a later one: who slept between its claim and this takes
nothing from the run that fenced it meanwhile, and who has claimed nothing yet has nothing to lose.
"""

import os
import shutil
from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.errors import SetupError


def make_scratch(folder: Path, generation: int, run_id: str) -> Path:
    """A folder for a run that has just claimed its tables."""
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
    """Where derived data goes; raises SetupError when nothing can."""
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
