"""Do JVM flags pay? The same backlog is taken with each set of flags in turn, several rounds.

    .venv/bin/python bench/flags.py --flags "" --flags "-XX:+UseG1GC" [--records N] [--rounds K]

Prints CPU-seconds per million records in the steady state, by kind of process. Flags come behind
icestream's own, so they win. Rounds alternate: on a noisy machine compare within a round.
"""

import argparse
import shutil
import tempfile
from pathlib import Path

import load
import peers
from lake import Lake, expected
from measure import running
from runs import WARM_RECORDS, compare, wait_for
from steady import kind

ROOT = Path(__file__).parent.parent
TOPIC = "events"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--flags", action="append", required=True)
    parser.add_argument("--records", type=int, default=8_000_000)
    parser.add_argument("--rounds", type=int, default=2)
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    home = Path(tempfile.mkdtemp(prefix="flags-", dir=ROOT / "build"))
    try:
        with load.broker(home / "broker") as broker:
            load.create_topics(broker.bootstrap, TOPIC)
            load.fill(broker.bootstrap, TOPIC, options.records)
            for number in range(options.rounds):
                for flags in options.flags:
                    folder = home / "run"
                    folder.mkdir()
                    spent = drained(folder, broker.bootstrap, flags, options.records)
                    parts = ", ".join(f"{name} {cpu:.2f}" for name, cpu in sorted(spent.items()))
                    total = sum(spent.values())
                    print(
                        f"round {number}: {total:.2f} CPU-s/M ({parts}) with `{flags}`", flush=True
                    )
                    shutil.rmtree(folder)
    finally:
        shutil.rmtree(home, ignore_errors=True)


def drained(folder: Path, bootstrap: str, flags: str, records: int) -> dict[str, float]:
    """CPU-seconds per million between the first commit past the warm-up and the last."""
    peer = peers.load("icestream")
    lake = Lake(folder / "warehouse")
    command = peer.command(peers.Job(folder, bootstrap, TOPIC, lake, False, 1_000_000))
    file = folder / "icestream.yml"
    text = file.read_text()
    file.write_text(
        text.replace("spark: {", f'spark: {{spark.driver.extraJavaOptions: "{flags}", ')
    )
    with running(command) as tree:
        wait_for(WARM_RECORDS, tree, lake)
        before, warm = kind(tree), lake.commits()[-1].total_records
        wait_for(records, tree, lake)
        after = kind(tree)
    compare(lake.check(), expected(records))
    millions = (records - warm) / 1e6
    return {name: (after[name][0] - before[name][0]) / millions for name in after}


if __name__ == "__main__":
    main()
