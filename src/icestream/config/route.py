"""Routes topics to tables by their names: the first rule that matches wins."""

import re
from dataclasses import dataclass

from icestream.config.model import PipelineConfig
from icestream.config.options.source import BrokerSource
from icestream.config.options.table import TableRule
from icestream.errors import ConfigError

PLACEHOLDER = re.compile(r"\{([^{}]*)\}")
QUARANTINE = "__quarantine"  # ends the name of the table for a table's bad records
TABLE_NAME = re.compile(r"[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)+")


@dataclass(frozen=True)
class Route:
    """Where the records of a topic go: `namespace.table`, and the rule with its settings."""

    table: str
    rule: TableRule


def groups(pipeline: PipelineConfig, rule: TableRule) -> set[str]:
    """Return the named groups that can fill the placeholders of a rule's table name."""
    patterns = (_topic_pattern(pipeline), rule.match)
    return {name for pattern in patterns if pattern for name in re.compile(pattern).groupindex}


def route(pipeline: PipelineConfig, topic: str) -> Route | None:
    """Return the table of a topic; None: no rule matches, or the rule says `skip`."""
    rule = rule_for(pipeline, topic)
    if rule is None or rule.skip or rule.name is None:
        return None
    values = {**_groups_of(_topic_pattern(pipeline), topic), **_groups_of(rule.match, topic)}
    return Route(_filled(rule.name, values, topic), rule)


def rule_for(pipeline: PipelineConfig, topic: str) -> TableRule | None:
    """Return the first rule that matches a topic, also one that says `skip`; None: none does."""
    for rule in pipeline.tables:
        if rule.match is None or re.fullmatch(rule.match, topic):
            return rule
    return None


def _filled(name: str, values: dict[str, str], topic: str) -> str:
    table = PLACEHOLDER.sub(lambda part: values.get(part[1], ""), name)
    if TABLE_NAME.fullmatch(table) is None:
        raise ConfigError(
            f"topic `{topic}`: its table would be called `{table}`",
            hint=f"`match` must fill `{name}` to the form namespace.table",
        )
    return table


def _topic_pattern(pipeline: PipelineConfig) -> str | None:
    source = pipeline.source
    return source.topic_pattern if isinstance(source, BrokerSource) else None


def _groups_of(pattern: str | None, topic: str) -> dict[str, str]:
    match = re.fullmatch(pattern, topic) if pattern is not None else None
    return {name: text for name, text in match.groupdict().items() if text} if match else {}


class Router:
    """The rules of a pipeline file; remembers the route of each topic."""

    def __init__(self, pipeline: PipelineConfig) -> None:
        self._pipeline = pipeline
        self._rules = [rule for rule in pipeline.tables if not rule.skip and rule.name]
        self._templates = [rule for rule in self._rules if PLACEHOLDER.search(rule.name or "")]
        self._known: dict[str, Route | None] = {}

    def route(self, topic: str) -> Route | None:
        """Return the table of a topic, as `route` does, matched once."""
        if topic not in self._known:
            self._known[topic] = route(self._pipeline, topic)
        return self._known[topic]

    def forgotten(self, topic: str) -> bool:
        """Return whether no rule matches this topic, not even one that skips it."""
        return rule_for(self._pipeline, topic) is None

    def fixed(self) -> list[Route]:
        """Return the routes to tables whose names have no placeholders."""
        return [
            Route(rule.name, rule)
            for rule in self._rules
            if rule.name and rule not in self._templates
        ]

    def owner(self, table: str) -> TableRule | None:
        """Return the first rule with placeholders that could have named this table; None: none."""
        if table.endswith(QUARANTINE):
            return None
        return next((rule for rule in self._templates if _shape(rule).fullmatch(table)), None)

    def reaches(self, namespace: str) -> bool:
        """Return whether tables of rules with placeholders may be in a namespace, or below it."""
        prefix = f"{namespace}."
        starts = [PLACEHOLDER.split(rule.name or "")[0] for rule in self._templates]
        return any(prefix.startswith(start) or start.startswith(prefix) for start in starts)


def _shape(rule: TableRule) -> re.Pattern[str]:
    """Return the pattern of the table names that a rule with placeholders can make."""
    parts = PLACEHOLDER.split(rule.name or "")
    # Every second part is the name of a group, whose text may have dots.
    return re.compile(".*".join(re.escape(part) for part in parts[::2]))
