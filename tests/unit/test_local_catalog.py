"""Catalog `local`: a file that several processes may open for the first time at once."""

import sqlite3
import threading

import pytest

from icestream.catalogs.local import FILE, LocalCatalog
from icestream.config.options.catalog import LocalCatalogOptions
from icestream.errors import Unreachable


def catalog(folder):
    return LocalCatalog(LocalCatalogOptions(warehouse=str(folder)))


def test_a_new_file_is_waited_for(tmp_path):
    """Java changes to WAL on each connection; that needs no lock in a file which is changed."""
    other = sqlite3.connect(tmp_path / FILE, check_same_thread=False, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    leaving = threading.Timer(0.2, other.execute, ["COMMIT"])
    leaving.start()
    catalog(tmp_path).check()
    leaving.join()
    other.close()
    with sqlite3.connect(tmp_path / FILE) as database:
        assert database.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_its_tables_serve_pyiceberg(tmp_path):
    catalog(tmp_path).check()
    opened = catalog(tmp_path).open()
    opened.create_namespace("shop", {"owner": "me"})
    assert opened.list_namespaces() == [("shop",)]
    assert opened.load_namespace_properties("shop")["owner"] == "me"


def test_what_is_no_database_is_named(tmp_path):
    (tmp_path / FILE).write_bytes(b"no database at all" * 300)
    for use in (catalog(tmp_path).check, catalog(tmp_path).open, catalog(tmp_path).java_properties):
        with pytest.raises(Unreachable, match="cannot be opened"):
            use()
    assert (tmp_path / FILE).read_bytes().startswith(b"no database")
