"""Rates of tables, measured or given, and the forecast for each commit interval."""

import time
from datetime import timedelta
from pathlib import Path

from icestream.config.model import PipelineConfig
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.config.options.table import TableRule
from icestream.maintain.compaction import CompactionRules
from icestream.maintain.forecast import DAY, Forecast, Rate, measured, whiteboard
from icestream.maintain.past_actions import past_actions
from icestream.maintain.rewrite_speed import rewrite_speed
from icestream.observe import history

_BYTES = 100.0  # of a record as stored, if nobody says it: events of a few fields, compressed


class TableRates:
    """The rate of each table, as given by the user or measured, and the forecasts by it."""

    def __init__(
        self, config: PipelineConfig, given: float | None, record_bytes: float | None
    ) -> None:
        self._config = config
        self._given = None if given is None else Rate(given, record_bytes or _BYTES)
        self._options = config.maintenance or MaintenanceOptions(rewrite_data_files=False)
        self._speed = rewrite_speed(past_actions(config, time.time())).bytes_per_s

    @property
    def compaction(self) -> bool:
        """Whether maintenance rewrites data files at all."""
        return self._options.rewrite_data_files is not False

    @property
    def interval(self) -> float | None:
        """The pipeline's commit interval in seconds; None: `once`."""
        interval = self._config.commit_interval
        return interval.total_seconds() if isinstance(interval, timedelta) else None

    def of(self, table: str) -> Rate | None:
        """Return the given rate, else that of the last day's commits in the event history."""
        if self._given is not None:
            return self._given
        state, since = Path(self._config.state_location), time.time() - DAY
        return measured(history.commits(state, self._config.name, table, since))

    def whiteboard(self, rate: Rate, rule: TableRule) -> tuple[Forecast, ...]:
        """Forecast the usual commit intervals, and the pipeline's own."""
        options = self._options
        rules = CompactionRules.of(
            options.rewrite_data_files or {}, rule.properties, rule.mode == "upsert"
        )
        every = options.every.total_seconds()
        return tuple(whiteboard(rate, self.interval, rules, every, self._speed))
