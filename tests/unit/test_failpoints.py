"""Failpoints act as they are armed, in the process that passes them, and nowhere else."""

import os
import signal
import subprocess
import sys
import time

import pytest

from icestream.errors import ConfigError
from icestream.failpoints import NAMES, VARIABLE, Failpoint, failpoint


def passes(times: int = 1, name: str = "files-staged") -> int:
    """How many of the passes raised."""
    raised = 0
    for _ in range(times):
        try:
            failpoint(name)
        except Failpoint:
            raised += 1
    return raised


def test_nothing_happens_where_nothing_is_armed(arm):
    arm("files-staged:raise")
    assert [passes(name=name) for name in NAMES] == [int(n == "files-staged") for n in NAMES]
    arm("")
    assert passes(100) == 0


@pytest.mark.parametrize(
    "text, raised",
    [
        ("files-staged:raise", 100),
        ("files-staged:raise:1:3", 3),
        ("files-staged:raise::3", 3),
        ("files-staged:raise:0", 0),
        (" claimed:kill9 , files-staged:raise:1:1,", 1),
    ],
)
def test_probability_and_count(arm, text, raised):
    arm(text)
    assert passes(100) == raised


def test_a_probability_is_one(arm):
    arm("files-staged:raise:0.5")
    assert 300 < passes(1000) < 700


def test_sleep(arm):
    arm("files-staged:sleep(0.05)")
    began = time.monotonic()
    failpoint("files-staged")
    assert time.monotonic() - began >= 0.05


@pytest.mark.parametrize("action, ended", [("kill9", -signal.SIGKILL), ("stop", None)])
def test_signals_hit_the_process_itself(action, ended):
    code = "from icestream.failpoints import failpoint; failpoint('claimed'); print('alive')"
    environment = {**os.environ, VARIABLE: f"claimed:{action}"}
    with subprocess.Popen(
        [sys.executable, "-c", code], env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        if ended is None:
            _, status = os.waitpid(process.pid, os.WUNTRACED)
            assert os.WIFSTOPPED(status)
            process.send_signal(signal.SIGCONT)
            assert process.communicate(timeout=60)[0] == "alive\n"
        else:
            assert process.communicate(timeout=60)[0] == ""
            assert process.returncode == ended


@pytest.mark.parametrize(
    "text, hint",
    [
        ("files-stage:raise", "points are table-created, claimed"),
        ("claimed", "actions are kill9, stop, raise and sleep(seconds)"),
        ("claimed:explode", "actions are"),
        ("claimed:sleep", "actions are"),
        ("claimed:raise:often", "it is name:action"),
        ("claimed:raise:1:1:1", "it is name:action"),
        ("claimed:raise:1:some", "it is name:action"),
    ],
)
def test_a_typing_error_is_told(arm, text, hint):
    arm(text)
    with pytest.raises(ConfigError) as told:
        failpoint("claimed")
    assert text in told.value.what
    assert hint in str(told.value.hint)
