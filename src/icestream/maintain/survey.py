"""The health of all tables of a pipeline, and what maintenance would do now; no JVM."""

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pyiceberg.exceptions import NoSuchNamespaceError, NoSuchTableError, ValidationError

from icestream.catalogs import catalog_for
from icestream.config.model import PipelineConfig
from icestream.config.options.maintenance import MaintenanceOptions
from icestream.maintain.action import Action
from icestream.maintain.health import HealthReader, TableHealth
from icestream.maintain.policy import due_actions
from icestream.maintain.rewrite_speed import PastAction
from icestream.tables.inventory import table_names, translate_catalog_errors


@dataclass(frozen=True)
class Survey:
    """The health of a pipeline's tables, and the actions that are due."""

    pipeline: str
    tables: tuple[TableHealth, ...]
    missing: tuple[str, ...]  # tables that do not exist yet
    broken: dict[str, str]  # tables that cannot be read, and why
    actions: tuple[Action, ...]
    switched_off: bool  # by `maintenance: false`

    def facts(self) -> dict[str, Any]:
        """As plain data for JSON; keys are stable."""
        return {
            "pipeline": self.pipeline,
            "maintenance": not self.switched_off,
            "tables": [
                health.facts()
                | {"due": [a.facts() for a in self.actions if a.table == health.table]}
                for health in self.tables
            ],
            "missing": list(self.missing),
            "broken": self.broken,
        }


def survey(
    config: PipelineConfig, past: Sequence[PastAction] = (), now: float | None = None
) -> Survey:
    """Read the health of every table of a pipeline, quarantines included."""
    now = time.time() if now is None else now
    options = config.maintenance
    reader = HealthReader(options or MaintenanceOptions())
    tables, missing, broken = [], [], {}
    with translate_catalog_errors(config.catalog.name):
        catalog = catalog_for(config.catalog).open()
        for name in table_names(config, catalog):
            try:
                tables.append(reader.read(name, catalog.load_table(name), now))
            except (NoSuchTableError, NoSuchNamespaceError):
                missing.append(name)
            except (FileNotFoundError, ValueError, ValidationError) as failure:
                message = str(failure).strip() or type(failure).__name__
                broken[name] = message.splitlines()[0][:200]
    actions = tuple(due_actions(tables, options, past, now))
    return Survey(config.name, tuple(tables), tuple(missing), broken, actions, options is False)
