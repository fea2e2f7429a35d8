"""Debezium's captures through the whole of icestream: each mirror equals its source's table.

That the model equals the truth, column by column, is `tests/unit/test_format_debezium_captures.py`.
"""

import random
import shutil
from collections import defaultdict
from collections.abc import Iterable
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.types import (
    DecimalType,
    FixedType,
    IcebergType,
    ListType,
    LongType,
    StructType,
    TimestampType,
    TimestamptzType,
)

from conformance.stand import Stand
from icestream.catalogs import catalog_for
from icestream.events import IndexFollowed
from icestream.verify import verify
from unit.test_format_debezium_captures import DATA, KEYS, decode, fold, load, made, table

pytestmark = pytest.mark.spark

VARIANTS = sorted({(db, variant) for db, _, variant in DATA if not variant.startswith("edge")})
Key = tuple[Any, ...]
# Each variant in batches of one size, of another one for each database; `make test-long` has all.
SIZES = (1, 7, 1000)
NAMES = sorted({variant for _, variant in VARIANTS})
DATABASES = sorted({db for db, _ in VARIANTS})
SIZED = [
    pytest.param(
        db,
        variant,
        size,
        marks=[]
        if (NAMES.index(variant) + DATABASES.index(db)) % len(SIZES) == number
        else [pytest.mark.long],
    )
    for db, variant in VARIANTS
    for number, size in enumerate(SIZES)
]


def cases(db: str, variant: str) -> list[str]:
    """All but the table without a key, which is no mirror."""
    return [case for d, case, v in DATA if (d, v) == (db, variant) and case != "nopk"]


def ddl(kind: IcebergType) -> str:
    """A type as `columns:` has it."""
    match kind:
        case ListType():
            return f"array<{ddl(kind.element_type)}>"
        case StructType():
            return f"struct<{', '.join(f'{f.name}: {ddl(f.field_type)}' for f in kind.fields)}>"
        case DecimalType():
            return f"decimal({kind.precision},{kind.scale})"
        case FixedType():
            return "binary"
        case LongType():
            return "bigint"
        case TimestampType():
            return "timestamp_ntz"
        case TimestamptzType():
            return "timestamp"
    return str(kind)


class Mirrors:
    """All captures of one variant in one pipeline."""

    def __init__(self, spark: Any, folder: Any, db: str, variant: str) -> None:
        self.records: dict[str, list[dict[str, Any]]] = {}
        self.wanted: dict[str, dict[Key, dict[str, Any]]] = {}
        self.schema: pa.Schema | None = None
        rules = []
        for case in cases(db, variant):
            records = load(db, case, variant)
            self.schema = records.schema
            self.records[case] = records.to_pylist()
            target = table(db, case, variant)
            out, _ = decode(made(db, variant), records, target)
            keys = KEYS.get(case, ("id",))
            self.wanted[case] = fold(out, keys)
            rules.append(
                {
                    "match": records.column("topic")[0].as_py().replace(".", r"\."),
                    "name": f"db.{case}",
                    "mode": "upsert",
                    "columns": {f.name: ddl(f.field_type) for f in target.fields},
                }
            )
        topics = [rows[0]["topic"] for rows in self.records.values()]
        options = made(db, variant)
        source = {"format": {"type": "debezium", **vars(options)}}
        self.stand = Stand(spark, folder, topics, {"source": source, "tables": rules})
        self._topics = dict(zip(self.records, topics, strict=True))

    def again(self, case: str, which: Iterable[int]) -> None:
        """Some records are delivered once more, at the end of their topic."""
        rows = self.records[case]
        rows += [{**rows[at], "offset": len(rows) + n} for n, at in enumerate(which)]

    def interleaved(self, rng: random.Random) -> list[dict[str, Any]]:
        """All records, topics mixed at random; each topic's in their order."""
        order = [case for case, rows in self.records.items() for _ in rows]
        rng.shuffle(order)
        left = {case: iter(rows) for case, rows in self.records.items()}
        return [next(left[case]) for case in order]

    def batch(self, rows: list[dict[str, Any]]) -> pa.RecordBatch:
        return pa.RecordBatch.from_pylist(rows, schema=self.schema)

    def check(self) -> None:
        """Compare all tables with the model, read by PyIceberg; then prove them."""
        catalog = catalog_for(self.stand.config.catalog).open()
        for case, wanted in self.wanted.items():
            found = catalog.load_table(f"db.{case}").scan().to_arrow()
            names = list(next(iter(wanted.values()))) if wanted else []
            rows = defaultdict(list)
            keys = KEYS.get(case, ("id",))
            for row in found.to_pylist():
                rows[tuple(row[name] for name in keys)].append(row)
            assert {key: len(some) for key, some in rows.items()} == dict.fromkeys(wanted, 1), case
            for key, row in wanted.items():
                mine = {name: rows[key][0][name] for name in names}
                assert str(mine) == str(row), (case, key)  # NaN is not itself
        assert verify(self.stand.config, all_snapshots=True).violations == ()


@pytest.fixture
def mirrors(spark, tmp_path):
    def make(db: str, variant: str) -> Mirrors:
        return Mirrors(spark, tmp_path, db, variant)

    return make


def cut(rows: list[Any], size: int) -> list[list[Any]]:
    return [rows[at : at + size] for at in range(0, len(rows), size)]


@pytest.mark.parametrize("db, variant, size", SIZED)
def test_a_mirror_equals_its_source(mirrors, db, variant, size):
    one = mirrors(db, variant)
    for some in cut(one.interleaved(random.Random(size)), size):
        one.stand.take(one.batch(some))
    one.check()


@pytest.mark.parametrize("db", ["mysql8", pytest.param("postgres", marks=pytest.mark.long)])
def test_what_is_delivered_again_changes_nothing(mirrors, db):
    """As after a crash of the connector: everything once more, and a late row of the snapshot."""
    one = mirrors(db, "schemas")
    for case, rows in one.records.items():
        one.again(case, range(len(rows)))
        one.again(case, [0])
    for some in cut(one.interleaved(random.Random(3)), 5):
        one.stand.take(one.batch(some))
    one.check()


@pytest.mark.parametrize(
    "harm, db",
    [
        ("crash", "mysql8"),
        ("index lost", "postgres"),
        ("compaction", "mysql8"),
        pytest.param("crash", "postgres", marks=pytest.mark.long),
        pytest.param("index lost", "mysql8", marks=pytest.mark.long),
        pytest.param("compaction", "postgres", marks=pytest.mark.long),
    ],
)
def test_a_mirror_survives(mirrors, db, harm):
    one = mirrors(db, "schemas")
    rng = random.Random(harm)
    for number, some in enumerate(cut(one.interleaved(rng), 6)):
        one.stand.take(one.batch(some))
        if number % 2 == 0:
            continue
        if harm == "index lost":
            shutil.rmtree(one.stand.folder / "state")
        if harm == "compaction":
            # Spark cannot open a table with a time of day, as the one of all types has.
            one.stand.compact(f"db.{rng.choice([case for case in one.records if case != 'types'])}")
        else:
            one.stand.start()
    one.check()
    followed = [e.how for e in one.stand.events if isinstance(e, IndexFollowed)]
    if harm == "compaction":
        assert any("followed" in how for how in followed)
