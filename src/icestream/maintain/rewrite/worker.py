"""The process of a `ProcessTaskRunner`: answers tasks from a pipe, ends when that is closed."""

import os
import sys
from multiprocessing.connection import Connection

from icestream.batch.report import pack_reports
from icestream.errors import InternalError

_NICE = 5  # about a third of what the stream gets, where both want the processor


def main() -> None:
    """Answer each task with what it reports."""
    os.nice(_NICE)
    pipe = Connection(int(sys.argv[1]))
    while True:
        try:
            task = pipe.recv()
        except EOFError:
            return
        try:
            (batch,) = task(iter(()))
        except Exception as failure:
            text = f"a rewrite failed: {type(failure).__name__}: {failure}"
            batch = pack_reports(InternalError(text))
        (row,) = batch.to_pylist()
        pipe.send((row["table"], row["block"]))


if __name__ == "__main__":
    main()
