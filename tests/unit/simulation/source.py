"""The simulated source. Every record is one bit, so the rows of a table are one number."""

from icestream.sources import LossReport, StartPositions

PHANTOM = 1  # read from a topic that was created again: belongs into no table


class Log:
    """One partition. `good[table][at]` is the set of that table's records below `at`."""

    __slots__ = ("bad", "dropped", "good", "topics")

    def __init__(self, tables):
        self.topics = []
        self.good = {table: [0] for table in tables}
        self.bad = {table: [0] for table in tables}
        self.dropped = {table: [0] for table in tables}

    def append(self, topic, table, kind, bit):
        """Add one record; a `hole` takes a position and is none (Kafka has such)."""
        self.topics.append(topic)
        for column, of_kind in ((self.good, "good"), (self.bad, "bad"), (self.dropped, "dropped")):
            for name, below in column.items():
                below.append(below[-1] | (bit if name == table and kind == of_kind else 0))

    @property
    def end(self):
        return len(self.topics)


class Source:
    """What one pipeline reads: streams like Kafka's topics, or one that all tables share."""

    def __init__(self, routes, drops, shared, latest, bits):
        self.routes = routes  # topic → table
        self.tables = sorted(set(routes.values()))
        self.drops = drops  # tables that drop their bad records
        self.shared = shared
        self.latest = latest
        self.logs = {}
        self.ids = {}
        self.appeared = []
        self.recreated = set()
        self._bits = bits

    # -- what happens to it --------------------------------------------------------------------

    def appear(self, topic, partitions):
        """A topic comes into being."""
        self.appeared.append(topic)
        stream = self.stream_of(topic)
        if stream not in self.logs:
            names = self.tables if self.shared else [self.routes[topic]]
            self.logs[stream] = {n: Log(names) for n in range(1 if self.shared else partitions)}
            self.ids[stream] = f"id of {stream}"

    def add_partition(self, topic):
        log = self.logs[self.stream_of(topic)]
        log[len(log)] = Log(list(log[0].good))

    def grow(self, topic, random):
        """One more record."""
        logs = self.logs[self.stream_of(topic)]
        log = logs[int(random() * len(logs))]
        table, pick = self.routes[topic], random()
        kind = "good" if pick < 0.65 else "hole" if pick < 0.8 else "bad"
        if kind == "bad" and table in self.drops:
            kind = "dropped"
        log.append(topic, table, kind, 1 << next(self._bits))

    def recreate(self, topic):
        """From now on every record in it is another one."""
        stream = self.stream_of(topic)
        self.recreated.add(stream)
        self.ids[stream] = "another"

    def restore(self):
        for stream in self.recreated:
            self.ids[stream] = f"id of {stream}"
        self.recreated.clear()

    # -- what the pipeline asks ----------------------------------------------------------------

    def check(self):
        pass

    def known_topics(self):
        return self.appeared

    @property
    def shared_streams(self):
        return {"ledger"} if self.shared else set()

    def load_details(self, markers):
        pass

    def losses(self, committed, known_ids):
        return LossReport()

    def stream_of(self, topic):
        return "ledger" if self.shared else topic

    def streams_of(self, table):
        """The streams that a table's positions speak of."""
        if self.shared:
            return {"ledger"}
        return {topic for topic in self.appeared if self.routes[topic] == table}

    def stream_ids(self, streams):
        return {stream: self.ids[stream] for stream in streams}

    def ends(self):
        return {s: {n: log.end for n, log in logs.items()} for s, logs in self.logs.items()}

    def resolve_start(self, start):
        """`start: earliest` or `latest`, as explicit positions."""
        at = self.ends()
        if not self.latest:
            at = {stream: dict.fromkeys(logs, 0) for stream, logs in at.items()}
        return StartPositions(at, self.stream_ids(at))

    def topics(self, batch):
        """The topics that a range may hold."""
        if not self.shared:
            return [s for s, at in batch.stop.items() if batch.start.get(s, {}) != at]
        begin = batch.start.get("ledger", {}).get(0, 0)
        return list(dict.fromkeys(self.logs["ledger"][0].topics[begin : batch.stop["ledger"][0]]))

    def store_details(self, stop, location, commit_id, old):
        return {}

    def lag(self, reached):
        return {}

    # -- the truth -----------------------------------------------------------------------------

    def read(self, column, table, floors, stop):
        """The records of a table from `floors` up to `stop`: of column good, bad or dropped."""
        found = 0
        for stream, partitions in stop.items():
            logs, low = self.logs[stream], floors.get(stream, {})
            for number, at in partitions.items():
                floor = low.get(number, 0)
                if at > floor:
                    below = getattr(logs[number], column)[table]
                    found |= below[at] ^ below[floor]
                    if stream in self.recreated:
                        found |= PHANTOM
        return found

    def truth(self, column, table, begin, stop):
        """The same of the topics as they were meant, whatever somebody did to them."""
        found = 0
        for stream, partitions in stop.items():
            logs, low = self.logs[stream], begin.get(stream, {})
            for number, at in partitions.items():
                below = getattr(logs[number], column)[table]
                found |= below[at] ^ below[min(at, low.get(number, 0))]
        return found
