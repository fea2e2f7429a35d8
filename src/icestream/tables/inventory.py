"""Inventory: the tables of a pipeline as the catalog lists them; no JVM."""

from collections.abc import Iterator
from contextlib import contextmanager

from pyiceberg.catalog import Catalog
from pyiceberg.exceptions import (
    NoSuchNamespaceError,
    NoSuchTableError,
    RESTError,
    ValidationError,
)

from icestream.config.model import PipelineConfig
from icestream.config.options.table import TableRule
from icestream.config.route import Router
from icestream.errors import Unreachable
from icestream.tables.design import quarantine_name
from icestream.tables.marker import property_name

# What `load_table` raises for a table that is not in the catalog, and for one whose metadata file
# is missing or damaged.
NOT_THERE = (NoSuchTableError, NoSuchNamespaceError)
DAMAGED = (FileNotFoundError, ValueError, ValidationError)
# What catalogs raise that do not answer, by module: not each of them is installed everywhere.
_AWAY = ("sqlalchemy", "sqlite3", "requests", "urllib3")


def routed_tables(config: PipelineConfig, catalog: Catalog) -> list[tuple[str, TableRule]]:
    """List a pipeline's tables with their rules, by name; not each of them need exist.

    Those are the tables with a fixed name, those of the configured topics, and of rules with
    placeholders the tables that a run of this pipeline has written to.
    """
    router = Router(config)
    topics = getattr(config.source, "topics", None) or ()
    configured = [router.route(topic) for topic in topics]
    rules = {route.table: route.rule for route in [*router.fixed(), *configured] if route}
    namespaces = list(catalog.list_namespaces())
    while namespaces:
        namespace = namespaces.pop()
        if not router.reaches(".".join(namespace)):
            continue
        namespaces.extend(n for n in catalog.list_namespaces(namespace) if n != namespace)
        for name in (".".join(table) for table in catalog.list_tables(namespace)):
            rule = router.owner(name)
            if rule and name not in rules and _is_ours(catalog, name, config.name):
                rules[name] = rule
    return sorted(rules.items())


def _is_ours(catalog: Catalog, name: str, pipeline: str) -> bool:
    """Whether a run of this pipeline has written to the table, or it is too broken to tell."""
    try:
        table = catalog.load_table(name)
    except DAMAGED:
        return True
    return property_name(pipeline) in table.properties or any(
        snapshot.summary and snapshot.summary["icestream.pipeline"] == pipeline
        for snapshot in table.metadata.snapshots
    )


@contextmanager
def translate_catalog_errors(name: str) -> Iterator[None]:
    """Context manager: turn whatever a catalog that does not answer raises into Unreachable."""
    try:
        yield
    except Exception as failure:
        module = type(failure).__module__.partition(".")[0]
        if module not in _AWAY and not isinstance(failure, RESTError | ConnectionError):
            raise
        raise Unreachable(
            f"catalog `{name}` does not answer: {type(failure).__name__}: {first_line(failure)}",
            hint="check it with `icestream validate`",
        ) from None


def table_names(config: PipelineConfig, catalog: Catalog) -> list[str]:
    """List a pipeline's tables, each followed by its quarantine if there is one."""
    names = []
    for name, _ in routed_tables(config, catalog):
        names.append(name)
        if catalog.table_exists(quarantine_name(name)):
            names.append(quarantine_name(name))
    return names


def first_line(failure: BaseException) -> str:
    """First line of an error's text, at most 200 characters: for a note or a finding."""
    return (str(failure).strip() or type(failure).__name__).splitlines()[0][:200]
