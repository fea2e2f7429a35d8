"""What we ask of a real cluster: ids, ends with open transactions, times, samples, refusals."""

import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pyarrow as pa
import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclOperation,
    AclPermissionType,
    AdminClient,
    ResourcePatternType,
    ResourceType,
)

from icestream.cli.demo.broker import HOST, Broker, free_port
from icestream.errors import Unreachable
from icestream.records import RECORDS
from icestream.sources.kafka.client import KafkaAdmin
from icestream.sources.kafka.sample import SampleConsumer
from servers import create_topic, delete_topic, produce

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.xdist_group("kafka_client")]

PASSWORD = "CANARY-5f3a"


@pytest.fixture
def cluster(broker: Broker) -> Iterator[KafkaAdmin]:
    found = KafkaAdmin(broker.bootstrap, {})
    yield found
    found.close()


def soon(true: Callable[[], bool], seconds: float = 20) -> bool:
    deadline = time.monotonic() + seconds
    while not (found := true()) and time.monotonic() < deadline:
        time.sleep(0.02)
    return found


def led(cluster: KafkaAdmin, partitions: dict[str, tuple[int, ...]]) -> bool:
    """Every partition has a leader: a broker takes its time to make a thousand."""
    try:
        return bool(cluster.latest(partitions))
    except Unreachable:
        return False


def read(batches: Iterator[pa.RecordBatch]) -> list[dict[str, object]]:
    return pa.Table.from_batches(list(batches), RECORDS).to_pylist()


# ── topics ───────────────────────────────────────────────────────────────────────────────────────


