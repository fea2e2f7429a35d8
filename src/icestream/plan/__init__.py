"""Plan: what a run would do, from topics to tables, files and memory; no JVM, writes nothing."""

from icestream.plan.pipeline_plan import PipelinePlan, TablePlan, make_plan

__all__ = ["PipelinePlan", "TablePlan", "make_plan"]
