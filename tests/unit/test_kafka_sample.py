"""A sample takes what the client hands over, however that is cut."""

import pytest
from confluent_kafka import KafkaError

from icestream.sources.kafka import sample as module
from icestream.sources.kafka.sample import SampleConsumer


class Record:
    def __init__(self, partition, offset, error=None):
        self._facts = (partition, offset, error)

    def topic(self):
        return "t"

    def partition(self):
        return self._facts[0]

    def offset(self):
        return self._facts[1]

    def error(self):
        return self._facts[2] and KafkaError(self._facts[2])

    def timestamp(self):
        return (1, 1000)

    def key(self):
        return None

    value = key


SIZES = {0: 25, 1: 4, 2: 13}


class Client:
    """Hands over what it is asked for, all partitions mixed; says once where a log ends."""

    def __init__(self, settings):
        self._queue = []
        self._paused = set()
        self._calls = 0

    def assign(self, partitions):
        longest = max(SIZES.values()) + 1
        for at in range(longest):
            for each in partitions:
                size = SIZES[each.partition]
                if each.offset <= at < size:
                    self._queue.append(Record(each.partition, at))
                elif at == size:
                    self._queue.append(Record(each.partition, at, KafkaError._PARTITION_EOF))

    def pause(self, partitions):
        self._paused |= {each.partition for each in partitions}

    def resume(self, partitions):
        self._paused -= {each.partition for each in partitions}

    def consume(self, most, timeout):
        self._calls += 1
        few = max(1, most // 2) if self._calls % 2 else most
        found = [each for each in self._queue if each.partition() not in self._paused][:few]
        self._queue = [each for each in self._queue if each not in found]
        return found

    def close(self):
        pass


@pytest.mark.parametrize("portion", [1, 2, 6, 7, 12, 18, 30, 99])
@pytest.mark.parametrize("chosen", [[0], [1], [0, 1], [2, 0], [0, 1, 2]])
def test_portions_leave_nothing_out(monkeypatch, portion, chosen):
    monkeypatch.setattr(module, "Consumer", Client)
    monkeypatch.setattr(module, "QUIET_SECONDS", 0.1)
    begin = {"t": dict.fromkeys(chosen, 0)}
    ends = {"t": {number: SIZES[number] for number in chosen}}
    found = {number: [] for number in chosen}
    with SampleConsumer({}, begin, ends) as sample:
        while rows := [row for batch in sample.batches(portion) for row in batch.to_pylist()]:
            assert len(rows) <= portion
            for row in rows:
                found[row["partition"]].append(row["offset"])
    assert found == {number: list(range(SIZES[number])) for number in chosen}
