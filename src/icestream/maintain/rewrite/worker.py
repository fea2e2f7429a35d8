"""The process of a `ProcessTaskRunner`: takes tasks from its input, ends when that is closed."""

import json
import os
import pickle
import sys

from icestream.errors import InternalError
from icestream.maintain.rewrite.task_runner import SIZE

_NICE = 5  # about a third of what the stream gets, where both want the processor


def main() -> None:
    """Answer each task with what it reports."""
    os.nice(_NICE)
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # whatever a library prints is no answer
    while head := sys.stdin.buffer.read(SIZE.size):
        sent = sys.stdin.buffer.read(*SIZE.unpack(head))
        try:
            task = pickle.loads(sent)  # noqa: S301 (by our parent)
            (batch,) = task(iter(()))
            ((kind, text),) = (tuple(row.values()) for row in batch.to_pylist())
        except Exception as failure:
            bug = InternalError(f"a rewrite failed: {type(failure).__name__}: {failure}")
            kind, text = "", json.dumps(bug.facts())
        told = json.dumps([kind, text]).encode()
        answers.write(SIZE.pack(len(told)) + told)
        answers.flush()


if __name__ == "__main__":
    main()
