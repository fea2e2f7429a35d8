"""The command as users run it: a process of its own, signals, kills, exit codes."""

import json
import re
import shutil
import signal
import subprocess
from collections import Counter

import pytest

from commands import COMMAND, children_of, commits, fill, kill_9, rows, started, wait_for_end

pytestmark = [pytest.mark.integration, pytest.mark.slow]


def test_kill_9_and_a_lost_state_folder_change_nothing(folder):
    fill(folder, "a.jsonl", 100_000, bad_every=1000)
    with started(folder, "run", "--once") as first:
        commits(first, 2)
        kill_9(first)  # and see that the JVM ends with its driver
    taken = rows(folder).num_rows
    assert 0 < taken < 99_900
    shutil.rmtree(folder / ".icestream")
    with started(folder, "run", "--once") as again:
        _, log = again.communicate(timeout=240)
    assert again.returncode == 0, log
    found = rows(folder)
    assert found.num_rows == 99_900
    places = zip(
        found.column("_src_topic").to_pylist(), found.column("_src_offset").to_pylist(), strict=True
    )
    assert max(Counter(places).values()) == 1
    assert set(found.column("id").to_pylist()) == {n for n in range(100_000) if n % 1000}
    aside = rows(folder, "shop.events__quarantine")
    assert aside.num_rows == len(set(aside.column("offset").to_pylist())) == 100


@pytest.mark.parametrize(
    "kind, arguments", [(signal.SIGINT, ["run"]), (signal.SIGTERM, ["run", "--once"])]
)
def test_a_signal_stops_at_a_commit_with_exit_0(folder, kind, arguments):
    fill(folder, "a.jsonl", 50_000)
    with started(folder, *arguments) as process:
        commits(process, 1)
        process.send_signal(kind)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    assert '"run_stopped"' in log
    assert rows(folder).num_rows in (20_000, 40_000, 50_000)
    # Nothing of the run is left in the state folder but logs and history.
    assert not list((folder / ".icestream" / "p" / "runs").iterdir())


def test_the_demo_ends_by_itself_and_its_query_works_as_printed(tmp_path):
    ran = subprocess.run(
        [*COMMAND, "demo", "--seconds", "5"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=240,
    )
    assert ran.returncode == 0, ran.stderr
    assert "records in = " in ran.stdout
    assert "orders, as in the shop's books" in ran.stdout
    assert "\nmaintenance " in ran.stdout
    [query] = [line.strip() for line in ran.stdout.splitlines() if " -c " in line]
    shown = subprocess.run(["sh", "-c", query], cwd=tmp_path, capture_output=True, text=True)
    assert shown.returncode == 0, shown.stderr
    assert "user_id" in shown.stdout
    assert len(shown.stdout.splitlines()) == 6
    status = subprocess.run(
        [*COMMAND, "status", "--json", "icestream-demo/icestream.yml"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
    )
    assert status.returncode == 0, status.stderr
    tables = {each["table"]: each for each in json.loads(status.stdout)["tables"]}
    assert tables["shop.page_events"]["rows"] > 0
    assert tables["shop.page_events"]["quarantined"] > 0


def test_the_demo_with_kafka_holds_what_kafka_acknowledged(tmp_path):
    ran = subprocess.run(
        [*COMMAND, "demo", "--kafka", "--seconds", "8"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stderr
    [arrived] = re.findall(r"([\d,]+) records in = ", ran.stdout)
    [due] = re.findall(r"acknowledged by Kafka = ([\d,]+) up to ", ran.stdout)
    assert arrived == due != "0"
    assert "orders, as in the shop's books" in ran.stdout
    assert "rdkafka" not in ran.stderr
    topics = set(rows(tmp_path / "icestream-demo", "shop.page_events")["_src_topic"].to_pylist())
    assert topics == {"page_events"}


def test_ctrl_c_ends_the_demo_with_kafka_and_all_that_it_started(tmp_path):
    with started(tmp_path, "demo", "--kafka", "--seconds", "600") as process:
        commits(process, 1)
        children = children_of(process.pid)
        assert len(children) > 2, "the broker, its watchdog and Spark"
        process.send_signal(signal.SIGINT)
        _, log = process.communicate(timeout=120)
    assert process.returncode == 0, log
    wait_for_end(children)
