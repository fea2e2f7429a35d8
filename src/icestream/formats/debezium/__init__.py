"""Decodes Debezium's change events; docs/design/debezium.md has the rules, one by one."""

from icestream.formats.debezium.format import DebeziumFormat

__all__ = ["DebeziumFormat"]
