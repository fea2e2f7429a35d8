"""Rates of tables, measured or told, and the whiteboard that they make."""

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
    """Looks up or takes the rate of each table, and forecasts by it."""

    def __init__(
        self, config: PipelineConfig, told: float | None, record_bytes: float | None
    ) -> None:
        self._config = config
        self._told = None if told is None else Rate(told, record_bytes or _BYTES)
        self._options = config.maintenance or MaintenanceOptions(rewrite_data_files=False)
        self._speed = rewrite_speed(past_actions(config, time.time())).bytes_per_s

    @property
    def compaction(self) -> bool:
        """Whether files are joined at all."""
        return self._options.rewrite_data_files is not False

    @property
    def interval(self) -> float | None:
        """The pipeline's own, in seconds; None: once."""
        own = self._config.commit_interval
        return own.total_seconds() if isinstance(own, timedelta) else None

    def of(self, table: str) -> Rate | None:
        """As told; else by the commits of the last day that are remembered here."""
        if self._told is not None:
            return self._told
        state, since = Path(self._config.state_location), time.time() - DAY
        return measured(history.commits(state, self._config.name, table, since))

    def whiteboard(self, rate: Rate, rule: TableRule) -> tuple[Forecast, ...]:
        """The usual intervals, and the pipeline's own."""
        options = self._options
        rules = CompactionRules.of(
            options.rewrite_data_files or {}, rule.properties, rule.mode == "upsert"
        )
        every = options.every.total_seconds()
        return tuple(whiteboard(rate, self.interval, rules, every, self._speed))
