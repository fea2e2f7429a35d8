"""Routing for one run: which table a topic goes to, and which tables are ours to begin with."""

import re

from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import PLACEHOLDER, QUARANTINE, Route, route, rule_for


class Router:
    """The rules of a pipeline file, with an answer per topic kept."""

    def __init__(self, pipeline: PipelineConfig) -> None:
        self._pipeline = pipeline
        self._rules = [rule for rule in pipeline.tables if not rule.skip and rule.name]
        self._templates = [rule for rule in self._rules if PLACEHOLDER.search(rule.name or "")]
        self._known: dict[str, Route | None] = {}

    def route(self, topic: str) -> Route | None:
        """The table for this topic, or None when a rule skips it or none matches."""
        if topic not in self._known:
            self._known[topic] = route(self._pipeline, topic)
        return self._known[topic]

    def forgotten(self, topic: str) -> bool:
        """Whether no rule speaks of this topic, not even one that skips it."""
        return rule_for(self._pipeline, topic) is None

    def fixed(self) -> list[Route]:
        """Tables whose names need no topic to be known."""
        return [
            Route(rule.name, rule)
            for rule in self._rules
            if rule.name and rule not in self._templates
        ]

    def owner(self, table: str) -> TableRule | None:
        """The first rule with placeholders that could have named this table."""
        if table.endswith(QUARANTINE):
            return None
        return next((rule for rule in self._templates if _shape(rule).fullmatch(table)), None)

    def reaches(self, namespace: str) -> bool:
        """Whether tables of rules with placeholders may be in a namespace, or below it."""
        inside = f"{namespace}."
        heads = [PLACEHOLDER.split(rule.name or "")[0] for rule in self._templates]
        return any(inside.startswith(head) or head.startswith(inside) for head in heads)


def _shape(rule: TableRule) -> re.Pattern[str]:
    parts = PLACEHOLDER.split(rule.name or "")
    # Every second part is the name of a group, which may stand for dots too.
    return re.compile(".*".join(re.escape(part) for part in parts[::2]))
