"""Survey: the health of a pipeline's tables and what maintenance would do now; no JVM."""

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
    """What was found, and what is to be done."""

    pipeline: str
    tables: tuple[TableHealth, ...]
    missing: tuple[str, ...]  # tables that do not exist yet
    broken: dict[str, str]  # tables that cannot be read, and why
    actions: tuple[Action, ...]
    switched_off: bool  # by `maintenance: false`

    def facts(self) -> dict[str, Any]:
        """What machines are told; keys are stable."""
        return {
            "pipeline": self.pipeline,
            "maintenance": not self.switched_off,
            "tables": [
                each.facts()
                | {"due": [_action_facts(one) for one in self.actions if one.table == each.table]}
                for each in self.tables
            ],
            "missing": list(self.missing),
            "broken": self.broken,
        }


def survey(
    config: PipelineConfig, past: Sequence[PastAction] = (), now: float | None = None
) -> Survey:
    """Look at every table of a pipeline, quarantines included."""
    now = time.time() if now is None else now
    options = config.maintenance
    health = HealthReader(options or MaintenanceOptions())
    found, missing, broken = [], [], {}
    with translate_catalog_errors(config.catalog.name):
        catalog = catalog_for(config.catalog).open()
        for name in table_names(config, catalog):
            try:
                found.append(health.read(name, catalog.load_table(name), now))
            except (NoSuchTableError, NoSuchNamespaceError):
                missing.append(name)
            except (FileNotFoundError, ValueError, ValidationError) as failure:
                told = str(failure).strip() or type(failure).__name__
                broken[name] = told.splitlines()[0][:200]
    actions = tuple(due_actions(found, options, past, now))
    return Survey(config.name, tuple(found), tuple(missing), broken, actions, options is False)


def _action_facts(action: Action) -> dict[str, Any]:
    return {
        "action": action.kind.value,
        "reason": action.reason,
        "groups": len(action.groups),
        "files": sum(len(each.files) for each in action.groups),
        "bytes": sum(each.bytes for each in action.groups),
    }
