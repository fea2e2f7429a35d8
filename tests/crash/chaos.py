"""A campaign of harm: kill, stop and deceive a pipeline, and prove its tables after each time.

    make chaos SEED=1 KILLS=200

Which harm comes when follows from the seed. Figures go to build/chaos.json; the exit code is 1 if a
record was lost, doubled or made up, or a snapshot held anything but what lies below its marker.
"""

import argparse
import json
import multiprocessing
import random
import shutil
import signal
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, fields
from itertools import repeat
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from crash import people  # noqa: E402
from crash.harm import Tally, ways  # noqa: E402
from crash.world import Driver, World  # noqa: E402
from icestream.catalogs import catalog_for  # noqa: E402
from icestream.verify import verify  # noqa: E402

# Nothing is ever left alone: a rewrite of two files, and one snapshot is enough.
MAINTENANCE = """
  every: 15s
  rewrite_data_files: {min-input-files: "2"}
  rewrite_position_delete_files: {min-input-files: "2"}
  expire_snapshots: {older_than: 1s, retain_last: 1, max_snapshots: 3}
"""
COMPARE_EVERY = 10  # with the broker's records, which takes longer the longer it runs


class Violated(AssertionError):
    """The tables are not what they must be; the folder is kept to look into."""


@dataclass
class Outcome:
    """What a campaign found."""

    seed: int
    kills: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    records: int = 0
    lost: int = 0
    duplicated: int = 0
    phantom: int = 0
    prefix_violations: int = 0
    verified: int = 0
    mirrors: int = 0  # that were compared with the truth, in each of their snapshots
    resolved: int = 0  # commits whose answer was unknown or a refusal
    recoveries: list[float] = field(default_factory=list)
    tally: Tally = field(default_factory=Tally)
    findings: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        """Nothing was lost, doubled or made up."""
        return not self.findings

    def add(self, other: "Outcome") -> None:
        """What another campaign found, too."""
        for each in fields(self):
            if each.name == "seed":
                continue
            mine, more = getattr(self, each.name), getattr(other, each.name)
            setattr(self, each.name, mine + more)

    def facts(self) -> dict[str, Any]:
        """For build/chaos.json."""
        times = sorted(self.recoveries) or [0.0]
        return {
            "seed": self.seed,
            "kills": self.kills.total(),
            "restarts": self.restarts,
            "records": self.records,
            "lost": self.lost,
            "duplicated": self.duplicated,
            "phantom": self.phantom,
            "prefix_violations": self.prefix_violations,
            "verified": self.verified,
            "mirrors_compared": self.mirrors,
            "unknown_commits_resolved": self.resolved,
            "fenced": self.tally.fenced,
            "failpoints_missed": self.tally.missed,
            "recovery_p50_s": round(statistics.median(times), 1),
            "recovery_p95_s": round(times[int(0.95 * (len(times) - 1))], 1),
            "kills_by_kind": dict(sorted(self.kills.items())),
            "findings": self.findings,
        }


def campaign(folder: Path, catalog: str, order: Sequence[str], outcome: Outcome) -> None:
    """Harm one pipeline on one catalog, in this order; raises Violated at the first finding."""
    rng = random.Random(f"{outcome.seed} {catalog}")
    known = ways(catalog)
    with World(folder, catalog, maintenance=MAINTENANCE).alive() as world:
        driver: Driver | None = world.start()
        assert driver.wait(lambda _: has_tables(world)), driver.last_words()
        maintenance = world.start_script("maintain.py", "maintenance.yml")
        for number, name in enumerate(order):
            say(f"{catalog} {number + 1}/{len(order)}: {name}")
            harm = known[name]
            if driver is not None and harm.failpoint:
                driver.kill()
                outcome.kills["kill driver"] += 1
            if driver is None or harm.failpoint:
                driver = world.start(harm.armed(rng) if harm.failpoint else "")
            driver = harm.do(world, driver, rng, outcome.tally)
            outcome.kills[name] += 1
            if driver is None:
                with still(maintenance):
                    source = number % COMPARE_EVERY == COMPARE_EVERY - 1
                    judge(world, outcome, name, source)
        if driver is not None and (code := driver.stop()):
            outcome.findings.append(f"a stop in good order ended with {code}")
        finish(world, outcome, maintenance)
        outcome.resolved += sum(each.retries for each in world.drivers)
        outcome.recoveries += [each.recovered for each in world.drivers if each.recovered]
        outcome.restarts += sum(each is not maintenance for each in world.drivers) - 1


def has_tables(world: World) -> bool:
    """Whether there is a table of each kind: before that nothing can be proven."""
    opened = catalog_for(world.config.catalog).open()
    return all(opened.table_exists(name) for name in (people.TABLE, "db.orders", "db.clicks"))


