"""Staged files against Iceberg's own Java code: metrics, partition values, commits and reads."""

import json
import math
import re
from collections import Counter
from datetime import UTC, date, datetime
from decimal import Decimal
from uuid import UUID

import pyarrow as pa
import pytest
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.schema import Schema

from icestream.tables.arrow import arrow_schema
from icestream.write.stage import Stager, StageTarget

pytestmark = [pytest.mark.spark, pytest.mark.xdist_group("stage_against_java")]
NAN = float("nan")
EVERY_TYPE = {
    "yes": "boolean",
    "small": "int",
    "big": "long",
    "f32": "float",
    "f64": "double",
    "d9": "decimal(9, 2)",
    "d18": "decimal(18, 3)",
    "d38": "decimal(38, 10)",
    "day": "date",
    "clock": "time",
    "local": "timestamp",
    "at": "timestamptz",
    "local_ns": "timestamp_ns",
    "at_ns": "timestamptz_ns",
    "word": "string",
    "raw": "binary",
    "fix": "fixed[5]",
    "uid": "uuid",
    "inner": {
        "type": "struct",
        "fields": [
            {"id": 51, "name": "a", "required": False, "type": "long"},
            {"id": 52, "name": "b.c", "required": False, "type": "double"},
        ],
    },
    "many": {"type": "list", "element-id": 53, "element": "float", "element-required": False},
    "pairs": {
        "type": "map",
        "key-id": 54,
        "key": "string",
        "value-id": 55,
        "value": "decimal(20, 1)",
        "value-required": False,
    },
}
NOT_IN_SPARK = ("clock", "local_ns", "at_ns", "fix", "uid")


def fields_json(names):
    return [
        {"id": position, "name": name, "required": False, "type": EVERY_TYPE[name]}
        for position, name in enumerate(names, 1)
    ]


def rows(names, count=60):
    """Values at the edges: before 1970, negative, long text, NaN, infinities and null."""

    def row(i):
        micros = (i - 30) * 37 * 3_600_000_000 - 1
        words = ["", "héllo wörld, a longer text", "日本" * 12, f"w{i % 4}", "\U0010ffff" * 20]
        values = {
            "yes": i % 2 == 0,
            "small": (i - 30) * 1000,
            "big": (i - 30) * 2**40,
            "f32": [1.5, -0.0, NAN, math.inf][i % 4],
            "f64": [NAN, -2.25, 0.0, 1e300, -math.inf][i % 5],
            "d9": Decimal(i - 30) / 4,
            "d18": Decimal(i - 30) * 10**9 + Decimal("0.125"),
            "d38": Decimal(30 - i) * 10**20,
            "day": micros // 86_400_000_000,
            "clock": i * 1_400_000_000,
            "local": micros,
            "at": micros,
            "local_ns": micros * 1000,
            "at_ns": micros * 1000,
            "word": words[i % 5],
            "raw": bytes([255] * 20) if i % 3 else bytes([i, 0, 255]),
            "fix": bytes([i]) * 5,
            "uid": UUID(int=i << 100).bytes,
            "inner": {"a": i - 30, "b.c": NAN if i % 3 else 1.0} if i % 4 else None,
            "many": [1.0, NAN, None][: i % 4],
            "pairs": [("k", Decimal(i)), ("l", None)][: i % 3],
        }
        return {name: None if i and i % 7 == 0 else values[name] for name in names}

    return [row(i) for i in range(count)]


def batch(schema_json, data):
    schema = arrow_schema(Schema.model_validate_json(schema_json))

    def column(field):
        values = [row[field.name] for row in data]
        if pa.types.is_temporal(field.type):
            width = pa.int32() if pa.types.is_date32(field.type) else pa.int64()
            return pa.array(values, width).cast(field.type)
        return pa.array(values, field.type)

    return pa.record_batch([column(field) for field in schema], schema=schema)


@pytest.fixture(scope="module")
def warehouse(tmp_path_factory):
    return tmp_path_factory.mktemp("stage")


@pytest.fixture(scope="module")
def spark_session_for_stage(spark, warehouse):
    """The session that all tests of a process share: its JVM takes up jars only when it starts."""
    uri = f"jdbc:sqlite:{warehouse}/catalog.db?journal_mode=WAL&busy_timeout=30000"
    spark.conf.set("spark.sql.shuffle.partitions", "2")
    spark.conf.set("spark.sql.catalog.staged", "org.apache.iceberg.spark.SparkCatalog")
    spark.conf.set("spark.sql.catalog.staged.type", "jdbc")
    spark.conf.set("spark.sql.catalog.staged.uri", uri)
    spark.conf.set("spark.sql.catalog.staged.warehouse", str(warehouse))
    spark.sql("CREATE NAMESPACE IF NOT EXISTS staged.db")
    return spark


