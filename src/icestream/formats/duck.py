"""The DuckDB questions that the JSON decoder asks: each takes texts and answers row by row.

Texts given here must be valid JSON or null; `extract` and `parts` alone tell malformed ones apart.
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
    """Give this thread's connection: in memory, one thread, no files, no downloads."""
    if getattr(_local, "pid", None) != os.getpid():  # never one inherited over a fork
        _local.connection = duckdb.connect(":memory:")
        _local.connection.execute(_SETTINGS)
        _local.pid = os.getpid()
    found: duckdb.DuckDBPyConnection = _local.connection
    return found


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
    """Give the text of each named key of the objects, and the rows that are malformed JSON.

    Strings under the `raw` ones keep their quotes and escapes.
    """
    kinds = {name: "JSON" if name in raw else "VARCHAR" for name in names}
    found, malformed = parts(texts, kinds or {"": "VARCHAR"})
    return found.flatten()[: len(names)], malformed


def parts(texts: pa.StringArray, structure: Mapping[str, Any]) -> tuple[pa.StructArray, list[int]]:
    """Give what DuckDB's structure names of the objects, and the rows that are malformed JSON."""
    wanted = json.dumps(structure)
    try:
        found = ask("SELECT from_json(v, $1) AS x FROM t", texts, wanted)
        malformed: list[int] = []
    except duckdb.InvalidInputException:
        found = ask(
            """
            SELECT CASE WHEN json_valid(v) THEN from_json(v, $1) END AS x,
                   v IS NOT NULL AND NOT json_valid(v) AS malformed
            FROM t
            """,
            texts,
            wanted,
        )
        malformed = np.flatnonzero(found.column("malformed").to_numpy()).tolist()
    return one_chunk(found.column("x")), malformed


def elements(texts: pa.StringArray) -> tuple[Sizes, pa.StringArray]:
    """Give the number of elements of each array, and all elements as texts."""
    lists = one_chunk(ask("""SELECT from_json(v, '["VARCHAR"]') AS x FROM t""", texts).column("x"))
    return _sizes(lists), lists.flatten()


def entries(texts: pa.StringArray) -> tuple[Sizes, pa.StringArray, pa.StringArray]:
    """Give the number of entries of each object, and all keys and values, repeated keys too."""
    found = ask("SELECT json_keys(v) AS k, json_extract_string(v, '$.*') AS x FROM t", texts)
    keys, values = one_chunk(found.column("k")), one_chunk(found.column("x"))
    return _sizes(keys), keys.flatten(), values.flatten()


def keys(texts: pa.StringArray) -> list[str]:
    """Give every key that any of the objects has, once; what is no JSON has none."""
    sql = "SELECT DISTINCT unnest(json_keys(v)) AS x FROM t WHERE json_valid(v)"
    found: list[str] = ask(sql, texts).column("x").to_pylist()
    return found


def valid(texts: pa.StringArray) -> pa.BooleanArray:
    """Tell which texts are JSON; null stays null."""
    return one_chunk(ask("SELECT json_valid(v) AS x FROM t", texts).column("x"))


def structures(texts: pa.StringArray) -> list[Structure]:
    """Give the structure of each run of rows."""
    runs = (texts.slice(i, _STRUCTURE_ROWS) for i in range(0, len(texts), _STRUCTURE_ROWS))
    sql = "SELECT json_group_structure(v::JSON) AS x FROM t"
    return [json.loads(ask(sql, run).column("x")[0].as_py()) for run in runs]


def complaint(text: str) -> str:
    """Give DuckDB's own words about a malformed text, without the text."""
    try:
        ask("""SELECT from_json(v, '["VARCHAR"]') AS x FROM t""", pa.array([text]))
    except duckdb.InvalidInputException as e:
        return str(e).removeprefix("Invalid Input Error: ").split("  Input:")[0]
    return "malformed JSON"


def base64(texts: pa.StringArray) -> pa.BinaryArray:
    """Decode valid base64."""
    return one_chunk(ask("SELECT from_base64(v) AS x FROM t", texts).column("x"))


def one_chunk(column: pa.ChunkedArray) -> pa.Array:
    """Give a column as one array, without a copy where it is one already."""
    return column.chunk(0) if column.num_chunks == 1 else column.combine_chunks()


def _sizes(lists: pa.ListArray) -> Sizes:
    sizes: Sizes = pc.fill_null(pc.list_value_length(lists), 0).to_numpy().astype(np.intp)
    return sizes
