"""What to tell people when the protocol says that a table may not be written to."""

from collections.abc import Sequence

from icestream import errors
from icestream.commit.protocol import Missing, TableView
from icestream.errors import IcestreamError


def refusal(
    table: str, verdict: str, view: TableView | None = None, missing: Sequence[Missing] = ()
) -> IcestreamError:
    """The error for a verdict or outcome of the protocol."""
    marker = view.marker if view else None
    seen = f"marker {marker.commit_id}, generation {marker.generation}" if marker else None
    match verdict:
        case "fenced":
            return errors.Fenced(
                f"table `{table}`: another run of this pipeline has taken over",
                where=seen,
                hint="stop one of the two; supervisors must not restart exit code 3",
            )
        case "gap":
            return errors.Gap(
                f"table `{table}`: the source no longer has all records after the marker",
                where="missing: " + "; ".join(str(each) for each in missing),
                hint="restore them at the source; nothing was written",
            )
        case "incarnation":
            return errors.Incarnation(
                f"table `{table}`: the source was re-created under the same name",
                where=seen,
                hint="its positions mean other records now: give the pipeline a new name",
            )
        case "rewound":
            return errors.Rewound(
                f"table `{table}` was rolled back behind our marker",
                where=seen,
                hint="roll it forward again, or start over under another pipeline name",
            )
        case "replaced":
            return errors.Replaced(
                f"table `{table}` is not the one that this pipeline wrote to",
                where=seen,
                hint="was it dropped and created again? use another pipeline or table name",
            )
    return errors.InternalError(f"table `{table}`: no rule for `{verdict}`")
