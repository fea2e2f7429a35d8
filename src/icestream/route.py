"""Routing for one run: which table a topic goes to, and which tables are ours to begin with."""

import re

from icestream.config.model import Pipeline
from icestream.config.options.table import TableRule
from icestream.config.route import PLACEHOLDER, Route, route


class Router:
    """The rules of a pipeline file, with an answer per topic kept."""

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._rules = [rule for rule in pipeline.tables if not rule.skip and rule.name]
        self._known: dict[str, Route | None] = {}

    def route(self, topic: str) -> Route | None:
        """The table for this topic, or None when a rule skips it or none matches."""
        if topic not in self._known:
            self._known[topic] = route(self._pipeline, topic)
        return self._known[topic]

    def fixed(self) -> list[Route]:
        """Tables whose names need no topic to be known."""
        return [
            Route(rule.name, rule)
            for rule in self._rules
            if rule.name and not PLACEHOLDER.search(rule.name)
        ]

    def owner(self, table: str) -> TableRule | None:
        """The first rule that could have named this table."""
        return next((rule for rule in self._rules if _shape(rule).fullmatch(table)), None)

    def namespaces(self) -> list[str]:
        """Where tables with placeholders in their names are to be looked for."""
        found = (rule.name.rpartition(".")[0] for rule in self._rules if rule.name)
        return sorted({name for name in found if not PLACEHOLDER.search(name)})


def _shape(rule: TableRule) -> re.Pattern[str]:
    parts = PLACEHOLDER.split(rule.name or "")
    # Every second part is the name of a group.
    return re.compile("[^.]+".join(re.escape(part) for part in parts[::2]))
