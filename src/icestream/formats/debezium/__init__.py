"""Debezium change events. The rules, one by one, are in docs/design/debezium.md."""

from icestream.formats.debezium.format import DebeziumFormat

__all__ = ["DebeziumFormat"]
