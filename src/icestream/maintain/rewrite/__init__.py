"""Rewrites of data files and delete files; deletes that come meanwhile are carried over.

rewriter                  an action, group by group
stage, conform            live rows into new files, in one task
task_runner, worker       where that task runs
row_mapping, carry_over   where rows are now, and which of them were deleted since
data, merge               what is committed: new data files, or fewer delete files
commit                    one attempt from each base

docs/design/rewrite.md says why.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.maintain.rewrite.rewriter import Rewriter

__all__ = ["Rewriter"]


def __getattr__(name: str) -> Any:
    """Import the rewriter on first use: the worker process needs no PySpark."""
    if name != "Rewriter":
        raise AttributeError(name)
    from icestream.maintain.rewrite.rewriter import Rewriter

    return Rewriter