@contextmanager
def still(maintenance: Driver) -> Iterator[None]:
    """Nobody expires a snapshot while it is looked at."""
    maintenance.process.send_signal(signal.SIGSTOP)
    yield
    maintenance.process.send_signal(signal.SIGCONT)


def judge(world: World, outcome: Outcome, after: str, source: bool) -> None:
    """Prove the tables as they are, in each snapshot that there is."""
    result = verify(world.config, source=source, all_snapshots=True)
    outcome.verified += 1
    outcome.lost += result.lost
    outcome.duplicated += result.duplicated
    outcome.phantom += result.phantom
    outcome.prefix_violations += len(result.violations)
    found = [str(each) for each in result.violations]
    opened = catalog_for(world.config.catalog).open()
    odd = list(people.differences(world.feeder.people, opened.load_table(people.TABLE)))
    outcome.mirrors += 1
    outcome.prefix_violations += len(odd)
    found += [f"{people.TABLE}: {each}" for each in odd]
    outcome.findings += [f"after `{after}`: {each}" for each in found]
    if not outcome.clean:
        raise Violated("\n".join(outcome.findings))


def finish(world: World, outcome: Outcome, maintenance: Driver) -> None:
    """Take all that was sent, and compare with the broker's records and with the sender's count."""
    world.feeder.stop()
    if code := world.start_once():
        raise RuntimeError(f"the last run ended with {code}")
    with still(maintenance):
        judge(world, outcome, "the end", source=True)
        found, aside = arrived(world)
        mirror = catalog_for(world.config.catalog).open().load_table(people.TABLE)
    sent, changes = world.feeder.sent, world.feeder.people.end()
    outcome.records += sent + sum(changes.values())
    if people.reached(mirror) != changes:
        outcome.findings.append(f"{people.TABLE} is at {people.reached(mirror)}, not at {changes}")
        raise Violated(outcome.findings[-1])
    if found.total() + aside != sent or max(found.values()) > 1:
        outcome.findings.append(f"{sent} records were sent, {found.total() + aside} arrived")
        raise Violated(outcome.findings[-1])


def arrived(world: World) -> tuple[Counter[int], int]:
    """How often each record's id is in the tables, and how many records were set aside."""
    opened = catalog_for(world.config.catalog).open()
    found: Counter[int] = Counter()
    aside = 0
    for topic in world.feeder.topics:
        rows = opened.load_table(f"db.{topic}").scan(selected_fields=("id",)).to_arrow()
        found.update(rows.column("id").to_pylist())
        if opened.table_exists(f"db.{topic}__quarantine"):
            aside += opened.load_table(f"db.{topic}__quarantine").scan().to_arrow().num_rows
    return found, aside


def orders(seed: int, kills: int, catalogs: Sequence[str]) -> dict[str, list[str]]:
    """Which harm comes when: each way in turn, in an order of the seed's choice."""
    rng = random.Random(seed)
    found: dict[str, list[str]] = {}
    for number, catalog in enumerate(catalogs):
        share = kills // len(catalogs) + (number < kills % len(catalogs))
        names: list[str] = []
        while len(names) < share:
            names += rng.sample(sorted(ways(catalog)), len(ways(catalog)))
        found[catalog] = names[:share]
    return found


def kept_or_clean(catalog: str, order: Sequence[str], seed: int) -> Outcome:
    """A whole campaign on one catalog; its folder stays if there is something to look into."""
    outcome = Outcome(seed)
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{catalog}-", dir=ROOT / "build"))
    try:
        campaign(folder, catalog, order, outcome)
    except AssertionError as failure:
        if outcome.clean:  # not a wrong table, but a process that ended in the wrong way
            outcome.findings.append(str(failure))
        say(f"{catalog}: {outcome.findings[-1]}; kept {folder}")
    else:
        shutil.rmtree(folder)
    return outcome


def say(text: str) -> None:
    print(time.strftime("%H:%M:%S"), text, flush=True)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--catalogs", default="local,rest")
    options = parser.parse_args()
    (ROOT / "build").mkdir(exist_ok=True)
    outcome = Outcome(options.seed)
    shares = orders(options.seed, options.kills, options.catalogs.split(","))
    # Side by side: a pipeline that is killed all the time mostly waits for Java to start.
    with ProcessPoolExecutor(len(shares), multiprocessing.get_context("spawn")) as pool:
        for each in pool.map(kept_or_clean, shares, shares.values(), repeat(options.seed)):
            outcome.add(each)
    (ROOT / "build" / "chaos.json").write_text(json.dumps(outcome.facts(), indent=1) + "\n")
    print(json.dumps(outcome.facts(), indent=1))
    return 0 if outcome.clean else 1


if __name__ == "__main__":
    sys.exit(main())
