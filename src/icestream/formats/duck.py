"""The DuckDB queries of the JSON decoder: each takes texts and answers row by row.

Texts must be valid JSON or null; only `extract`, `parts`, `keys` and `valid` accept malformed ones.
"""

import json
import os
import threading
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import duckdb
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from icestream.schema import Structure

Sizes = npt.NDArray[np.intp]

_local = threading.local()
_SETTINGS = """
    SET threads = 1;
    SET memory_limit = '512MB';
    SET temp_directory = '';
    SET autoinstall_known_extensions = false;
    SET autoload_known_extensions = false;
    SET python_enable_replacements = false;
    SET enable_external_access = false;
"""
_STRUCTURE_ROWS = 10_000  # json_group_structure keeps a tree per row until it has answered


def connection() -> duckdb.DuckDBPyConnection:
    """Return this thread's connection: in memory, one thread, no files, no downloads."""
    if getattr(_local, "pid", None) != os.getpid():  # never one inherited over a fork
        _local.connection = duckdb.connect(":memory:")
        _local.connection.execute(_SETTINGS)
        _local.pid = os.getpid()
    result: duckdb.DuckDBPyConnection = _local.connection
    return result


def ask(sql: str, texts: pa.StringArray, *parameters: str) -> pa.Table:
    """Run a query over the view `t` with one column `v`; rows keep their order."""
    con = connection()
    con.register("t", pa.table({"v": texts}))
    try:
        return con.execute(sql, parameters).to_arrow_table(max(len(texts), 1))
    finally:
        con.unregister("t")


def extract(
    texts: pa.StringArray, names: Sequence[str], raw: Collection[str] = ()
) -> tuple[list[pa.StringArray], list[int]]:
    """Return the text of each named key of the objects, and the rows that are malformed JSON.

    Strings under the `raw` ones keep their quotes and escapes.
    """
    kinds = {name: "JSON" if name in raw else "VARCHAR" for name in names}
    values, malformed = parts(texts, kinds or {"": "VARCHAR"})
    return values.flatten()[: len(names)], malformed


def parts(texts: pa.StringArray, structure: Mapping[str, Any]) -> tuple[pa.StructArray, list[int]]:
    """Return the parts that a DuckDB structure names, and the rows that are malformed JSON."""
    structure_json = json.dumps(structure)
    try:
        answer = ask("SELECT from_json(v, $1) AS x FROM t", texts, structure_json)
        malformed: list[int] = []
    except duckdb.InvalidInputException:
        answer = ask(
            """
            SELECT CASE WHEN json_valid(v) THEN from_json(v, $1) END AS x,
                   v IS NOT NULL AND NOT json_valid(v) AS malformed
            FROM t
            """,
            texts,
            structure_json,
        )
        malformed = np.flatnonzero(answer.column("malformed").to_numpy()).tolist()
    return one_chunk(answer.column("x")), malformed


def elements(texts: pa.StringArray) -> tuple[Sizes, pa.StringArray]:
    """Return the number of elements of each array, and all elements as texts."""
    lists = one_chunk(ask("""SELECT from_json(v, '["VARCHAR"]') AS x FROM t""", texts).column("x"))
    return _sizes(lists), lists.flatten()


def entries(texts: pa.StringArray) -> tuple[Sizes, pa.StringArray, pa.StringArray]:
    """Return the number of entries of each object, and all keys and values, repeated keys too."""
    answer = ask("SELECT json_keys(v) AS k, json_extract_string(v, '$.*') AS x FROM t", texts)
    keys, values = one_chunk(answer.column("k")), one_chunk(answer.column("x"))
    return _sizes(keys), keys.flatten(), values.flatten()


def keys(texts: pa.StringArray) -> list[str]:
    """Return every key that any of the objects has, once; malformed texts have none."""
    sql = "SELECT DISTINCT unnest(json_keys(v)) AS x FROM t WHERE json_valid(v)"
    result: list[str] = ask(sql, texts).column("x").to_pylist()
    return result


def valid(texts: pa.StringArray) -> pa.BooleanArray:
    """Return which texts are valid JSON; null stays null."""
    return one_chunk(ask("SELECT json_valid(v) AS x FROM t", texts).column("x"))


def structures(texts: pa.StringArray) -> list[Structure]:
    """Return the structure of all keys in the objects, one per 10,000 rows."""
    chunks = (texts.slice(i, _STRUCTURE_ROWS) for i in range(0, len(texts), _STRUCTURE_ROWS))
    sql = "SELECT json_group_structure(v::JSON) AS x FROM t"
    return [json.loads(ask(sql, chunk).column("x")[0].as_py()) for chunk in chunks]


def complaint(text: str) -> str:
    """Return what DuckDB says is wrong with a malformed text, without the text."""
    try:
        ask("""SELECT from_json(v, '["VARCHAR"]') AS x FROM t""", pa.array([text]))
    except duckdb.InvalidInputException as e:
        return str(e).removeprefix("Invalid Input Error: ").split("  Input:")[0]
    return "malformed JSON"


def base64(texts: pa.StringArray) -> pa.BinaryArray:
    """Decode valid base64."""
    return one_chunk(ask("SELECT from_base64(v) AS x FROM t", texts).column("x"))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Return a column as one array, without a copy if it has one chunk."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sizes(lists: pa.ListArray) -> Sizes:
    sizes: Sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.intp)
    return sizes
