"""Rewind: a table and its source position go back together, and ingestion replays from there."""

from icestream.rewind.plan import Plan, TablePlan, Target
from icestream.rewind.tables import plan_rewind, rewind

__all__ = ["Plan", "TablePlan", "Target", "plan_rewind", "rewind"]
