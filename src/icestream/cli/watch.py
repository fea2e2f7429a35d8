"""`run` and `demo`: run pipelines, with a live view on a terminal and log lines elsewhere."""

from collections.abc import Sequence
from functools import partial

from icestream.cli import output
from icestream.config.load import LoadedConfig
from icestream.events import EventBus


def run_watched(
    loaded: Sequence[LoadedConfig],
    log_format: str,
    once: bool = False,
    seconds: float | None = None,
    accept_loss: bool = False,
) -> None:
    """Fetch missing jars, then run pipelines until they end, and show their events."""
    from icestream.run.options import RunOptions
    from icestream.run.supervisor import run
    from icestream.sources import source_for
    from icestream.spark import jars

    for text in dict.fromkeys(text for file in loaded for text in file.warnings):
        output.warning(text)
    sets = [name for file in loaded for name in source_for(file.pipeline.source).jar_sets]
    with output.jar_progress() as progress:
        jars.ensure([*jars.CORE, *sets], progress=progress)
    bus = EventBus()
    begin = partial(run, loaded, bus, RunOptions(once, seconds, accept_loss))
    if output.is_terminal() and log_format == "text":
        view = output.LiveView()
        bus.join(view)
        output.note("starting Spark …")
        with view.shown():
            begin()
    else:
        bus.join(output.EventLog(as_json=log_format == "json"))
        begin()
