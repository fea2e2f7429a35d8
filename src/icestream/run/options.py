"""What the user asks of a run besides what the pipeline file says."""

from dataclasses import dataclass


@dataclass(frozen=True)
class RunOptions:
    """Options of `icestream run`; one object for all pipelines of a process."""

    once: bool = False  # end when everything that is at the source now is committed
    seconds: float | None = None  # end so long after the first commit
    accept_loss: bool = False  # give up records that the source has lost, and go on behind them