class Lake:
    """Tables made and read through Iceberg's Java API."""

    def __init__(self, spark, folder):
        self.spark, self.folder = spark, folder
        self.iceberg = spark._jvm.org.apache.iceberg
        conf = spark._jsparkSession
        self.catalog = self.iceberg.spark.Spark3Util.loadIcebergCatalog(conf, "staged")
        self.names = iter(range(1000))
        # Iceberg's mapper refuses a NaN as a partition value, which its own writer makes.
        shaded = spark._jvm.org.apache.iceberg.shaded.com.fasterxml.jackson.core
        feature = getattr(shaded, "JsonParser$Feature").ALLOW_NON_NUMERIC_NUMBERS
        self.mapper = self.iceberg.util.JsonUtil.mapper().copy().configure(feature, True)

    def create(self, columns, spec=(), order=(), **properties):
        name = f"t{next(self.names)}"
        schema = self.iceberg.SchemaParser.fromJson(
            json.dumps({"type": "struct", "schema-id": 0, "fields": fields_json(columns)})
        )
        builder = self.iceberg.PartitionSpec.builderFor(schema)
        for transform, *arguments in spec:
            builder = getattr(builder, transform)(*arguments)
        identifier = self.iceberg.catalog.TableIdentifier.parse(f"db.{name}")
        table = self.catalog.buildTable(identifier, schema).withPartitionSpec(builder.build())
        for key, value in {"format-version": "3", **properties}.items():
            table = table.withProperty(key, value)
        sort = self.iceberg.SortOrder.builderFor(schema)
        for direction, column in order:
            sort = getattr(sort, direction)(column, self.iceberg.NullOrder.NULLS_LAST)
        return name, table.withSortOrder(sort.build()).create()

    def target(self, table):
        return StageTarget(
            self.iceberg.SchemaParser.toJson(table.schema()),
            self.iceberg.PartitionSpecParser.toJson(table.spec()),
            self.iceberg.SortOrderParser.toJson(table.sortOrder()),
            table.location() + "/data",
            "test-g1-commit",
            dict(table.properties()),
        )

    def stage(self, table, data, memory=128 << 20):
        target = self.target(table)
        stager = Stager(target, "attempt", memory)
        half = len(data) // 2
        for part in (data[:half], data[half:]):
            stager.write(batch(target.schema_json, part))
        return stager.finish()

    def data_file(self, table, file):
        return self.iceberg.ContentFileParser.fromJson(
            self.mapper.readTree(file.content_json), table.spec()
        )

    def append(self, table, files):
        update = table.newAppend()
        for file in files:
            update = update.appendFile(self.data_file(table, file))
        update.commit()

    def to_json(self, table, file):
        return json.loads(self.iceberg.ContentFileParser.toJson(file, table.spec()))

    def footer_metrics(self, table, file):
        """What Java makes of our file's footer."""
        source = self.iceberg.Files.localInput(file.path)
        config = self.iceberg.MetricsConfig.forTable(table)
        metrics = self.iceberg.parquet.ParquetUtil.fileMetrics(source, config)
        builder = self.iceberg.DataFiles.builder(self.iceberg.PartitionSpec.unpartitioned())
        made = builder.withPath(file.path).withFileSizeInBytes(file.bytes).withMetrics(metrics)
        return json.loads(
            self.iceberg.ContentFileParser.toJson(
                made.withFormat("parquet").build(), self.iceberg.PartitionSpec.unpartitioned()
            )
        )

    def planned(self, table, expression=None):
        table.refresh()
        scan = table.newScan().includeColumnStats()
        scan = scan if expression is None else scan.filter(expression)
        tasks, found = scan.planFiles().iterator(), []
        while tasks.hasNext():
            found.append(self.to_json(table, tasks.next().file()))
        return found


@pytest.fixture(scope="module")
def lake(spark_session_for_stage, warehouse):
    return Lake(spark_session_for_stage, warehouse)


def by_id(pairs):
    return dict(zip(pairs["keys"], pairs["values"], strict=True))


METRICS = ("column-sizes", "value-counts", "null-value-counts", "lower-bounds", "upper-bounds")