def test_topics_are_listed_and_described(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-a", partitions=3)
    create_topic(broker.bootstrap, "kc-b")
    assert soon(lambda: {"kc-a", "kc-b"} <= set(cluster.names()))
    names = cluster.names()
    assert names == sorted(name for name in names if not name.startswith("__"))
    found = cluster.describe(["kc-a", "kc-b", "kc-none", "not a name/"])
    assert {name: topic.partitions for name, topic in found.items()} == {
        "kc-a": (0, 1, 2),
        "kc-b": (0,),
    }
    assert "kc-none" not in cluster.names()  # asking creates nothing


def test_a_topic_that_was_created_again_has_another_id(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-again")
    assert soon(lambda: "kc-again" in cluster.describe(["kc-again"]))
    first = cluster.describe(["kc-again"])["kc-again"].id
    assert len(first) == 22
    assert cluster.describe(["kc-again"])["kc-again"].id == first
    delete_topic(broker.bootstrap, "kc-again")
    assert soon(lambda: cluster.describe(["kc-again"]) == {})
    create_topic(broker.bootstrap, "kc-again")
    assert soon(lambda: "kc-again" in cluster.describe(["kc-again"]))
    assert cluster.describe(["kc-again"])["kc-again"].id not in ("", first)
    assert cluster.latest({"kc-again": [0]}) == {"kc-again": {0: 0}}


# ── offsets ──────────────────────────────────────────────────────────────────────────────────────


def test_ends_move_with_what_is_written_and_deleted(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-ends", partitions=2)
    produce(broker.bootstrap, "kc-ends", ["x"] * 10, partition=0)
    both = {"kc-ends": [0, 1]}
    assert cluster.earliest(both) == {"kc-ends": {0: 0, 1: 0}}
    assert cluster.latest(both) == {"kc-ends": {0: 10, 1: 0}}
    with AdminClient({"bootstrap.servers": broker.bootstrap}) as admin:
        for done in admin.delete_records([TopicPartition("kc-ends", 0, 4)]).values():
            done.result(20)
    assert cluster.earliest(both) == {"kc-ends": {0: 4, 1: 0}}
    assert cluster.high_watermark(both) == {"kc-ends": {0: 10, 1: 0}}


def test_an_open_transaction_holds_the_end_back(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-tx")
    produce(broker.bootstrap, "kc-tx", ["a", "b"])
    producer = Producer({"bootstrap.servers": broker.bootstrap, "transactional.id": "kc-tx"})
    producer.init_transactions(20)
    producer.begin_transaction()
    for value in ("c", "d"):
        producer.produce("kc-tx", value)
    producer.flush(20)
    one = {"kc-tx": [0]}
    anything = KafkaAdmin(broker.bootstrap, {"kafka.isolation.level": "read_uncommitted"})
    assert cluster.latest(one) == {"kc-tx": {0: 2}}
    assert cluster.high_watermark(one) == {"kc-tx": {0: 4}}
    assert anything.latest(one) == {"kc-tx": {0: 4}}
    assert [row["value"] for row in read(cluster.sample({"kc-tx": {0: 0}}, 9))] == [b"a", b"b"]
    assert len(read(anything.sample({"kc-tx": {0: 0}}, 9))) == 4
    producer.abort_transaction(20)
    # One more for the record that ends the transaction, which is written a little later.
    assert soon(lambda: cluster.latest(one) == {"kc-tx": {0: 5}})
    assert [row["value"] for row in read(cluster.sample({"kc-tx": {0: 0}}, 9))] == [b"a", b"b"]
    anything.close()


def test_offsets_of_a_time(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-time", partitions=2, retention_ms=-1)
    base = 1_700_000_000_000
    stamps = [base, base + 1000, base + 2000]
    produce(broker.bootstrap, "kc-time", ["a", "b", "c"], partition=0, timestamps=stamps)
    produce(broker.bootstrap, "kc-time", ["z"], partition=1, timestamps=[base])
    when = datetime.fromtimestamp(base / 1000, UTC)
    both = {"kc-time": [0, 1]}
    for after, expected in {
        timedelta(days=-30_000): {0: 0, 1: 0},
        timedelta(0): {0: 0, 1: 0},
        timedelta(microseconds=1): {0: 1, 1: 1},
        timedelta(seconds=1): {0: 1, 1: 1},
        timedelta(milliseconds=1001): {0: 2, 1: 1},
        timedelta(days=1): {0: 3, 1: 1},
    }.items():
        assert cluster.at_time(both, when + after) == {"kc-time": expected}, after


def test_partitions_that_do_not_exist_are_named(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-few")
    with pytest.raises(Unreachable, match="topic `kc-few`, partition 7: unknown partition"):
        cluster.latest({"kc-few": [0, 7]})
    with pytest.raises(Unreachable, match="topic `kc-none`, partition 0: unknown topic"):
        cluster.latest({"kc-few": [0], "kc-none": [0]})
    with pytest.raises(Unreachable, match="topic `kc-none`, partition 0: does not exist, or"):
        cluster.latest({"kc-none": [0]})


def test_a_thousand_partitions_take_no_time(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-wide", partitions=1000)
    assert soon(lambda: "kc-wide" in cluster.describe(["kc-wide"]))
    [topic] = cluster.describe(["kc-wide"]).values()
    wanted = {topic.name: topic.partitions}
    assert soon(lambda: led(cluster, wanted), seconds=60)
    begin = time.perf_counter()
    for _ in range(5):
        cluster.describe(["kc-wide"])
        cluster.earliest(wanted)
        cluster.latest(wanted)
    assert (time.perf_counter() - begin) / 15 < 0.25  # about 0.03 on an idle machine
    delete_topic(broker.bootstrap, "kc-wide")


def test_two_threads_ask_at_once(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-threads", partitions=8)
    assert soon(lambda: "kc-threads" in cluster.describe(["kc-threads"]))
    wanted, failed = {"kc-threads": range(8)}, []

    def ask() -> None:
        try:
            for _ in range(50):
                assert cluster.latest(wanted) == {"kc-threads": dict.fromkeys(range(8), 0)}
                assert "kc-threads" in cluster.describe(["kc-threads"])
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# ── samples ──────────────────────────────────────────────────────────────────────────────────────


def test_a_sample_has_the_shape_of_records(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-shape", retention_ms=-1)
    produce(
        broker.bootstrap,
        "kc-shape",
        [b"one", None, b""],
        keys=[None, b"k", b""],
        timestamps=[1_000, 2_000, 3_000],
    )
    [batch] = cluster.sample(cluster.earliest({"kc-shape": [0]}), 10)
    assert batch.schema == RECORDS
    start = datetime(1970, 1, 1, tzinfo=UTC)
    assert [tuple(row.values()) for row in batch.to_pylist()] == [
        ("kc-shape", 0, 0, start + timedelta(seconds=1), None, b"one"),
        ("kc-shape", 0, 1, start + timedelta(seconds=2), b"k", None),
        ("kc-shape", 0, 2, start + timedelta(seconds=3), b"", b""),
    ]


def test_a_sample_is_spread_and_ends(broker: Broker, cluster: KafkaAdmin) -> None:
    create_topic(broker.bootstrap, "kc-spread", partitions=3)
    produce(broker.bootstrap, "kc-spread", [str(n) for n in range(500)], partition=0)
    produce(broker.bootstrap, "kc-spread", ["a", "b"], partition=1)
    begin = {"kc-spread": {0: 0, 1: 0, 2: 0}}
    few = read(cluster.sample(begin, 10))
    assert sorted((row["partition"], row["offset"]) for row in few) == [
        *((0, n) for n in range(8)),
        (1, 0),
        (1, 1),
    ]
    assert len(read(cluster.sample(begin, 1000))) == 502
    assert len(read(cluster.sample({"kc-spread": {0: 498, 1: 2, 2: 0}}, 1000))) == 2
    assert read(cluster.sample({"kc-spread": {0: 500}}, 5)) == []
    assert read(cluster.sample(begin, 0)) == []


@pytest.mark.parametrize(
    "portion",
    [7 * 3, pytest.param(999, marks=pytest.mark.long), pytest.param(3000, marks=pytest.mark.long)],
)
def test_a_sample_in_portions_leaves_nothing_out(broker: Broker, portion: int) -> None:
    """Whatever the client has fetched beyond a portion's end, and the end of the log in there."""
    name = f"kc-portions-{portion}"
    create_topic(broker.bootstrap, name, partitions=3)
    counts = {0: 20 * portion + 5, 1: 3 * portion, 2: 2}
    for number, count in counts.items():
        produce(broker.bootstrap, name, [b"x" * 50] * count, partition=number)
    settings = {"bootstrap.servers": broker.bootstrap, "group.id": "portions"}
    for chosen in ([0], [1], [2], [0, 1]):
        begin, ends = ({name: {n: at[n] for n in chosen}} for at in ({0: 0, 1: 0, 2: 0}, counts))
        with SampleConsumer(settings, begin, ends) as sample:
            found: list[dict[str, object]] = []
            while rows := read(sample.batches(portion)):
                assert len(rows) <= portion
                found += rows
        for number in chosen:
            offsets = [row["offset"] for row in found if row["partition"] == number]
            assert offsets == list(range(counts[number]))


# ── a cluster that is closed to us ───────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Guarded:
    """A broker with a listener for everybody, one for SASL and, given openssl, one for TLS."""

    open: str
    sasl: str
    tls_port: int
    folder: Path


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    folder = tmp_path_factory.mktemp("guarded")
    port, sasl, tls, controller = (free_port() for _ in range(4))
    settings = {
        "listeners": (
            f"PLAINTEXT://{HOST}:{port},SASL_PLAINTEXT://{HOST}:{sasl},"
            f"SSL://localhost:{tls},CONTROLLER://{HOST}:{controller}"
        ),
        "controller.quorum.voters": f"1@{HOST}:{controller}",
        "listener.security.protocol.map": (
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,SASL_PLAINTEXT:SASL_PLAINTEXT,SSL:SSL"
        ),
        "inter.broker.listener.name": "PLAINTEXT",
        "sasl.enabled.mechanisms": "PLAIN",
        "listener.name.sasl_plaintext.plain.sasl.jaas.config": (
            "org.apache.kafka.common.security.plain.PlainLoginModule required "
            f'user_ann="{PASSWORD}";'
        ),
        "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
        "super.users": "User:ANONYMOUS",
    }
    if shutil.which("openssl"):
        _certificates(folder)
        settings |= {
            "ssl.keystore.type": "PEM",
            "ssl.keystore.location": str(folder / "store.pem"),
            "ssl.truststore.type": "PEM",
            "ssl.truststore.location": str(folder / "ca.pem"),
            "listener.name.ssl.ssl.client.auth": "requested",
        }
    else:
        settings["listeners"] = settings["listeners"].replace(f"SSL://localhost:{tls},", "")
    with Broker(folder / "broker", port, settings):
        yield Guarded(f"{HOST}:{port}", f"{HOST}:{sasl}", tls, folder)


def _certificates(folder: Path) -> None:
    """A CA, another CA, and a broker certificate for localhost only."""

    def openssl(*arguments: str) -> None:
        subprocess.run(["openssl", *arguments], check=True, capture_output=True, cwd=folder)

    key = ("-newkey", "rsa:2048", "-nodes")
    for name in ("ca", "other"):
        openssl("req", "-x509", *key, "-keyout", f"{name}.key", "-out", f"{name}.pem",
                "-subj", f"/CN={name}")  # fmt: skip
    openssl("req", *key, "-keyout", "key.pem", "-out", "request.pem", "-subj", "/CN=broker")
    (folder / "extension").write_text("subjectAltName=DNS:localhost")
    openssl("x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key",
            "-CAcreateserial", "-out", "broker.pem", "-extfile", "extension")  # fmt: skip
    openssl("pkcs8", "-topk8", "-nocrypt", "-in", "key.pem", "-out", "key8.pem")
    parts = [(folder / name).read_text() for name in ("key8.pem", "broker.pem")]
    (folder / "store.pem").write_text("".join(parts))


def _sasl(password: str, mechanism: str = "PLAIN", module: str = "plain.Plain") -> dict[str, str]:
    return {
        "kafka.security.protocol": "SASL_PLAINTEXT",
        "kafka.sasl.mechanism": mechanism,
        "kafka.sasl.jaas.config": (
            f"org.apache.kafka.common.security.{module}LoginModule required "
            f'username="ann" password="{password}";'
        ),
    }


def _why(bootstrap: str, options: dict[str, str]) -> str:
    """The cause, which comes soon, in one line and without the secret."""
    cluster = KafkaAdmin(bootstrap, options)
    begin = time.monotonic()
    with pytest.raises(Unreachable) as raised:
        cluster.describe(["guarded"])
    assert time.monotonic() - begin < 5
    cluster.close()
    text = f"{raised.value.what} {raised.value.where} {raised.value.hint}"
    assert "CANARY" not in text
    assert "\n" not in text
    return raised.value.what


def test_sasl_refusals(guarded: Guarded) -> None:
    login = f"Kafka broker {guarded.sasl}: authentication failed:"
    assert _why(guarded.sasl, _sasl("CANARY-wrong")) == f"{login} Invalid username or password"
    scram = _sasl("CANARY-wrong", "SCRAM-SHA-256", "scram.Scram")
    assert _why(guarded.sasl, scram) == f"{login} the broker offers PLAIN"
    assert _why(guarded.sasl, {}) == (
        f"Kafka broker {guarded.sasl}: it closes the connection, as it does on a port that expects "
        "TLS or SASL"
    )


def test_rights(guarded: Guarded) -> None:
    """Read on the topic is all that a reader needs: none on the cluster, none on a group."""
    create_topic(guarded.open, "guarded")
    produce(guarded.open, "guarded", ["a"])
    assert _why(guarded.sasl, _sasl(PASSWORD)) == "topic `guarded`: not authorized"
    cluster = KafkaAdmin(guarded.sasl, _sasl(PASSWORD))
    assert cluster.names() == []
    _allow(guarded, AclOperation.DESCRIBE)
    assert soon(lambda: cluster.names() == ["guarded"])
    assert cluster.latest({"guarded": [0]}) == {"guarded": {0: 1}}
    with pytest.raises(Unreachable, match="topic `guarded`: not authorized"):
        list(cluster.sample({"guarded": {0: 0}}, 1))
    _allow(guarded, AclOperation.READ)
    assert [row["value"] for row in read(cluster.sample({"guarded": {0: 0}}, 1))] == [b"a"]
    cluster.close()


def _allow(guarded: Guarded, operation: AclOperation) -> None:
    rule = AclBinding(
        ResourceType.TOPIC, "guarded", ResourcePatternType.LITERAL, "User:ann", "*",
        operation, AclPermissionType.ALLOW,
    )  # fmt: skip
    with AdminClient({"bootstrap.servers": guarded.open}) as admin:
        for done in admin.create_acls([rule]).values():
            done.result(20)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="openssl makes the certificates")
def test_tls(guarded: Guarded) -> None:
    def trusting(name: str) -> dict[str, str]:
        return {
            "kafka.security.protocol": "SSL",
            "kafka.ssl.truststore.type": "PEM",
            "kafka.ssl.truststore.location": str(guarded.folder / name),
        }

    by_name, by_number = f"localhost:{guarded.tls_port}", f"{HOST}:{guarded.tls_port}"
    in_place = {
        "kafka.security.protocol": "SSL",
        "kafka.ssl.truststore.type": "PEM",
        "kafka.ssl.truststore.certificates": (guarded.folder / "ca.pem").read_text(),
    }
    with_key = {
        **trusting("ca.pem"),
        "kafka.ssl.keystore.type": "PEM",
        "kafka.ssl.keystore.location": str(guarded.folder / "store.pem"),
    }
    for options in (trusting("ca.pem"), in_place, with_key):
        cluster = KafkaAdmin(by_name, options)
        if options is with_key:  # then we are somebody, whom no rule lets in
            assert "guarded" not in cluster.names()
        else:
            assert cluster.describe(["nothing"]) == {}
        cluster.close()
    refused = "TLS: its certificate is not accepted:"
    assert _why(by_name, trusting("other.pem")) == (
        f"Kafka broker {by_name}: {refused} unable to get local issuer certificate"
    )
    assert _why(by_number, trusting("ca.pem")) == (
        f"Kafka broker {by_number}: {refused} IP address mismatch, certificate is not valid for "
        f"'{HOST}'"
    )
    assert _why(guarded.open, trusting("ca.pem")) == (
        f"Kafka broker {guarded.open}: TLS: the handshake failed, as it does on a port that speaks "
        "no TLS"
    )


def test_a_broker_that_comes_back(tmp_path: Path) -> None:
    with Broker(tmp_path) as own:
        cluster = KafkaAdmin(own.bootstrap, {})
        create_topic(own.bootstrap, "back")
        assert soon(lambda: "back" in cluster.describe(["back"]))
        before = cluster.describe(["back"])
        own.kill()
        for _ in range(2):
            with pytest.raises(Unreachable, match=f"{own.bootstrap}: connection refused"):
                cluster.latest({"back": [0]})
        own.start()
        assert soon(lambda: cluster.describe(["back"]) == before, seconds=5)
        assert cluster.latest({"back": [0]}) == {"back": {0: 0}}
        cluster.close()
