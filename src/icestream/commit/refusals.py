"""Errors for users when the protocol says that a table must not be written to."""

from collections.abc import Sequence

from icestream import errors
from icestream.commit.protocol import BatchVerdict, CommitOutcome, GapRange, MarkerStatus
from icestream.commit.table_state import TableState
from icestream.errors import IcestreamError
from icestream.tables.marker import Loss


def refusal(
    table: str,
    verdict: BatchVerdict | CommitOutcome | MarkerStatus,
    state: TableState | None = None,
    gaps: Sequence[GapRange] = (),
) -> IcestreamError:
    """Return the error for a verdict, an outcome or a status that forbids a commit."""
    marker = state.marker if state else None
    where = f"marker {marker.commit_id}, generation {marker.generation}" if marker else None
    match verdict.value:
        case "fenced":
            return errors.Fenced(
                f"table `{table}`: another run of this pipeline has taken over",
                where=where,
                hint="stop one of the two; supervisors must not restart exit code 3",
            )
        case "gap":
            return errors.Gap(
                f"table `{table}`: the source no longer has all records after the marker",
                where="missing: " + "; ".join(str(gap) for gap in gaps),
                hint="restore them at the source; nothing was written",
            )
        case "incarnation":
            return errors.Incarnation(
                f"table `{table}`: the source was re-created under the same name",
                where=where,
                hint="its positions mean other records now: give the pipeline a new name",
            )
        case "rewound":
            return errors.Rewound(
                f"table `{table}` was rolled back behind our marker",
                where=where,
                hint="roll it forward again, or let its position follow: `icestream rewind`",
            )
        case "replaced":
            return errors.Replaced(
                f"table `{table}` is not the one that this pipeline wrote to",
                where=where,
                hint="was it dropped and created again? use another pipeline or table name",
            )
    return errors.InternalError(f"table `{table}`: no rule for `{verdict.value}`")


_MOST_SHOWN = 20  # ranges in a message
_ACCEPT = "`icestream run --accept-loss` records the missing ranges in the table and goes on"


def loss_refusal(table: str, lost: Sequence[Loss]) -> IcestreamError:
    """Return the error for records that the source no longer has, by the gravest kind of loss."""
    for kind, error, what, hint in (
        (
            "deleted",
            errors.Incarnation,
            "its topic was deleted",
            f"restore the topic and its records; or {_ACCEPT} without it",
        ),
        (
            "recreated",
            errors.Incarnation,
            "its topic was deleted and created again: its offsets mean other records now",
            f"{_ACCEPT} with the new topic, from its earliest record",
        ),
        (
            "truncated",
            errors.Truncated,
            "the topic's log ends before our position: the brokers lost records that we have",
            f"restore the log; or {_ACCEPT} at its end",
        ),
        (
            "retention",
            errors.Gap,
            "the topic's retention removed records before we read them",
            f"{_ACCEPT} with the earliest record that is left",
        ),
    ):
        of_kind = [str(loss) for loss in lost if loss.kind == kind]
        if of_kind:
            more = f"; and {len(of_kind) - _MOST_SHOWN} more" if len(of_kind) > _MOST_SHOWN else ""
            where = "missing: " + "; ".join(of_kind[:_MOST_SHOWN]) + more
            return error(f"table `{table}`: {what}", where=where, hint=hint)
    return errors.InternalError(f"table `{table}`: no rule for these losses")
