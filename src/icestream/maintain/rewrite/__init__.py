"""The rewrite of upsert tables: what dies while it runs is carried over into its commit.

rewriter             an action, group by group
files                what a snapshot holds
stage · fit          live rows into new files, in one task
job · worker         where that task runs
moves · carry        where rows are now, and which of them have died since
data · merge         what is offered to the table: new data files, fewer delete files
landing              one commit, from exactly the base that was looked at

docs/design/rewrite.md is the why.
"""

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from icestream.maintain.rewrite.rewriter import Rewriter

__all__ = ["Rewriter"]


def __getattr__(name: str) -> Any:
    """Import the rewriter when it is asked for: a worker needs none of Spark's Python."""
    if name != "Rewriter":
        raise AttributeError(name)
    from icestream.maintain.rewrite.rewriter import Rewriter

    return Rewriter
