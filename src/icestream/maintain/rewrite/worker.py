"""The process of a `ProcessTaskRunner`: runs tasks from a pipe, ends when the pipe is closed."""

import os
import sys
from multiprocessing.connection import Connection

from icestream.batch.report import pack_reports
from icestream.errors import InternalError

_NICE = 5  # about a third of the processor time that the run gets, if both want it


def main() -> None:
    """Run each task that comes, and send its report."""
    os.nice(_NICE)
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            task = pipe.recv()
            (batch,) = task(iter(()))
        except EOFError:
            return  # the parent has closed its end, or is gone
        except Exception as failure:
            text = f"a rewrite failed: {type(failure).__name__}: {failure}"
            batch = pack_reports(InternalError(text))
        (row,) = batch.to_pylist()
        pipe.send((row["table"], row["block"]))


if __name__ == "__main__":
    main()