@pytest.mark.parametrize(
    "properties",
    [
        {},
        {"write.parquet.row-group-size-bytes": "2000"},
        {"write.metadata.metrics.default": "full"},
        {"write.metadata.metrics.default": "truncate(3)"},
        {"write.metadata.metrics.default": "counts", "write.metadata.metrics.column.word": "full"},
        {"write.metadata.metrics.default": "none", "write.metadata.metrics.column.f64": "counts"},
        {"write.metadata.metrics.max-inferred-column-defaults": "8"},
        {"write.parquet.compression-codec": "snappy", "write.parquet.dict-size-bytes": "100"},
    ],
    ids=lambda properties: ",".join(properties.values()) or "default",
)
@pytest.mark.parametrize("count", [60, 1])
def test_metrics_are_those_that_java_reads_from_the_footer(lake, properties, count):
    _, table = lake.create(EVERY_TYPE, order=[("asc", "big")], **properties)
    (file,) = lake.stage(table, rows(EVERY_TYPE, count))
    ours, theirs = json.loads(file.content_json), lake.footer_metrics(table, file)
    assert ours["record-count"] == theirs["record-count"] == count
    for name in METRICS:
        assert by_id(ours[name]) == by_id(theirs.get(name, {"keys": [], "values": []})), name
    offsets = lake.to_json(table, lake.data_file(table, file))["split-offsets"]
    assert offsets == ours["split-offsets"]


IN_SPARK = [name for name in EVERY_TYPE if name not in NOT_IN_SPARK]
SPECS = {
    "plain": [],
    "times": [("day", "at"), ("year", "day"), ("hour", "local")],
    "months": [("month", "at"), ("month", "local"), ("month", "day")],
    "buckets": [
        ("bucket", name, 5)
        for name in ("small", "big", "d9", "d38", "day", "local", "at", "word", "raw")
    ],
    "truncations": [
        ("truncate", name, 3) for name in ("small", "big", "d9", "d18", "d38", "word", "raw")
    ],
    "identities": [
        ("identity", name)
        for name in ("yes", "small", "big", "f32", "f64", "d9", "d18", "d38", "day")
    ],
    "more identities": [("identity", name) for name in ("local", "at", "word", "raw")],
    "nested and void": [("truncate", "inner.a", 10), ("alwaysNull", "big"), ("identity", "yes")],
}


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
def test_partitions_and_nan_counts_are_those_of_sparks_writer(lake, spec):
    data = rows(IN_SPARK)
    _, table = lake.create(IN_SPARK, spec)
    files = lake.stage(table, data, memory=3000)
    twin, other = lake.create(IN_SPARK, spec, **{"write.distribution-mode": "hash"})
    # Iceberg's reader would take identity values from our metadata: give Spark the bare columns.
    plain, bare = lake.create(IN_SPARK)
    lake.append(bare, lake.stage(bare, data))
    lake.spark.sql(f"INSERT INTO staged.db.{twin} SELECT * FROM staged.db.{plain}")
    ours = [json.loads(file.content_json) for file in files]
    theirs = lake.planned(other)

    def counted(found):
        counts = Counter()
        for file in found:  # Java writes NaN and infinities as words, and cannot read them again
            words = re.sub(r'"(NaN|-?Infinity)"', r"\1", json.dumps(file["partition"]))
            counts[words] += file["record-count"]
        return counts

    assert counted(ours) == counted(theirs)
    for name in ("nan-value-counts", "null-value-counts", "value-counts"):
        sums = [Counter(), Counter()]
        for total, found in zip(sums, (ours, theirs), strict=True):
            for file in found:
                total.update(by_id(file[name]))
        assert sums[0] == sums[1], name


def text(value):
    """Make values comparable whatever engine read them: NaN equals NaN, -0.0 equals 0.0."""
    if isinstance(value, dict):
        return "{" + ",".join(f"{k}:{text(v)}" for k, v in sorted(value.items())) + "}"
    if isinstance(value, list):
        return "[" + ",".join(text(v) for v in value) + "]"
    if isinstance(value, float):
        return repr(value + 0.0)
    if isinstance(value, bytes | bytearray):
        return bytes(value).hex()
    return str(value)


def from_arrow(table):
    maps = [f.name for f in table.schema if pa.types.is_map(f.type)]
    return Counter(
        text({k: dict(v) if k in maps and v is not None else v for k, v in row.items()})
        for row in table.to_pylist()
    )


def from_spark(frame):
    """Through Arrow, so that no local time zone interferes."""
    return from_arrow(frame.toArrow())


