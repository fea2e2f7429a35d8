"""The key index against what Spark does to a table: merge-on-read, compaction, expiry."""

import numpy as np
import pyarrow as pa
import pytest

from icestream.catalogs import catalog_for, spark_conf
from icestream.config.load import load
from icestream.errors import TableRefused
from icestream.index.build import build
from icestream.index.follow import open_or_build
from icestream.index.keys import bucket_of, key_hashes

pytestmark = [pytest.mark.spark, pytest.mark.slow]

BUCKETS = 4
IDS = range(-10, 1300)
MADE = """
    CREATE TABLE lake.shop.t (id BIGINT, region STRING, v INT, _src_sequence BINARY) USING iceberg
    PARTITIONED BY (region)
    TBLPROPERTIES ('format-version' = '2', 'write.delete.mode' = 'merge-on-read',
                   'write.update.mode' = 'merge-on-read', 'write.merge.mode' = 'merge-on-read')
"""
ROWS = """
    INSERT INTO lake.shop.t SELECT id, concat('r', id % 2), 0, cast(cast(id AS STRING) AS BINARY)
    FROM range({}, {})
"""


@pytest.fixture
def sql(lake):
    """Runs SQL in a session of its own, with as few tasks as a small table needs."""
    lake.configure(
        """
        name: p
        source: {type: files, path: ./in, pattern: '*'}
        tables: [{name: shop.t}]
        """
    )
    session = lake.spark.newSession()
    catalog = catalog_for(load(lake.file).pipeline.catalog)
    for key, value in {**spark_conf(catalog), "spark.sql.shuffle.partitions": "1"}.items():
        session.conf.set(key, value)

    def run(text):
        return session.sql(text).collect()

    run("CREATE NAMESPACE lake.shop")
    run(MADE)
    for start in (0, 500):
        run(ROWS.format(start, start + 500))
    return run


def call(sql, procedure, *options):
    pairs = ", ".join(f"'{key}', '{value}'" for key, value in options)
    extra = f", options => map({pairs})" if pairs else ""
    return sql(f"CALL lake.system.{procedure}(table => 'shop.t'{extra})")


def truth(sql):
    """key → (path, position) of every live row, as Spark sees it."""
    return {row[0]: (row[1], row[2]) for row in sql("SELECT id, _file, _pos FROM lake.shop.t")}


def answers(store):
    hashes = key_hashes([pa.array(IDS)])
    places, found = bucket_of(hashes, BUCKETS), {}
    for bucket in range(BUCKETS):
        mine = np.flatnonzero(places == bucket)
        result = store.reader.lookup(bucket, hashes[mine])
        assert not result.tombstone.any()
        for at in np.flatnonzero(result.hit):
            path = store.reader.path(int(result.file[at]))
            found[IDS[mine[at]]] = (path, int(result.position[at]))
    return found


@pytest.fixture
def check(sql, lake, tmp_path):
    """Catch up, compare with the table, and with an index made anew; → what was done."""

    def checked():
        table = lake.table("shop.t")
        store, told = open_or_build(table, tmp_path / "i", ["id"], buckets=BUCKETS)
        expected = truth(sql)
        assert answers(store) == expected
        store.merge()
        assert answers(store) == expected
        fresh, built = build(table, tmp_path / "j", ["id"], buckets=BUCKETS)
        assert answers(fresh) == expected
        assert (built.rows, built.duplicates) == (len(expected), 0)
        return told

    return checked


def merge_into(sql, start, stop):
    sql(
        f"""
        MERGE INTO lake.shop.t USING (
            SELECT id, concat('r', (id + 1) % 2) AS region FROM range({start}, {stop}, 3)
        ) AS s ON t.id = s.id
        WHEN MATCHED AND s.id % 5 = 0 THEN DELETE
        WHEN MATCHED THEN UPDATE SET v = v + 1, region = s.region
        WHEN NOT MATCHED THEN INSERT (id, region, v) VALUES (s.id, s.region, 9)
        """
    )


def test_row_deltas(sql, check):
    assert check().rebuilt == "there is none yet"
    sql("DELETE FROM lake.shop.t WHERE id % 7 = 3 AND id < 500")
    told = check()
    assert (told.rebuilt, told.gone, told.new) == (None, 0, 0)
    assert told.changed > 0
    assert told.rows < 500
    for start in (0, 900):  # rows that change partition, go, come
        merge_into(sql, start, start + 300)
    told = check()
    assert (told.rebuilt, told.gone) == (None, 0)
    assert told.new > 0
    assert told.changed > 0


def test_maintenance(sql, check):
    for start in (0, 100):
        merge_into(sql, start, start + 300)
    check()
    call(sql, "rewrite_position_delete_files", ("rewrite-all", "true"))
    told = check()
    assert (told.rebuilt, told.gone, told.new, told.changed) == (None, 0, 0, 0)
    call(sql, "rewrite_manifests")
    assert str(check()) == "nothing to follow"
    merge_into(sql, 10, 600)
    call(sql, "rewrite_data_files", ("rewrite-all", "true"), ("min-input-files", "1"))
    told = check()
    assert told.rebuilt is None
    assert told.gone > 0
    assert told.new > 0


def test_expiry_overwrite_and_an_emptied_table(sql, check):
    check()
    merge_into(sql, 200, 700)
    merge_into(sql, 300, 800)
    later = "TIMESTAMP '2100-01-01 00:00:00'"
    sql(f"CALL lake.system.expire_snapshots('shop.t', {later}, 1)")
    told = check()
    assert told.rebuilt is None
    assert told.new > 0
    sql("INSERT OVERWRITE lake.shop.t SELECT * FROM lake.shop.t WHERE id < 100")
    told = check()
    assert told.rebuilt is None
    assert told.gone > 0
    sql("DELETE FROM lake.shop.t")
    told = check()
    assert (told.rebuilt, told.new) == (None, 0)


def test_a_rollback_is_rebuilt(sql, lake, check):
    check()
    first = lake.table("shop.t").current_snapshot().snapshot_id
    merge_into(sql, 0, 300)
    check()
    sql(f"CALL lake.system.rollback_to_snapshot('shop.t', {first})")
    assert "moved back" in check().rebuilt
    merge_into(sql, 0, 300)
    assert check().rebuilt is None


def test_deletion_vectors_are_refused(sql, lake, tmp_path):
    sql("ALTER TABLE lake.shop.t SET TBLPROPERTIES ('format-version' = '3')")
    sql("DELETE FROM lake.shop.t WHERE id = 3")
    with pytest.raises(TableRefused, match="not a Parquet file, but puffin"):
        build(lake.table("shop.t"), tmp_path / "i", ["id"])
