"""Rewind: a table and its source position go back together, and ingestion replays from there."""

from icestream.rewind.plan import RewindPlan, RewindTarget, TableRewind
from icestream.rewind.tables import plan_rewind, rewind

__all__ = ["RewindPlan", "RewindTarget", "TableRewind", "plan_rewind", "rewind"]