@pytest.mark.parametrize("spec", SPECS.values(), ids=SPECS)
@pytest.mark.parametrize("order", [(), (("desc", "f64"), ("asc", "word"))], ids=["", "sorted"])
def test_committed_files_read_back(lake, spec, order):
    data = rows(IN_SPARK)
    name, table = lake.create(IN_SPARK, spec, order)
    files = lake.stage(table, data, memory=4000)
    lake.append(table, files)
    expected = from_arrow(pa.Table.from_batches([batch(lake.target(table).schema_json, data)]))
    assert from_spark(lake.spark.table(f"staged.db.{name}")) == expected
    catalog = SqlCatalog(
        "staged", uri=f"sqlite:///{lake.folder}/catalog.db", warehouse=str(lake.folder)
    )
    assert from_arrow(catalog.load_table(f"db.{name}").scan().to_arrow()) == expected
    catalog.close()
    order_id = table.sortOrder().orderId()
    assert {file["sort-order-id"] for file in lake.planned(table)} == {order_id}


FILTERS = {
    "at >= TIMESTAMP'1970-01-05'": ("greaterThanOrEqual", "at", "1970-01-05T00:00:00+00:00"),
    "word = 'w3'": ("equal", "word", "w3"),
    "small < -20000": ("lessThan", "small", -20000),
    "d9 = -2.50": ("equal", "d9", Decimal("-2.50")),
}


@pytest.mark.parametrize("query", FILTERS)
@pytest.mark.parametrize(
    "spec", [[("day", "at")], [("bucket", "word", 7)], [("identity", "d9")]], ids=str
)
def test_filters_prune_and_find_every_row(lake, query, spec):
    data = rows(IN_SPARK)
    name, table = lake.create(IN_SPARK, spec)
    lake.append(table, lake.stage(table, data))
    kind, column, value = FILTERS[query]
    expressions = lake.iceberg.expressions.Expressions
    given = lake.spark._jvm.java.math.BigDecimal(str(value)) if column == "d9" else value
    kept, every = (
        lake.planned(table, getattr(expressions, kind)(column, given)),
        lake.planned(table),
    )
    assert 0 < len(kept) < len(every)

    def wanted(row):
        if column == "at":
            return row["at"] is not None and row["at"] >= 4 * 86_400_000_000
        if row[column] is None:
            return False
        return row[column] < value if kind == "lessThan" else row[column] == value

    expected = Counter(row["big"] for row in data if wanted(row))
    found = lake.spark.sql(f"SELECT big FROM staged.db.{name} WHERE {query}").collect()
    assert Counter(row.big for row in found) == expected
    assert expected


def test_nothing_is_read_back_in_another_type(lake):
    name, table = lake.create(["at", "local", "day", "d9"])
    micros = 86_400_000_000
    lake.append(table, lake.stage(table, [{"at": micros, "local": micros, "day": 1, "d9": 5}] * 2))
    row = lake.spark.table(f"staged.db.{name}").toArrow().to_pylist()[0]
    assert row["at"] == datetime(1970, 1, 2, tzinfo=UTC)
    assert row["local"] == datetime(1970, 1, 2)  # noqa: DTZ001
    assert row["day"] == date(1970, 1, 2)
    assert row["d9"] == Decimal("5.00")


BEYOND_SPARK = [
    *((name, how) for name in ("clock", "uid") for how in ("identity", "bucket")),
    *(
        (name, how)
        for name in ("local_ns", "at_ns")
        for how in ("identity", "bucket", "day", "hour")
    ),
]


@pytest.mark.parametrize("name, transform", BEYOND_SPARK)
def test_types_that_spark_lacks_partition_as_in_java(lake, name, transform):
    arguments = [name, 16] if transform == "bucket" else [name]
    _, table = lake.create(["big", name], [(transform, *arguments)])
    function = table.spec().fields().get(0).transform().bind(table.schema().findType(name))
    uuid = lake.spark._jvm.java.util.UUID
    for row in rows(["big", name])[1:]:
        value = row[name]
        if isinstance(value, int) and abs(value) < 2**31:
            continue  # py4j would make it an Integer
        (file,) = lake.stage(table, [row])
        java = uuid.fromString(str(UUID(bytes=value))) if name == "uid" and value else value
        expected = None if value is None else function.apply(java)
        partition = lake.data_file(table, file).partition()
        found = partition.get(0, lake.spark._jvm.java.lang.Class.forName("java.lang.Object"))
        assert str(found) == str(expected)
