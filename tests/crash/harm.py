"""Harm: the ways to hurt a running pipeline; each → the driver that is alive then, or None."""

import os
import random
import shutil
import signal
from collections.abc import Callable
from dataclasses import dataclass

from badproxy import Rule
from crash.world import Driver, World
from icestream.failpoints import NAMES

WORKER = "mid-write"  # kills the worker alone
AT_START = ("table-created", "claimed")
ONCE_A_DAY = ("orphans-found",)  # too seldom for a campaign
COMMIT = "/tables/"
FAULTS = {
    "answer dropped": Rule(path=COMMIT, cut="drop"),
    "answer reset": Rule(path=COMMIT, cut="reset"),
    "500 after success": Rule(path=COMMIT, status=500),
    "503 and a replay": Rule(path=COMMIT, status=503, headers={"Retry-After": "0"}),
    "503, not done": Rule(path=COMMIT, forwards=0, status=503),
    "409 storm": Rule(path=COMMIT, forwards=0, status=409, times=3),
    "replayed": Rule(path=COMMIT, forwards=2),
    "late": Rule(path=COMMIT, delay=6),
    "401, not done": Rule(path=COMMIT, forwards=0, status=401),
}


@dataclass
class Tally:
    """What the ways of harm have brought about."""

    fenced: int = 0
    missed: int = 0  # failpoints that nothing came by

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(self.fenced + other.fenced, self.missed + other.missed)


Do = Callable[[World, Driver, random.Random, Tally], Driver | None]


@dataclass(frozen=True)
class Harm:
    """One way; with a failpoint, the driver is started for it."""

    do: Do
    failpoint: str = ""
    action: str = "kill9"

    def armed(self, rng: random.Random) -> str:
        """What the driver is started with."""
        chance = 1.0 if self.failpoint in AT_START else rng.choice((0.2, 0.5, 1.0))
        if self.failpoint == WORKER:
            chance = 0.2
        count = ":1" if self.action == "stop" else ""
        return f"{self.failpoint}:{self.action}:{chance}{count}"


def kill_driver(world: World, driver: Driver, rng: random.Random, tally: Tally) -> None:
    """At any moment: while it starts, waits, writes or commits."""
    driver.wait(lambda _: False, rng.uniform(0, 3 if driver.commits else 20))
    driver.kill()


def kill_jvm(world: World, driver: Driver, rng: random.Random, tally: Tally) -> None:
    """The driver must end with 75."""
    driver.wait_for_commits()
    driver.wait(lambda _: False, rng.uniform(0, 2))
    os.kill(driver.java(), signal.SIGKILL)
    assert driver.process.wait(120) == 75, driver.last_words()


def kill_worker(world: World, driver: Driver, rng: random.Random, tally: Tally) -> Driver:
    """The task is tried again; the driver lives."""
    driver.wait_for_commits()
    driver.wait(lambda _: False, rng.uniform(0, 2))
    if workers := driver.workers():
        os.kill(rng.choice(workers), signal.SIGKILL)
    driver.wait_for_commits(2)
    return driver


def kill_broker(world: World, driver: Driver, rng: random.Random, tally: Tally) -> Driver:
    """It comes back; the driver lives."""
    driver.wait_for_commits()
    world.broker.kill()
    driver.wait(lambda _: False, rng.uniform(0, 5))
    world.broker.start()
    driver.wait_for_commits(2)
    return driver


def kill_catalog(world: World, driver: Driver, rng: random.Random, tally: Tally) -> Driver:
    """It comes back; the driver lives."""
    assert world.server is not None
    driver.wait_for_commits()
    driver.wait(lambda _: False, rng.uniform(0, 2))
    world.server.kill()
    driver.wait(lambda _: False, rng.uniform(0, 5))
    world.server.start()
    driver.wait_for_commits(2)
    return driver


def lie(world: World, driver: Driver, rng: random.Random, tally: Tally) -> Driver:
    """The proxy misbehaves at the next commits; the driver lives."""
    assert world.proxy is not None
    driver.wait_for_commits()
    for name in rng.sample(sorted(FAULTS), 3):
        world.proxy.clear()
        world.proxy.add(FAULTS[name])
        driver.wait_for_commits(3)
    world.proxy.clear()
    return driver


def zombie(world: World, driver: Driver, rng: random.Random, tally: Tally) -> Driver:
    """It stands still; another takes over; it wakes up and must be fenced."""
    driver.wait_for_commits()
    driver.wait(lambda _: False, rng.uniform(0, 2))
    driver.process.send_signal(signal.SIGSTOP)
    return _replaced(world, driver, tally)


def zombie_at_failpoint(
    world: World, driver: Driver, rng: random.Random, tally: Tally
) -> Driver | None:
    """The same, at the worst moment."""
    if not driver.wait_for_stop():
        tally.missed += 1
        driver.kill()
        return None
    return _replaced(world, driver, tally)


def _replaced(world: World, driver: Driver, tally: Tally) -> Driver:
    other = world.start()
    other.wait_for_commits(2)
    driver.process.send_signal(signal.SIGCONT)
    assert driver.process.wait(120) == 3, driver.last_words()
    tally.fenced += 1
    return other


def lose_state(world: World, driver: Driver, rng: random.Random, tally: Tally) -> None:
    """The state folder is gone, or an older one is back."""
    driver.wait_for_commits()
    driver.kill()
    kept = world.folder / "state-of-yesterday"
    if kept.exists() and rng.random() < 0.5:
        shutil.rmtree(world.state)
        shutil.copytree(kept, world.state)
    else:
        shutil.rmtree(kept, ignore_errors=True)
        world.state.rename(kept)


def died(driver: Driver) -> bool:
    """Whether it did, by itself, within a minute of its first commit."""
    driver.wait(lambda each: each.commits > 0)
    return driver.wait(lambda each: each.ended is not None, 60)


def die_at(name: str) -> Do:
    """Die at a certain place of the code."""

    def harm(world: World, driver: Driver, rng: random.Random, tally: Tally) -> None:
        if name == "table-created":
            world.feeder.add_topic()
        if name == "schema-evolved":
            world.feeder.widen()
        if name == WORKER:
            driver.wait(lambda _: False, rng.uniform(5, 20))
            driver.kill()
        elif not died(driver):
            tally.missed += 1
            driver.kill()

    return harm


def ways(catalog: str) -> dict[str, Harm]:
    """All ways for this kind of catalog, by name."""
    found = {
        "kill driver": Harm(kill_driver),
        "kill jvm": Harm(kill_jvm),
        "kill worker": Harm(kill_worker),
        "kill broker": Harm(kill_broker),
        "zombie": Harm(zombie),
        "lose state": Harm(lose_state),
    }
    if catalog == "rest":
        found |= {"kill catalog": Harm(kill_catalog), "lie": Harm(lie)}
    for name in ("marker-checked", "before-request"):
        found[f"zombie at {name}"] = Harm(zombie_at_failpoint, name, "stop")
    often = [name for name in NAMES if name not in ONCE_A_DAY]
    return found | {f"at {name}": Harm(die_at(name), name) for name in often}
