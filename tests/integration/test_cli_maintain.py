"""`icestream maintain` as users run it: called off by Ctrl-C, cut down, and cleaned up after."""

import json
import os
import shutil
import signal
import subprocess
from pathlib import Path

import pytest

import icestream
from commands import COMMAND, CONFIG, children_of, fill, rows, started, wait_for_end
from icestream.config.load import load
from icestream.verify import verify
from servers import soon

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("cli_maintain")]

TABLE = "shop.events"
RECORDS = 6000
REWRITE = ("maintain", "--action", "rewrite_data_files")
MAINTENANCE = """\
maintenance:
  rewrite_data_files: {min-input-files: "2"}
  remove_orphan_files: {older_than: 1d}
"""
WORKER = "icestream.maintain.rewrite.worker"
ORPHANS = ("maintain", "--action", "remove_orphan_files", "--json")


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """Six commits of one pipeline; no test changes their rows."""
    folder = tmp_path_factory.mktemp("made")
    (folder / "in").mkdir()
    text = CONFIG.replace("maintenance: false", MAINTENANCE).replace("20000", "1000")
    (folder / "icestream.yml").write_text(text)
    fill(folder, "a.jsonl", RECORDS)
    with started(folder, "run", "--once") as process:
        _, log = process.communicate(timeout=240)
    assert process.returncode == 0, log
    return folder


def data_files(folder: Path) -> set[Path]:
    """Those that the table names, by PyIceberg."""
    table = icestream.table(folder / "icestream.yml", TABLE)
    paths = [task.file.file_path for task in table.scan().plan_files()]
    return {Path(path.removeprefix("file:").replace("//", "/")) for path in paths}


def on_disk(folder: Path) -> set[Path]:
    return set((folder / "warehouse" / "shop" / "events" / "data").rglob("*.parquet"))


def whole(folder: Path) -> bool:
    assert sorted(rows(folder)["id"].to_pylist()) == list(range(RECORDS))
    result = verify(load(folder / "icestream.yml").pipeline)
    assert result.clean, result.violations
    return True


def test_ctrl_c_in_the_middle_of_a_rewrite(made):
    """The process that writes the files is held up, so that it can only be called off."""
    before = data_files(made)
    assert len(before) > 4
    with started(made, *REWRITE) as process:
        workers = []

        def at_work() -> bool:
            workers.extend(each for each in children_of(process.pid) if WORKER in command(each))
            return bool(workers)

        assert soon(at_work, 120)
        os.kill(workers[0], signal.SIGSTOP)
        children = children_of(process.pid)
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    assert log.splitlines()[-1] == (
        "stopped: 1 of 1 actions called off; what was committed stays, "
        "what was only written is for remove_orphan_files"
    )
    wait_for_end(children)
    assert data_files(made) == before
    assert whole(made)
    [told] = [run for run in history(made) if run["action"] == "rewrite_data_files"]
    assert told["ending"] == "cancelled"


def test_what_a_rewrite_leaves_that_was_cut_down_is_listed_and_collected(made):
    """The second signal takes the process down as it is, between its files and their commit."""
    before = data_files(made)
    with started(made, *REWRITE, failpoints="rewrite-staged:stop:1:1") as process:
        os.waitid(os.P_PID, process.pid, os.WSTOPPED)
        children = children_of(process.pid)
        for kind in (signal.SIGINT, signal.SIGTERM, signal.SIGCONT):
            process.send_signal(kind)
        process.communicate(timeout=120)
    # Both were pending: which one a process of several threads takes first is not defined.
    assert process.returncode in {-signal.SIGINT, -signal.SIGTERM}
    wait_for_end(children)
    left = on_disk(made) - before
    assert len(left) == 1
    assert data_files(made) == before
    assert whole(made)
    young = {path.with_name(f"young-{path.name}") for path in left}
    for path in left:
        shutil.copy(path, path.with_name(f"young-{path.name}"))
        os.utime(path, (0, 0))
    [due] = maintain(made, *ORPHANS, "--plan")["due"]
    assert (due["files"], due["bytes"]) == (1, sum(path.stat().st_size for path in left))
    assert {Path(each["path"].removeprefix("file:")) for each in due["removes"]} == left
    assert on_disk(made) == before | left | young  # a plan removes nothing
    [done] = maintain(made, *ORPHANS)["results"]
    assert done["ending"] == "done"
    assert on_disk(made) == before | young
    assert whole(made)


def maintain(folder: Path, *arguments: str) -> dict:
    ran = subprocess.run([*COMMAND, *arguments], cwd=folder, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def history(folder: Path) -> list[dict]:
    return maintain(folder, "maintain", "--history", "--json")["runs"]


def command(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""
